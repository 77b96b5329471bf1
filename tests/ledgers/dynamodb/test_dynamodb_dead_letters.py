"""What a person decides about a letter, in a store without inbox: the next claim of a replayed key is granted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.ledgers.dynamodb.tables import clock_ahead

from semel.ledgers.dynamodb import DynamoLedger
from semel.ledgers.dynamodb.items import EVENT_MAX, REASON_MAX
from semel.ports import DeadLetters, Entry
from semel.testing.harness import Caller, FakeClock, Harness
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import ConfigError
from semel.values.outcome import Done, Reject, Retry, Uncertain

LETTERS: dict[str, Reject | Uncertain] = {"dead": Reject("no"), "uncertain": Uncertain("?")}


class Office(Caller):
    """A ledger, and the person in front of it."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        super().__init__(lambda: DynamoLedger.from_url(url, clock=clock))
        self.harness = Harness(open=lambda: DynamoLedger.from_url(url, clock=clock), clock=clock)

    @property
    def store(self) -> Any:
        assert isinstance(self.ledger, DeadLetters)
        return self.ledger

    def die(self, claim: Claim, outcome: Reject | Uncertain | None = None, event: bytes | None = b"{}") -> Granted:
        granted = self.grant(claim)
        dead_letter = None if event is None else DeadLetter(event, granted.attempt)
        assert self.settle_all([Settlement(granted.lease, outcome or Reject("no"), dead_letter)]) == [True]
        return granted

    def replay(self, claim: Claim, reason: str = "fixed", by: str = "anna") -> bool:
        return bool(self.run(self.store.replay(claim.digest.hex(), reason, by)))

    def discard(self, claim: Claim, reason: str = "not needed", by: str = "anna") -> bool:
        return bool(self.run(self.store.discard(claim.digest.hex(), reason, by)))

    def history(self, claim: Claim) -> list[Entry]:
        return list(self.run(self.store.history(claim.digest.hex())))

    def states_of(self, claim: Claim) -> list[tuple[str, int]]:
        return [(entry.state, entry.generation) for entry in self.history(claim)]


@pytest.fixture
def office(ledger_url: Callable[..., str]) -> Iterator[Office]:
    office = Office(ledger_url(margin_ms="0"), clock_ahead())
    yield office
    office.close()


@pytest.fixture
def harness(office: Office) -> Harness:
    return office.harness


@pytest.mark.parametrize("state", list(LETTERS))
def test_the_next_claim_of_a_replayed_key_is_granted(office: Office, harness: Harness, state: str) -> None:
    claim = harness.claim("a", aliases=["x"])
    old = office.die(claim, LETTERS[state], b"1")
    assert office.claim(claim) == Settled(LETTERS[state])
    assert [office.replay(claim), office.replay(claim), office.discard(claim)] == [True, False, False]
    assert office.entries(claim) == []
    granted = office.grant(claim)
    assert (granted.attempt, granted.takeover) == (1, False)
    assert granted.lease.token > old.lease.token
    assert office.settle_all([Settlement(old.lease, LETTERS[state])]) == [False]
    assert office.settle(granted, Done(b"1")) is True
    for known in (claim, harness.claim("b", aliases=["x"])):
        assert office.claim(known) == Settled(Done(b"1"))


@pytest.mark.parametrize("state", list(LETTERS))
def test_what_is_discarded_leaves_the_list_and_still_answers(office: Office, harness: Harness, state: str) -> None:
    claim = harness.claim("a", aliases=["x"])
    office.die(claim, LETTERS[state])
    assert office.run(office.store.counts())[state] == 1
    assert office.discard(claim) is True
    assert office.entries(claim) == []
    assert office.run(office.store.counts())[state] == 0
    assert office.claim(claim) == Settled(LETTERS[state])
    assert [office.discard(claim), office.replay(claim)] == [False, False]


def test_every_decision_is_kept_with_its_reason(office: Office, harness: Harness) -> None:
    claim = harness.claim("a")
    office.die(claim, Reject("first"), b"1")
    assert office.states_of(claim) == [("dead", 1)]
    assert office.replay(claim, "the number was wrong", "anna") is True
    assert office.states_of(claim) == [("replayed", 1)]
    harness.advance(2)
    office.grant(claim)
    assert office.states_of(claim) == [("leased", 2), ("replayed", 1)]
    harness.advance(harness.lease_ms)
    office.die(claim, Reject("again"), b"2")
    assert office.states_of(claim) == [("dead", 2), ("replayed", 1)]
    assert office.discard(claim, 'it\'s "done" – ä\n100 %', "\udcff") is True
    second, first = office.history(claim)
    assert (second.state, second.generation, second.reason, second.event) == ("discarded", 2, "again", b"2")
    assert (first.state, first.generation, first.reason, first.event) == ("replayed", 1, "first", b"1")
    assert 'it\'s "done" – ä\n100 %' in second.decision
    assert all(word in first.decision for word in ("replayed", "anna", "number", "UTC"))


def test_what_is_done_at_last_has_a_history(office: Office, harness: Harness) -> None:
    claim = harness.claim("a")
    for _ in range(2):
        office.die(claim)
        assert office.replay(claim) is True
        harness.advance(1)
    office.do(claim, b"1")
    assert office.states_of(claim) == [("done", 3), ("replayed", 2), ("replayed", 1)]
    (done,) = office.entries(claim)
    assert (done.state, done.generation, done.result) == ("done", 3, b"1")


