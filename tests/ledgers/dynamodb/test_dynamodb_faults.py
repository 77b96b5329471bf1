"""Lost replies, throttling, conflicts, and a service that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.ledgers.dynamodb.proxy import Proxy, operation, proxy_to
from tests.support.servers.dynamodb import DynamoServer
from tests.support.servers.process import free_port

from semel import aws
from semel.ledgers.dynamodb import DynamoLedger, client, ledger
from semel.ledgers.dynamodb.url import parse
from semel.ports import EntryQuery
from semel.testing.harness import Harness
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.outcome import Done, Ending, Reject, Release, Retry

THROTTLED = "ProvisionedThroughputExceededException"


class Faulty:
    """A ledger behind a proxy, and one beside it."""

    def __init__(self, server: DynamoServer, url: str) -> None:
        self._server = server
        self.url = url

    def run(self, test: Callable[[Proxy, DynamoLedger, DynamoLedger], Awaitable[None]], **options: str) -> None:
        async def whole() -> None:
            assert self._server.endpoint is not None
            async with proxy_to(self._server.endpoint) as proxy:
                behind = DynamoLedger.from_url(proxy.url(self.url, **options))
                beside = DynamoLedger.from_url(self.url)
                try:
                    await test(proxy, behind, beside)
                finally:
                    await behind.close()
                    await beside.close()

        asyncio.run(whole())


@pytest.fixture
def faulty(server: DynamoServer, ledger_url: Callable[..., str]) -> Faulty:
    if server.endpoint is None:
        pytest.skip("the proxy speaks HTTP without TLS: it needs an emulator")
    return Faulty(server, ledger_url(margin_ms="0"))


@pytest.fixture
def harness() -> Harness:
    return Harness(open=lambda: DynamoLedger.from_url("dynamodb://none"), unit_ms=60_000)


async def claim(ledger: DynamoLedger, claim: Claim) -> Any:
    (verdict,) = await ledger.claim([claim])
    return verdict


# ------------------------------------------------------------------------------------------------------ lost replies


@pytest.mark.parametrize("kind", ["plain", "taken over", "alias and subject"])
def test_a_claim_whose_reply_was_lost_finds_its_own_grant(faulty: Faulty, harness: Harness, kind: str) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        aliases, subject = (["x"], "s") if kind == "alias and subject" else ([], None)
        asked = harness.claim("a", aliases=aliases, subject=subject, position=1)
        if kind == "taken over":
            await claim(beside, harness.claim("a", lease_ms=0))
        lost = proxy.lose_reply(operation("TransactWriteItems" if aliases else "PutItem"), times=2)
        granted = await claim(behind, asked)
        assert lost.landed == 2
        assert isinstance(granted, Granted)
        taken = kind == "taken over"
        assert (granted.attempt, granted.takeover) == ((2, True) if taken else (1, False))
        assert isinstance(await claim(beside, asked), Busy)
        assert await beside.settle([Settlement(granted.lease, Done(b"1"))]) == [True], "its token is the current one"
        assert await claim(beside, asked) == Settled(Done(b"1"))

    faulty.run(test)


@pytest.mark.parametrize("subject", [None, "s"])
@pytest.mark.parametrize("ending", [Done(b"1"), Reject("no"), Retry(60), Release()], ids=lambda e: type(e).__name__)
def test_a_settle_whose_reply_was_lost_is_true_and_happened_once(
    faulty: Faulty, harness: Harness, ending: Ending, subject: str | None
) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        asked = harness.claim("a", subject=subject, position=1)
        granted = await claim(behind, asked)
        dead_letter = DeadLetter(b"{}", 1) if isinstance(ending, Reject) else None
        writes = ("PutItem", "UpdateItem", "TransactWriteItems")
        lost = proxy.lose_reply(lambda name, body: name in writes)
        assert await behind.settle([Settlement(granted.lease, ending, dead_letter)]) == [True]
        assert lost.landed == 1
        match ending:
            case Done() | Reject():
                assert await claim(beside, asked) == Settled(ending)
                assert len(await beside.entries(EntryQuery("dead"))) == (0 if isinstance(ending, Done) else 1)
            case Retry():
                assert isinstance(await claim(beside, asked), Busy)
            case _:
                again = await claim(beside, asked)
                assert (again.attempt, again.takeover) == (1, False)
                assert again.lease.token > granted.lease.token

    faulty.run(test)


def test_an_attempt_that_is_settled_twice_is_logged_once(faulty: Faulty, harness: Harness) -> None:
    """And an end is one request, whether it succeeds or is to be tried again."""

    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        asked = harness.claim("a")
        first = await claim(behind, asked)
        lost = proxy.lose_reply(operation("UpdateItem"))
        assert await behind.settle([Settlement(first.lease, Retry(0, "first"))]) == [True]
        assert lost.landed == 1
        second = await claim(behind, asked)
        before = len(proxy.requests)
        assert await behind.settle([Settlement(second.lease, Retry(0, "second"))]) == [True]
        third = await claim(beside, asked)
        assert await behind.settle([Settlement(third.lease, Done())]) == [True]
        assert proxy.requests[before:] == ["UpdateItem", "UpdateItem"]
        (done,) = await beside.entries(EntryQuery("done"))
        assert [(one.attempt, one.reason) for one in done.attempt_log] == [(1, "first"), (2, "second")]

    faulty.run(test)


def test_a_renewal_whose_reply_was_lost_is_true(faulty: Faulty, harness: Harness) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        for asked, name in (
            (harness.claim("a"), "UpdateItem"),
            (harness.claim("b", subject="s", position=1), "TransactWriteItems"),
        ):
            granted = await claim(behind, asked)
            lost = proxy.lose_reply(operation(name))
            assert await behind.renew([granted.lease]) == [True]
            assert lost.landed == 1

    faulty.run(test)


def test_a_transaction_whose_reply_was_lost_happened_once(
    faulty: Faulty, harness: Harness, aws: Any, plain_table: Callable[[], str]
) -> None:
    table = plain_table()

    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        granted = await claim(behind, harness.claim("a", subject="s", position=1))
        async with behind.transaction(granted.lease) as transaction:
            transaction.handle.update(table, {"id": "n"}, "ADD n :one", values={":one": 1})
            assert await transaction.settle(Settlement(granted.lease, Done(b"1")))
            lost = proxy.lose_reply(operation("TransactWriteItems"), times=2)
        assert lost.landed == 2
        assert await claim(beside, harness.claim("a")) == Settled(Done(b"1"))

    faulty.run(test)
    assert aws.get_item(TableName=table, Key={"id": {"S": "n"}}, ConsistentRead=True)["Item"]["n"] == {"N": "1"}


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The service remembers a request token for ten minutes; whoever comes later is refused by what itself has written.

    Every transaction is sent twice, under two tokens; returns them."""
    used: list[str] = []
    ask = client.DynamoClient.ask

    async def twice(self: Any, operation: str, **request: Any) -> Any:
        if operation == "transact_write_items":
            used.extend([f"{len(used)} {request['ClientRequestToken']}"[:36], f"{len(used) + 1}"])
            await ask(self, operation, **request | {"ClientRequestToken": used[-2]})
            request["ClientRequestToken"] = used[-1]
        return await ask(self, operation, **request)

    monkeypatch.setattr(client.DynamoClient, "ask", twice)
    yield used
    assert used, "the fault has not landed"


