"""What a person decides about a letter: the laws of `semel.testing.laws.dead_letters` that need no inbox.

Redis has none: a replay goes nowhere, and the next claim of its key is granted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.ledgers.redis.stores import harness_on

from semel.ledgers.redis import RedisLedger
from semel.ports import DeadLetters, Entry, Inbox
from semel.testing.harness import Harness, InboxCaller
from semel.testing.laws.binding import Binding
from semel.testing.laws.dead_letters import ForceLaws
from semel.values.claim import Busy, Claim, Granted, Settled
from semel.values.errors import ConfigError
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain

DEAD_LETTERS: dict[str, Reject | Uncertain] = {"dead": Reject("no"), "uncertain": Uncertain("?")}
SWEPT_MS = 60_000


class Desk(InboxCaller):
    """A clerk without an inbox."""

    def __enter__(self) -> Desk:
        return self

    @property
    def redis(self) -> RedisLedger:
        assert isinstance(self.ledger, RedisLedger)
        return self.ledger

    def replay(self, claim: Claim, reason: str = "fixed", by: str = "anna") -> bool:
        return self.run(self.redis.replay(claim.digest.hex(), reason, by))

    def discard(self, claim: Claim, reason: str = "not needed", by: str = "anna") -> bool:
        return self.run(self.redis.discard(claim.digest.hex(), reason, by))

    def history(self, claim: Claim) -> list[Entry]:
        return self.run(self.redis.history(claim.digest.hex()))

    def states_of(self, claim: Claim) -> list[tuple[str, int]]:
        return [(entry.state, entry.generation) for entry in self.history(claim)]


class LetterTests(Binding):
    @pytest.fixture(params=list(DEAD_LETTERS))
    def state(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def desk(self, harness: Harness) -> Iterator[Desk]:
        with Desk(harness.open) as desk:
            yield desk

    @pytest.fixture
    def second(self, harness: Harness) -> Iterator[Desk]:
        with Desk(harness.open) as desk:
            yield desk

    def test_the_ledger_has_dead_letters_and_no_inbox(self, desk: Desk) -> None:
        assert isinstance(desk.ledger, DeadLetters)
        assert not isinstance(desk.ledger, Inbox)

    def test_the_next_claim_after_a_replay_is_granted(
        self, harness: Harness, desk: Desk, second: Desk, state: str
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        old = desk.die(claim, DEAD_LETTERS[state])
        assert second.claim(claim) == Settled(DEAD_LETTERS[state])
        assert desk.replay(claim) is True
        assert [second.replay(claim), second.discard(claim)] == [False, False]
        granted = second.grant(claim)
        assert (granted.attempt, granted.takeover) == (1, False)
        assert granted.lease.token > old.lease.token
        assert second.settle(granted, Done(b"1")) is True
        for known in (claim, harness.claim("b", aliases=["x"])):
            assert desk.claim(known) == Settled(Done(b"1"))

    def test_what_is_discarded_leaves_the_list_and_still_answers(
        self, harness: Harness, desk: Desk, second: Desk, state: str
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        desk.die(claim, DEAD_LETTERS[state])
        before = desk.run(desk.redis.counts())[state]
        assert desk.discard(claim) is True
        assert second.entries(claim) == []
        assert desk.run(desk.redis.counts())[state] == before - 1
        assert second.claim(claim) == Settled(DEAD_LETTERS[state])
        assert [second.discard(claim), second.replay(claim)] == [False, False]

    @pytest.mark.parametrize("other", ["unknown", "leased", "waiting", "done"])
    def test_what_is_not_dead_or_uncertain_cannot_be_decided_about(
        self, harness: Harness, desk: Desk, other: str
    ) -> None:
        claim = harness.claim("a")
        endings: dict[str, Ending] = {"waiting": Retry(60), "done": Done(b"1")}
        ending = endings.get(other)
        if other != "unknown":
            granted = desk.grant(claim)
            assert ending is None or desk.settle(granted, ending)
        assert [desk.replay(claim), desk.discard(claim)] == [False, False]
        verdict = desk.claim(claim)
        assert isinstance(verdict, Granted) == (other == "unknown")

    @pytest.mark.parametrize("key", ["", "nonsense", "zz" * 16, "00" * 15, "00" * 17])
    def test_a_malformed_key_is_an_error(self, desk: Desk, key: str) -> None:
        for ask in (desk.redis.replay, desk.redis.discard):
            with pytest.raises(ConfigError, match="hexadecimal"):
                desk.run(ask(key, "why", "who"))

    def test_every_decision_is_kept_with_its_reason(self, harness: Harness, desk: Desk, state: str) -> None:
        claim = harness.claim("a")
        desk.die(claim, DEAD_LETTERS[state], b"1")
        assert desk.states_of(claim) == [(state, 1)]
        assert desk.replay(claim, "the number was wrong", "anna") is True
        assert desk.states_of(claim) == [("replayed", 1)]
        granted = desk.grant(claim)
        assert desk.states_of(claim) == [("leased", 2), ("replayed", 1)]
        assert desk.settle(granted, Reject("again"), b"2") is True
        assert desk.states_of(claim) == [("dead", 2), ("replayed", 1)]
        assert [entry.generation for entry in desk.entries(claim, "dead")] == [2]
        assert desk.discard(claim, 'it\'s "done" – ä\n100 %', "\udcff") is True
        second, first = desk.history(claim)
        assert (second.state, second.generation, second.reason, second.event) == ("discarded", 2, "again", b"2")
        assert (first.state, first.generation, first.event) == ("replayed", 1, b"1")
        assert first.reason == DEAD_LETTERS[state].reason
        assert all(word in first.decision for word in ("replayed", "anna", "number"))
        assert 'it\'s "done" – ä\n100 %' in second.decision

    def test_what_is_done_at_last_has_a_history(self, harness: Harness, desk: Desk) -> None:
        claim = harness.claim("a")
        for _ in range(3):
            desk.die(claim)
            assert desk.replay(claim) is True
        desk.do(claim, b"1")
        assert desk.states_of(claim) == [("done", 4), ("replayed", 3), ("replayed", 2), ("replayed", 1)]
        (done,) = desk.entries(claim)
        assert (done.state, done.generation, done.result) == ("done", 4, b"1")

    def test_two_dead_letters_of_one_key_are_decided_separately(self, harness: Harness, desk: Desk) -> None:
        claim = harness.claim("a")
        desk.die(claim, Reject("first"), b"1")
        harness.advance(harness.retention_ms)
        desk.die(claim, Reject("second"), b"2")
        assert desk.replay(claim) is True
        assert [entry.reason for entry in desk.entries(claim, "dead")] == ["first"]
        assert desk.replay(claim) is True
        assert desk.entries(claim, "dead") == []
        assert desk.replay(claim) is False

    def test_the_dead_letter_of_a_key_that_is_done_is_not_replayed_but_can_be_discarded(
        self, harness: Harness, desk: Desk
    ) -> None:
        claim = harness.claim("a")
        desk.die(claim)
        harness.advance(harness.retention_ms)
        desk.do(claim, b"1")
        assert desk.replay(claim) is False
        assert desk.discard(claim) is True
        assert desk.entries(claim, "dead") == []
        assert desk.is_done(claim, b"1")

    def test_an_alias_with_another_outcome_stays(self, harness: Harness, desk: Desk) -> None:
        old = harness.claim("a", aliases=["x"], alias_retention_ms=harness.unit_ms)
        desk.die(old)
        harness.advance(2 * harness.unit_ms)
        desk.do(harness.claim("b", aliases=["x"]), b"1")
        assert desk.replay(old) is True
        assert desk.is_done(harness.claim("c", aliases=["x"]), b"1")

    def test_a_replay_leaves_a_live_lease_of_the_key(self, harness: Harness, desk: Desk) -> None:
        claim = harness.claim("a")
        desk.die(claim)
        harness.advance(harness.retention_ms)
        granted = desk.grant(claim)
        assert desk.replay(claim) is True
        assert isinstance(desk.claim(claim), Busy)
        assert desk.settle(granted, Done(b"1")) is True

    @pytest.mark.parametrize("decision", ["replayed", "discarded"])
    def test_a_purge_deletes_decided_dead_letters_after_their_retention(
        self, harness: Harness, desk: Desk, decision: str
    ) -> None:
        claim, undecided = harness.claim("a"), harness.claim("b")
        desk.die(undecided)
        desk.die(claim)
        harness.advance(3 * harness.retention_ms)
        assert (desk.replay if decision == "replayed" else desk.discard)(claim) is True
        desk.purge()
        assert desk.states_of(claim) == [(decision, 1)], "the decision was taken just now"
        harness.advance(harness.retention_ms + SWEPT_MS)
        desk.purge()
        assert desk.states_of(claim) == []
        assert len(desk.entries(undecided, "dead")) == 1

    def test_one_of_many_concurrent_decisions_is_recorded(self, harness: Harness, desk: Desk) -> None:
        claim = harness.claim("a")
        desk.die(claim)
        key = claim.digest.hex()

        async def all_at_once() -> list[bool]:
            deciding = [desk.redis.replay(key, "why", "anna") for _ in range(10)]
            return await asyncio.gather(*deciding, *[desk.redis.discard(key, "why", "otto") for _ in range(10)])

        assert desk.run(all_at_once()).count(True) == 1


class TestOneServer(LetterTests, ForceLaws):
    @pytest.fixture
    def harness(self, redis_url: str) -> Harness:
        return harness_on(redis_url)


class TestCluster(LetterTests, ForceLaws):
    @pytest.fixture
    def harness(self, cluster_url: str) -> Harness:
        return harness_on(cluster_url, together="*")