@pytest.mark.parametrize("state", ["unknown", "leased", "waiting", "done", "released"])
def test_what_is_not_dead_or_uncertain_cannot_be_decided_about(office: Office, harness: Harness, state: str) -> None:
    claim = harness.claim("a")
    match state:
        case "leased":
            office.grant(claim)
        case "waiting":
            office.settle(office.grant(claim), Retry(60))
        case "done":
            office.do(claim, b"1")
    before = office.history(claim)
    assert [office.replay(claim), office.discard(claim)] == [False, False]
    assert office.history(claim) == before


@pytest.mark.parametrize("key", ["", "nonsense", "00" * 15, "00" * 17])
def test_a_malformed_key_is_an_error(office: Office, key: str) -> None:
    for ask in (office.store.replay, office.store.discard):
        with pytest.raises(ConfigError, match="hexadecimal"):
            office.run(ask(key, "why", "who"))


# -------------------------------------------------------------------------------------------------- letters and time


def test_two_dead_letters_of_one_key_are_decided_separately(office: Office, harness: Harness) -> None:
    claim = harness.claim("a")
    office.die(claim, Reject("first"), b"1")
    harness.advance(harness.retention_ms)
    office.die(claim, Reject("second"), b"2")
    assert office.replay(claim) is True
    assert [entry.reason for entry in office.entries(claim, "dead")] == ["first"]
    assert [office.replay(claim), office.replay(claim)] == [True, False]
    assert office.grant(claim).attempt == 1


def test_a_dead_letter_is_replayed_after_its_key_was_deleted(office: Office, harness: Harness) -> None:
    claim = harness.claim("a")
    old = office.die(claim)
    harness.advance(2 * 3_600_000)
    assert office.purge() == 1
    assert office.states_of(claim) == [("dead", 1)]
    assert office.replay(claim) is True
    granted = office.grant(claim)
    assert granted.lease.token > old.lease.token
    assert office.states_of(claim) == [("leased", 2), ("replayed", 1)]


def test_the_dead_letter_of_a_key_that_is_done_is_not_replayed_but_can_be_discarded(
    office: Office, harness: Harness
) -> None:
    claim = harness.claim("a")
    office.die(claim)
    harness.advance(harness.retention_ms)
    office.do(claim, b"1")
    assert office.replay(claim) is False
    assert office.discard(claim) is True
    assert office.entries(claim, "dead") == []
    assert office.is_done(claim, b"1")


def test_a_replay_leaves_a_live_lease_of_the_key(office: Office, harness: Harness) -> None:
    claim = harness.claim("a")
    office.die(claim)
    harness.advance(harness.retention_ms)
    granted = office.grant(claim)
    assert office.replay(claim) is True
    assert isinstance(office.claim(claim), Busy)
    assert office.settle(granted, Done(b"1")) is True


def test_an_alias_with_another_outcome_stays(office: Office, harness: Harness) -> None:
    old = harness.claim("a", aliases=["x"], alias_retention_ms=harness.unit_ms)
    office.die(old)
    harness.advance(2 * harness.unit_ms)
    office.do(harness.claim("b", aliases=["x"]), b"1")
    assert office.replay(old) is True
    assert office.is_done(harness.claim("c", aliases=["x"]), b"1")
    office.grant(harness.claim("a"))


def test_only_decided_dead_letters_expire(office: Office, harness: Harness) -> None:
    decided, undecided = harness.claim("a"), harness.claim("b")
    for claim in (decided, undecided):
        office.die(claim)
    harness.advance(3 * harness.retention_ms)
    assert office.discard(decided) is True
    office.purge()
    assert office.states_of(decided) == [("discarded", 1)], "the decision was taken just now"
    harness.advance(10 * 3_600_000)
    for _ in range(3):
        office.purge()
    assert office.states_of(decided) == []
    assert office.states_of(undecided) == [("dead", 1)]


def test_one_of_many_concurrent_decisions_is_recorded(office: Office, harness: Harness) -> None:
    claim = harness.claim("a", aliases=["x", "y"])
    office.die(claim)
    key = claim.digest.hex()

    async def at_once() -> list[bool]:
        asked = [(office.store.replay if at % 2 else office.store.discard)(key, "why", f"{at}") for at in range(8)]
        return list(await asyncio.gather(*asked))

    assert sorted(office.run(at_once())) == [False] * 7 + [True]
    assert len(office.history(claim)) == 1


# ------------------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize("size", [256 * 1024, 1024 * 1024])
def test_a_large_event_is_kept_whole(office: Office, harness: Harness, size: int) -> None:
    event = b'{"text":"%s"}' % (b"once upon a time " * (size // 17))
    claim = harness.claim("a" * 1000)
    office.die(claim, Reject("é" * 500), event)
    (entry,) = office.entries(claim, "dead")
    assert entry.event == event


def test_an_event_that_is_too_large_is_truncated_with_a_note_and_settled(office: Office, harness: Harness) -> None:
    event = os.urandom(512 * 1024)  # nothing to compress
    claim = harness.claim("a")
    office.die(claim, Reject("é" * 2 * REASON_MAX), event)
    (entry,) = office.entries(claim, "dead")
    assert entry.event == event[:EVENT_MAX]
    assert "DynamoDB" in entry.reason
    verdict = office.claim(claim)
    assert isinstance(verdict, Settled)
    assert isinstance(verdict.outcome, Reject)


def test_incompressible_events_of_the_webhook_limit_are_kept_whole(office: Office, harness: Harness) -> None:
    event = os.urandom(256 * 1024)
    claim = harness.claim("k" * 5000)
    office.die(claim, Uncertain("ü" * 2 * REASON_MAX), event)
    (entry,) = office.entries(claim, "uncertain")
    assert entry.event == event