def test_a_transaction_finds_itself_by_its_nonce(
    faulty: Faulty, harness: Harness, plain_table: Callable[[], str], forgetful: list[str]
) -> None:
    table = plain_table()

    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        granted = await claim(behind, harness.claim("a"))
        async with behind.transaction(granted.lease) as transaction:
            transaction.handle.put(table, {"id": "1"}, condition="attribute_not_exists(id)")
            assert await transaction.settle(Settlement(granted.lease, Done(b"1")))
        assert await claim(beside, harness.claim("a")) == Settled(Done(b"1"))

    faulty.run(test)


def test_a_claim_of_several_keys_and_its_settle_find_themselves(
    faulty: Faulty, harness: Harness, forgetful: list[str]
) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        granted = await claim(behind, harness.claim("a", aliases=["x"], subject="s", position=1))
        assert isinstance(granted, Granted)
        assert granted.attempt == 1
        assert await beside.settle([Settlement(granted.lease, Reject("no"), DeadLetter(b"{}", 1))]) == [True]
        assert len(await beside.entries(EntryQuery("dead"))) == 1

    faulty.run(test)


# -------------------------------------------------------------------------------------------- throttling and conflicts


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (THROTTLED, 400),
        ("ThrottlingException", 400),
        ("RequestLimitExceeded", 400),
        ("InternalServerError", 500),
        ("TransactionConflictException", 400),
    ],
)
def test_transient_errors_are_retried(faulty: Faulty, harness: Harness, code: str, status: int) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        refused = [proxy.refuse(operation(name), code, 2, status) for name in ("PutItem", "UpdateItem")]
        granted = await claim(behind, harness.claim("a"))
        assert isinstance(granted, Granted)
        assert granted.attempt == 1
        assert await behind.settle([Settlement(granted.lease, Done())]) == [True]
        assert [fault.landed for fault in refused] == [2, 2]

    faulty.run(test)


