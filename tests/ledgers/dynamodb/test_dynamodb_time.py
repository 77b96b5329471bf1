"""Clocks that differ, items that the sweeper may take, tokens that must grow all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.ledgers.dynamodb.tables import clock_ahead

from semel.ledgers.dynamodb import DynamoLedger
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import load_item
from semel.ledgers.dynamodb.items import TOKEN_KEPT_MS, Tokens
from semel.testing.harness import Caller, FakeClock, Harness
from semel.values.claim import Busy, Claim, Granted
from semel.values.outcome import Done, Reject, Release, Retry

MARGIN_MS = 2_000


class Two:
    """Two workers, each with its own clock."""

    def __init__(self, url: str) -> None:
        self.table = url.partition("?")[0].removeprefix("dynamodb://")
        self.clocks = (clock_ahead(), FakeClock())
        self.clocks[1].now_ms = self.clocks[0].now_ms
        self.one, self.two = [Caller(partial(DynamoLedger.from_url, url, clock=clock)) for clock in self.clocks]
        self.harness = Harness(open=lambda: DynamoLedger.from_url(url))

    def skew(self, ms: int) -> None:
        """The second one's clock is so far ahead."""
        self.clocks[1].now_ms = self.clocks[0].now_ms + ms

    def pass_ms(self, ms: int) -> None:
        for clock in self.clocks:
            clock.now_ms += ms


@pytest.fixture
def two(ledger_url: Callable[..., str]) -> Iterator[Two]:
    both = Two(ledger_url(margin_ms=str(MARGIN_MS)))
    yield both
    both.one.close()
    both.two.close()


def stored(aws: Any, two: Two, claim: Claim) -> list[dict[str, Any]]:
    """The items of a key: itself, then its letters."""
    answer = aws.query(
        TableName=two.table,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"B": claim.digest}},
        ConsistentRead=True,
    )
    return [load_item(item) for item in answer["Items"]]


# ------------------------------------------------------------------------------------------------------------- skew


def test_a_renewed_lease_holds_its_subject_too(two: Two) -> None:
    first = two.one.grant(two.harness.claim("a", subject="s", position=1))
    two.pass_ms(two.harness.lease_ms - 1)
    assert two.one.renew(first.lease) == [True]
    two.pass_ms(two.harness.lease_ms - 1)
    assert two.two.claim(two.harness.claim("b", subject="s", position=2)) == Busy(1 + MARGIN_MS)


@pytest.mark.parametrize("subject", [None, "s"])
def test_a_clock_that_is_ahead_by_less_than_the_margin_takes_nothing_over(two: Two, subject: str | None) -> None:
    claim = two.harness.claim("a", subject=subject, position=1)
    two.one.grant(claim)
    two.skew(MARGIN_MS - 1)
    two.pass_ms(two.harness.lease_ms)
    busy = two.two.claim(claim)
    assert busy == Busy(1), "it names the time after which its own clock is sure"
    if subject is not None:
        assert two.two.claim(two.harness.claim("b", subject=subject, position=2)) == Busy(1)
    two.pass_ms(1)
    assert two.two.grant(claim).takeover


def test_a_clock_that_is_ahead_by_more_than_the_margin_takes_over_too_early_and_the_fence_holds(two: Two) -> None:
    claim = two.harness.claim("a")
    early = two.one.grant(claim)
    two.skew(MARGIN_MS + 1)
    two.pass_ms(two.harness.lease_ms - 1)
    taken = two.two.grant(claim)
    assert (taken.attempt, taken.takeover) == (2, True)
    assert two.one.renew(early.lease) == [False]
    assert two.one.settle(early, Done(b"early")) is False
    assert two.two.settle(taken, Done(b"late")) is True
    assert two.one.is_done(claim, b"late")


def test_a_retry_is_due_without_margin(two: Two) -> None:
    claim = two.harness.claim("a")
    assert two.one.settle(two.one.grant(claim), Retry(5)) is True
    two.pass_ms(5_000)
    assert two.two.grant(claim).attempt == 2


# ----------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("behind_ms", [0, 1_000, TOKEN_KEPT_MS // 2])
def test_tokens_grow_after_a_release_though_the_next_clock_is_behind(two: Two, behind_ms: int) -> None:
    two.skew(-behind_ms)
    claim, last = two.harness.claim("a", aliases=["x"]), 0
    for at in range(12):
        caller = (two.one, two.two)[at % 2]
        granted = caller.grant(claim if at % 3 else two.harness.claim("a"))
        assert granted.lease.token > last
        last = granted.lease.token
        assert caller.settle(granted, Release()) is True


