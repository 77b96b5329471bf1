"""The engine's rules over HTTP: who may act, what came of it, and what a lost lease can do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.service.api.live import GLOBEX, Client, api_on

from semel import Context, Event, Semel, keys, latest
from semel.ledgers.sqlite import SqliteLedger
from semel.ports import Entry, EntryQuery, Ledger
from semel.service.api.claim_shapes import ClaimBatch, ClaimItem
from semel.service.api.claims import Claims
from semel.testing.harness import FakeClock
from semel.values.claim import Busy, Claim, Verdict
from semel.values.outcome import RESULT_MAX_BYTES


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(tmp_path: Path, clock: FakeClock) -> Iterator[Client]:
    with api_on(tmp_path, clock=clock) as client:
        yield client


def dead_letters(folder: Path) -> list[Entry]:
    """Dead and uncertain events, as `semel dead list` finds them."""

    async def read() -> list[Entry]:
        ledger = SqliteLedger(str(folder / "semel.db"))
        found = [*await ledger.entries(EntryQuery("dead")), *await ledger.entries(EntryQuery("uncertain"))]
        await ledger.close()
        return found

    return asyncio.run(read())


# ----------------------------------------------------------------------------------------------------------- claims


def test_the_first_claim_wins_and_copies_in_a_batch_are_busy(client: Client) -> None:
    first, copy, other = client.claim(*[{"handler": "h", "key": key} for key in ("a", "a", "b")])
    assert [first["verdict"], copy["verdict"], other["verdict"]] == ["granted", "busy", "granted"]
    assert first["key"] == copy["key"] != other["key"]
    assert (first["attempt"], first["takeover"], first["expires_in"], first["age"]) == (1, False, 25.0, 0.0)
    assert copy["after"] == 25.0
    assert other["token"] > first["token"]


def test_a_duplicate_gets_the_stored_result(client: Client) -> None:
    lease = client.grant("a")["lease"]
    assert client.settle({"lease": lease, "outcome": "done", "result": {"order": 7}}) == [
        {"settled": True, "outcome": "done"}
    ]
    (duplicate,) = client.claim({"handler": "h", "key": "a"})
    assert (duplicate["verdict"], duplicate["outcome"], duplicate["result"]) == ("settled", "done", {"order": 7})


def test_the_parts_of_a_key_stay_apart(client: Client) -> None:
    verdicts = client.claim(*[{"handler": "h", "key": key} for key in (["ab", "c"], ["a", "bc"], "abc", ["abc"])])
    assert [verdict["verdict"] for verdict in verdicts] == ["granted", "granted", "granted", "busy"]


def test_another_payload_is_a_conflict_and_another_spelling_is_not(client: Client) -> None:
    item = {"handler": "h", "key": "a"}
    client.grant("a", payload={"x": 1, "y": 2})
    told = client.claim({**item, "payload": {"y": 2, "x": 1}}, {**item, "payload": {"x": 2}}, item)
    assert [verdict["verdict"] for verdict in told] == ["busy", "conflict", "busy"]


def test_an_older_event_of_a_subject_is_stale_and_an_equal_one_is_not(client: Client) -> None:
    def at(key: str, position: float) -> dict[str, Any]:
        return {"handler": "h", "key": key, "order": {"subject": "user-1", "position": position}}

    (newer,) = client.claim(at("newer", 200))
    assert [v["verdict"] for v in client.claim(at("meanwhile", 300))] == ["busy"]  # one at a time for a subject
    client.settle({"lease": newer["lease"], "outcome": "done"})
    assert [v["verdict"] for v in client.claim(at("older", 199.0), at("equal", 200.0))] == ["stale", "granted"]


def test_a_lapsed_lease_is_granted_again_with_a_higher_token(client: Client, clock: FakeClock) -> None:
    first = client.grant("a", lease=10)
    clock.now_ms += 10_000
    second = client.grant("a", lease=10)
    assert (second["attempt"], second["takeover"], second["age"]) == (2, True, 10.0)
    assert second["token"] > first["token"]
    assert client.renew(first["lease"]) == [{"renewed": False}]
    assert client.settle({"lease": first["lease"], "outcome": "done"}) == [{"settled": False}]
    assert client.settle({"lease": second["lease"], "outcome": "done"}) == [{"settled": True, "outcome": "done"}]


def test_a_renewed_lease_lasts_its_full_length_again(client: Client, clock: FakeClock) -> None:
    lease = client.grant("a", lease=10)["lease"]
    clock.now_ms += 9_000
    assert client.renew(lease) == [{"renewed": True, "expires_in": 10.0}]
    clock.now_ms += 9_000
    assert [v["verdict"] for v in client.claim({"handler": "h", "key": "a"})] == ["busy"]


# ------------------------------------------------------------------------------------------------- before and after


def test_attempts_that_all_crash_end_as_a_dead_letter(client: Client, clock: FakeClock, tmp_path: Path) -> None:
    item = {"handler": "h", "key": "a", "lease": 1, "max_attempts": 2, "event": {"id": "e-1"}}
    for _ in range(2):
        assert client.claim(item)[0]["verdict"] == "granted"  # and its holder is never heard of again
        clock.now_ms += 1_000
    dead, beside = client.claim(item, {"handler": "h", "key": "b"})
    assert (dead["verdict"], beside["verdict"]) == ("dead", "granted")
    assert "2" in dead["reason"]
    (after,) = client.claim(item)
    assert (after["verdict"], after["outcome"], after["reason"]) == ("settled", "reject", dead["reason"])
    (dead_letter,) = dead_letters(tmp_path)
    assert (dead_letter.state, dead_letter.key, dead_letter.event, dead_letter.attempts) == (
        "dead",
        dead["key"],
        b'{"id":"e-1"}',
        3,
    )


def test_a_retry_of_the_last_attempt_is_a_dead_letter(client: Client, clock: FakeClock, tmp_path: Path) -> None:
    first = client.grant("a", max_attempts=2)
    retry = {"outcome": "retry", "after": 5, "reason": "the CRM is down", "event": {"id": "e-1"}}
    assert client.settle({"lease": first["lease"], **retry}) == [{"settled": True, "outcome": "retry", "after": 5.0}]
    clock.now_ms += 5_000
    last = {"lease": client.grant("a", max_attempts=2)["lease"], **retry}
    (given_up,) = client.settle(last)
    assert (given_up["settled"], given_up["outcome"]) == (True, "reject")
    assert all(part in given_up["reason"] for part in ("2", "the CRM is down")), given_up
    assert client.settle(last) == [given_up]
    assert [dead_letter.event for dead_letter in dead_letters(tmp_path)] == [b'{"id":"e-1"}']


def test_a_parked_key_is_never_granted_twice(client: Client, clock: FakeClock, tmp_path: Path) -> None:
    item = {"handler": "sms", "key": "a", "lease": 1, "park": True, "event": {"to": "…"}}
    assert client.claim(item)[0]["verdict"] == "granted"
    clock.now_ms += 1_000
    (doubt,) = client.claim(item)
    assert (doubt["verdict"], doubt["outcome"]) == ("settled", "uncertain")
    assert client.claim(item) == [doubt]
    assert [(dead_letter.state, dead_letter.event) for dead_letter in dead_letters(tmp_path)] == [
        ("uncertain", '{"to":"…"}'.encode())
    ]


def test_a_doubt_is_granted_although_its_event_is_stale_meanwhile(client: Client, clock: FakeClock) -> None:
    def at(key: str, position: int, **more: Any) -> dict[str, Any]:
        return {"handler": "sms", "key": key, "lease": 1, "order": {"subject": "s", "position": position}, **more}

    client.claim(at("parked", 1, park=True))  # its holder vanishes
    clock.now_ms += 1_000
    (newer,) = client.claim(at("newer", 2))
    client.settle({"lease": newer["lease"], "outcome": "done"})
    (doubt,) = client.claim(at("parked", 1, park=True))
    assert (doubt["verdict"], doubt["outcome"]) == ("settled", "uncertain")


def test_a_retry_is_busy_until_it_is_due(client: Client, clock: FakeClock) -> None:
    lease = client.grant("a")["lease"]
    client.settle({"lease": lease, "outcome": "retry", "after": 30})
    (busy,) = client.claim({"handler": "h", "key": "a"})
    assert (busy["verdict"], busy["after"]) == ("busy", 30.0)
    clock.now_ms += 30_000
    again = client.grant("a")
    assert (again["attempt"], again["takeover"]) == (2, False)


def test_a_retry_without_a_delay_gets_one_and_the_same_when_it_is_repeated(client: Client) -> None:
    settlement = {"lease": client.grant("a")["lease"], "outcome": "retry"}
    ((first,), (again,)) = client.settle(settlement), client.settle(settlement)
    assert first == again
    assert 0 <= first["after"] <= 1
    (busy,) = client.claim({"handler": "h", "key": "a"})
    assert busy.get("after", 0.0) == pytest.approx(first["after"], abs=0.001)


def test_a_released_claim_was_never_made(client: Client) -> None:
    first = client.grant("a")
    assert client.settle({"lease": first["lease"], "outcome": "release"}) == [{"settled": True, "outcome": "release"}]
    assert client.settle({"lease": first["lease"], "outcome": "done"}) == [{"settled": False}]
    assert client.grant("a")["attempt"] == 1


@pytest.mark.parametrize("outcome", ["reject", "uncertain"])
def test_every_duplicate_gets_the_final_outcome(client: Client, outcome: str, tmp_path: Path) -> None:
    settlement = {"lease": client.grant("a")["lease"], "outcome": outcome, "reason": "no such customer", "event": [1]}
    assert client.settle(settlement) == [{"settled": True, "outcome": outcome}]
    (told,) = client.claim({"handler": "h", "key": "a"})
    assert (told["verdict"], told["outcome"], told["reason"]) == ("settled", outcome, "no such customer")
    assert [dead_letter.event for dead_letter in dead_letters(tmp_path)] == [b"[1]"]


def test_a_settle_whose_reply_was_lost_can_be_repeated(client: Client) -> None:
    settlement = {"lease": client.grant("a")["lease"], "outcome": "done", "result": [1, 2]}
    assert (
        client.settle(settlement) == client.settle(settlement, settlement)[:1] == [{"settled": True, "outcome": "done"}]
    )
    assert client.settle({**settlement, "result": [3]}) == [{"settled": False}]
    assert client.claim({"handler": "h", "key": "a"})[0]["result"] == [1, 2]


def test_a_result_that_is_too_large_does_not_let_the_effect_happen_again(client: Client) -> None:
    lease = client.grant("a")["lease"]
    (answer,) = client.settle({"lease": lease, "outcome": "done", "result": "x" * RESULT_MAX_BYTES})
    assert (answer["settled"], answer["outcome"]) == (True, "reject")
    assert "65,538" in answer["reason"]
    largest = client.grant("b")["lease"]
    (answer,) = client.settle({"lease": largest, "outcome": "done", "result": "x" * (RESULT_MAX_BYTES - 2)})
    assert answer == {"settled": True, "outcome": "done"}


def test_a_long_reason_is_cut_and_never_refused(client: Client) -> None:
    lease = client.grant("a")["lease"]
    client.settle({"lease": lease, "outcome": "reject", "reason": "long " * 1_000})
    (told,) = client.claim({"handler": "h", "key": "a"})
    assert (len(told["reason"]), told["reason"][-1]) == (500, "…")


# ---------------------------------------------------------------------------------------------- tenants and sharing


def test_tenants_do_not_see_each_others_keys(client: Client) -> None:
    globex = Client(client.port, GLOBEX)
    ours, theirs = client.grant("a"), globex.grant("a")
    assert ours["key"] != theirs["key"]
    # A lease text holds no tenant: in other hands it is a lease on another key, which is not theirs to end.
    assert globex.settle({"lease": ours["lease"], "outcome": "done"}) == [{"settled": False}]
    assert globex.renew(ours["lease"]) == [{"renewed": False}]
    assert client.settle({"lease": ours["lease"], "outcome": "done"}) == [{"settled": True, "outcome": "done"}]


def test_a_python_worker_and_a_client_of_the_api_share_the_keys_of_one_handler(tmp_path: Path) -> None:
    ran: list[str] = []

    async def process(*bodies: dict[str, Any]) -> list[str]:
        app = Semel(f"sqlite:///{tmp_path / 'semel.db'}", tenant="acme")

        @app.on("call.ended", name="survey", key=keys.fields("data.call"), order=latest("data.user", by="data.at"))
        async def survey(event: Event, ctx: Context) -> str:
            ran.append(ctx.key)
            return "by Python"

        async with app:
            return [(await app.process(body)).status for body in bodies]

    def ended(call: str, at: int) -> dict[str, Any]:
        return {"id": f"{call}-{at}", "type": "call.ended", "data": {"call": call, "user": "u", "at": at}}

    with api_on(tmp_path) as client:
        item = {"handler": "survey", "key": "c-1", "order": {"subject": "u", "position": 1_000}}
        (granted,) = client.claim(item)
        assert asyncio.run(process(ended("c-1", 1_000))) == ["busy"]
        client.settle({"lease": granted["lease"], "outcome": "done", "result": "by TypeScript"})
        assert asyncio.run(process(ended("c-1", 1_000), ended("c-0", 999), ended("c-2", 1_001))) == [
            "duplicate",
            "stale",
            "done",
        ]
        (told,) = client.claim({**item, "key": "c-2"})
        assert (told["verdict"], told["result"], told["key"]) == ("settled", "by Python", ran[0])
        assert [v["verdict"] for v in client.claim({**item, "key": "c-3"})] == ["stale"]


# --------------------------------------------------------------------------------------------------- large batches


class CountingLedger:
    """Answers claims when the test allows it, and counts the large ones that it processes at a time."""

    def __init__(self) -> None:
        self.large = self.large_most = self.small = 0
        self.go = asyncio.Event()

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if len(claims) == 1:
            self.small += 1
            return [Busy(1)]
        self.large += 1
        self.large_most = max(self.large_most, self.large)
        await self.go.wait()
        self.large -= 1
        return [Busy(1)] * len(claims)


def test_large_batches_go_to_the_store_one_after_the_other() -> None:
    async def story() -> None:
        ledger = CountingLedger()
        claims = Claims(cast(Ledger, ledger))

        def batch(size: int, name: str) -> ClaimBatch:
            return ClaimBatch([ClaimItem("h", [f"{name}-{number}"]) for number in range(size)])

        large = [asyncio.ensure_future(claims.claim("", batch(500, f"l{number}"))) for number in range(4)]
        await asyncio.sleep(0.05)
        assert ledger.large == 1
        await claims.claim("", batch(1, "s"))  # it does not wait for its turn
        assert ledger.small == 1
        ledger.go.set()
        assert [len((await asked).items) for asked in large] == [500] * 4
        assert ledger.large_most == 1

    asyncio.run(story())