@pytest.mark.parametrize("reason", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_transaction_that_conflicts_is_retried(faulty: Faulty, harness: Harness, reason: str) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        asked = harness.claim("a", aliases=["x"], subject="s", position=1)
        reasons = [{"Code": "None"}, {"Code": reason, "Message": "injected"}, {"Code": "None"}]

        def refuse() -> Any:
            wanted = operation("TransactWriteItems")
            return proxy.refuse(wanted, "TransactionCanceledException", 2, CancellationReasons=reasons)

        refused = [refuse()]
        granted = await claim(behind, asked)
        assert isinstance(granted, Granted)
        refused.append(refuse())
        assert await behind.renew([granted.lease]) == [True]
        refused.append(refuse())
        assert await behind.settle([Settlement(granted.lease, Done())]) == [True]
        assert [fault.landed for fault in refused] == [2, 2, 2]

    faulty.run(test)


def test_endless_throttling_is_reported_with_the_table(
    faulty: Faulty, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 0.3)

    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        refused = proxy.refuse(lambda name, body: True, THROTTLED, 1_000_000)
        table = faulty.url.partition("?")[0].removeprefix("dynamodb://")
        with pytest.raises(LedgerUnavailable, match=f"{table}.*{THROTTLED}.*capacity"):
            await behind.claim([harness.claim("a")])
        assert refused.landed >= 1
        assert isinstance(await claim(beside, harness.claim("a")), Granted), "nothing was claimed"

    faulty.run(test)


@pytest.mark.parametrize(("status", "passes"), [(400, False), (499, False), (500, True), (503, True)])
def test_an_unknown_error_is_transient_from_status_500(status: int, passes: bool) -> None:
    response: Any = {"Error": {"Code": "SomethingNew"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert client.is_transient(aws._classify(ClientError(response, "PutItem"))) is passes


@pytest.mark.parametrize("passed", [0, 1])
def test_unread_keys_of_a_batch_are_read_again(passed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service reads no key of the first request, and one of each later one. As long as keys are read, the deadline
    does not count."""
    monkeypatch.setattr(client, "BACKOFF_CAP_S", 0.0)
    wanted = [{"pk": bytes([number]), "sk": b"k"} for number in range(4)]

    async def story() -> None:
        reader = client.DynamoClient(parse("dynamodb://table"))
        requests: list[int] = []

        async def ask(operation: str, **request: Any) -> dict[str, Any]:
            keys = request["RequestItems"]["table"]["Keys"]
            requests.append(len(keys))
            if passed and len(requests) == 2:
                monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 1e12)
            read, left = (keys[:1], keys[1:]) if len(requests) > 1 else ([], keys)
            return {"Responses": {"table": read}, "UnprocessedKeys": {"table": {"Keys": left}} if left else {}}

        monkeypatch.setattr(reader, "ask", ask)
        found = await reader.get(wanted)
        assert sorted(found) == [(item["pk"], item["sk"]) for item in wanted]
        assert requests == [4, 4, 3, 2, 1]

    asyncio.run(story())


def test_a_batch_that_is_never_read_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 0.2)

    async def story() -> None:
        reader = client.DynamoClient(parse("dynamodb://table"))
        requests: list[int] = []

        async def ask(operation: str, **request: Any) -> dict[str, Any]:
            requests.append(1)
            return {"Responses": {}, "UnprocessedKeys": {"table": {"Keys": request["RequestItems"]["table"]["Keys"]}}}

        monkeypatch.setattr(reader, "ask", ask)
        with pytest.raises(LedgerUnavailable, match="capacity"):
            await reader.get([{"pk": b"a", "sk": b"k"}])
        assert len(requests) > 1

    asyncio.run(story())


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException", "RequestExpired"])
def test_definite_errors_are_reported_at_once(faulty: Faulty, harness: Harness, code: str) -> None:
    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        refused = proxy.refuse(operation("PutItem"), code, 1_000)
        with pytest.raises(LedgerUnavailable, match=f"put_item.*{code}"):
            await behind.claim([harness.claim("a")])
        assert refused.landed == 1

    faulty.run(test)


def test_leases_of_a_failed_batch_are_released(
    faulty: Faulty, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 0.3)
    monkeypatch.setattr(ledger, "RELEASE_S", 30.0)  # a busy machine is slow, and this is not what is tested

    async def test(proxy: Proxy, behind: DynamoLedger, beside: DynamoLedger) -> None:
        claims = harness.claims(8)
        throttled = proxy.refuse(
            lambda name, body: name == "PutItem" and b'"key 3"' in body and b'"nonce"' in body, THROTTLED, 1_000_000
        )
        with pytest.raises(LedgerUnavailable):
            await behind.claim(claims)
        assert throttled.landed >= 1
        verdicts = await beside.claim(claims)
        assert [(v.attempt, v.takeover) for v in verdicts if isinstance(v, Granted)] == [(1, False)] * 8

    faulty.run(test)


# ------------------------------------------------------------------------------------------------------- not there


def test_a_missing_table_is_an_error_that_names_migrate(server: DynamoServer, harness: Harness) -> None:
    async def test() -> None:
        store = DynamoLedger.from_url(server.url("there-is-none"))
        for asked in (harness.claim("a"), harness.claim("a", aliases=["x"])):
            with pytest.raises(ConfigError, match=r"there-is-none.*semel migrate"):
                await store.claim([asked])
        with pytest.raises(ConfigError, match="semel migrate"):
            await store.entries(EntryQuery("dead"))
        await store.close()

    asyncio.run(test())


def test_an_unreachable_service_is_unavailable(
    server: DynamoServer, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "DEADLINE_S", 0.3)

    async def test() -> None:
        store = DynamoLedger.from_url(f"dynamodb://some-table?region=x&endpoint=http://127.0.0.1:{free_port()}")
        with pytest.raises(LedgerUnavailable, match=r"some-table.*127\.0\.0\.1"):
            await store.claim([harness.claim("a")])
        await store.close()

    asyncio.run(test())


def test_missing_credentials_are_an_error_that_names_the_aws_chain(
    server: DynamoServer, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nonexistent")

    async def test() -> None:
        store = DynamoLedger.from_url(server.url("some-table"))
        with pytest.raises(ConfigError, match="AWS"):
            await store.claim([harness.claim("a")])
        await store.close()

    asyncio.run(test())