def test_tokens_grow_after_a_purge_though_the_next_clock_is_behind(two: Two) -> None:
    two.skew(-TOKEN_KEPT_MS // 2)
    claim = two.harness.claim("a", retention_ms=1)
    first = two.one.do(claim)
    two.pass_ms(1)
    assert two.one.purge() == 1
    second = two.two.grant(claim)
    assert (second.attempt, second.takeover) == (1, False)
    assert second.lease.token > first.lease.token


def test_a_lease_that_was_taken_over_cannot_be_released(ledger_url: Callable[..., str]) -> None:
    """Though the token after its own is what the key has now, as it would have after a release."""
    url, clock = ledger_url(margin_ms="0"), clock_ahead()
    harness = Harness(open=lambda: DynamoLedger.from_url(url, clock=clock))
    high, low = DynamoLedger.from_url(url, clock=clock), DynamoLedger.from_url(url, clock=clock)
    high._claimer._tokens, low._claimer._tokens = Tokens(lambda bits: 1000), Tokens(lambda bits: 0)
    with Caller(lambda: high) as one, Caller(lambda: low) as other:
        claim = harness.claim("a", lease_ms=0)
        first, taken = one.grant(claim), other.grant(claim)
        assert taken.lease.token == first.lease.token + 1
        assert one.settle(first, Release()) is False
        assert [other.settle(taken, Release()), other.settle(taken, Release())] == [True, True]


@pytest.mark.parametrize("behind_ms", [0, 1_000, TOKEN_KEPT_MS // 2])
def test_tokens_of_a_key_grow_though_clocks_differ(two: Two, behind_ms: int) -> None:
    """After a release, a takeover, a retry, an expiry and a purge: the next one comes from the slower clock."""
    two.skew(-behind_ms)
    claim = two.harness.claim("a", retention_ms=1)
    last = 0
    for ending in (Release(), Retry(0), Done(), Reject("no"), Release(), None):
        for caller in (two.one, two.two):
            granted = caller.grant(claim)
            assert granted.lease.token > last
            last = granted.lease.token
            assert last < 2**53
            if ending is not None:
                assert caller.settle(granted, ending) is True
            two.pass_ms(behind_ms + two.harness.lease_ms + MARGIN_MS)
            two.one.purge()
            two.two.purge()


def test_tokens_of_one_object_grow_though_its_clock_stands_still_or_goes_back() -> None:
    tokens = Tokens(lambda bits: (1 << bits) - 3)
    now = clock_ahead()()
    made = [tokens.next(now - step) for step in range(10)]
    assert made == sorted(set(made))
    assert tokens.next(now, above=made[-1] + 1000) == made[-1] + 1001
    assert tokens.next(now + 64) > made[-1]


def test_the_token_of_a_released_key_is_kept_for_an_hour(two: Two, aws: Any) -> None:
    claim = two.harness.claim("a")
    assert two.one.settle(two.one.grant(claim), Release()) is True
    (item,) = stored(aws, two, claim)
    assert item["expires_ms"] == two.clocks[0].now_ms + TOKEN_KEPT_MS
    two.pass_ms(TOKEN_KEPT_MS)
    assert two.one.purge() == 0, "it is no key any more"
    assert stored(aws, two, claim) == []


# ---------------------------------------------------------------------------------------------------------- sweeper


@pytest.mark.parametrize("retention_ms", [1_500, 86_400_000])
@pytest.mark.parametrize("kind", ["done", "dead", "alias", "subject"])
def test_a_settle_writes_the_time_to_live(two: Two, aws: Any, kind: str, retention_ms: int) -> None:
    claim = two.harness.claim(
        "a",
        retention_ms=retention_ms,
        aliases=["x"] if kind == "alias" else [],
        subject="s" if kind == "subject" else None,
        position=1,
    )
    granted = two.one.grant(claim)
    (leased,) = stored(aws, two, claim)
    assert "ttl" not in leased, "a lease waits for whoever comes next, live or in doubt"
    assert two.one.settle(granted, Reject("no") if kind == "dead" else Done(b"1"), b"{}" if kind == "dead" else None)
    now = two.clocks[0].now_ms
    found = aws.scan(TableName=two.table, ConsistentRead=True)["Items"]
    dead_letters = [item for item in found if "dead_letter" in item]
    assert len(dead_letters) == (kind == "dead")
    assert all("ttl" not in dead_letter for dead_letter in dead_letters), "a letter waits for a person"
    rest = [load_item(item) for item in found if item not in dead_letters]
    assert len(rest) == (2 if kind in ("alias", "subject") else 1)
    for item in rest:
        assert item["expires_ms"] == now + retention_ms
        assert item["ttl"] == max(now + retention_ms, now + TOKEN_KEPT_MS) // 1000 + 1, "in seconds, never too early"


def test_a_retry_has_a_time_to_live_after_its_due_time(two: Two, aws: Any) -> None:
    claim = two.harness.claim("a", retention_ms=TOKEN_KEPT_MS)
    assert two.one.settle(two.one.grant(claim), Retry(60)) is True
    (item,) = stored(aws, two, claim)
    assert item["ttl"] == (two.clocks[0].now_ms + 60_000 + TOKEN_KEPT_MS) // 1000 + 1
    two.pass_ms(60_000)
    two.one.grant(claim)
    (item,) = stored(aws, two, claim)
    assert "ttl" not in item


def test_expired_items_are_unknown_before_dynamodb_deletes_them(two: Two, aws: Any) -> None:
    claim = two.harness.claim("a", fingerprint="1")
    two.one.do(claim, b"1")
    two.pass_ms(two.harness.retention_ms)
    assert len(stored(aws, two, claim)) == 1, "DynamoDB's sweeper may be two days late"
    assert two.one.run(two.one.ledger.history(claim.digest.hex())) == []  # type: ignore[attr-defined]
    again = two.two.grant(two.harness.claim("a", fingerprint="2"))
    assert (again.attempt, again.takeover) == (1, False)


def test_a_purge_resumes_its_scan_and_leaves_changed_items(two: Two) -> None:
    claims = [two.harness.claim(f"key {at}", retention_ms=two.harness.unit_ms) for at in range(12)]
    for claim in claims:
        two.one.do(claim)
    two.pass_ms(TOKEN_KEPT_MS)
    held = two.two.grant(claims[5])

    async def at_once() -> list[int]:
        return await asyncio.gather(*[two.one.ledger.purge(4) for _ in range(2)])

    assert sum(two.one.run(at_once())) + sum(two.one.purge(4) for _ in range(4)) == 11
    assert two.two.renew(held.lease) == [True]


@pytest.mark.parametrize("kind", ["delete_item", "put_item"])
def test_a_key_that_is_granted_while_it_is_being_purged_stays(
    two: Two, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    claim = two.harness.claim("a", retention_ms=1)
    two.one.do(claim)
    two.pass_ms(TOKEN_KEPT_MS if kind == "delete_item" else 1)
    held: list[Any] = []
    write = DynamoClient.write

    async def grant_first(self: DynamoClient, operation: str, request: Any) -> Any:
        if operation == kind and not held:
            held.append(None)
            (held[0],) = await two.one.ledger.claim([claim])
        return await write(self, operation, request)

    monkeypatch.setattr(DynamoClient, "write", grant_first)
    assert two.one.purge() == 0
    assert isinstance(held[0], Granted)
    assert two.one.renew(held[0].lease) == [True]


# ------------------------------------------------------------------------------------------------------------ crash

CRASH = """
import asyncio, os, sys
from semel.ledgers.dynamodb import DynamoLedger
from semel.testing.harness import Harness

async def main():
    ledger = DynamoLedger.from_url(sys.argv[1])
    harness = Harness(open=lambda: ledger, namespace=sys.argv[2])
    (granted,) = await ledger.claim([harness.claim("a", lease_ms=300)])
    print(granted.lease.token, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def test_a_process_killed_between_claim_and_settle_is_taken_over_and_counted(ledger_url: Callable[..., str]) -> None:
    url = ledger_url(margin_ms="100")
    harness = Harness(open=lambda: DynamoLedger.from_url(url))
    killed = subprocess.run([sys.executable, "-c", CRASH, url, harness.namespace], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    time.sleep(0.5)
    with Caller(harness.open) as ledger:
        taken = ledger.grant(harness.claim("a"))
        assert isinstance(taken, Granted)
        assert (taken.attempt, taken.takeover) == (2, True)
        assert taken.lease.token > int(killed.stdout)
