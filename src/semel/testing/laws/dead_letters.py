"""Laws of `replay` and `discard`: the decisions of an operator about dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

import pytest

from semel.ports import Catalog, DeadLetters, Entry, EntryQuery, Ledger
from semel.testing.harness import Caller, Harness, InboxCaller, arrival, lane, of_handler
from semel.testing.laws.binding import Binding
from semel.testing.laws.catalog import SWEPT_MS
from semel.testing.laws.inbox import WAITS, InboxBinding
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement, Stale, Verdict
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions
from semel.values.inbox import Finished, GivenUp, Taken
from semel.values.outcome import Done, Ending, Reject, Retry, Uncertain

OUTCOMES: dict[str, Reject | Uncertain] = {"dead": Reject("no"), "uncertain": Uncertain("?")}
READING = DecodeOptions("org", "data.id", "data.type")


class DeadLetterLaws(InboxBinding):
    @pytest.fixture(params=list(OUTCOMES))
    def state(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    # ------------------------------------------------------------------------------------------------------- replay

    def test_a_replay_brings_the_event_to_its_handler_alone(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str
    ) -> None:
        claim = harness.claim("a")
        ledger.die(claim, OUTCOMES[state], b"1", READING)
        assert other.replay(claim) is True
        taken = _taken(ledger, claim)
        assert (taken.event, taken.decode_options, taken.tenant) == (b"1", READING, claim.tenant)
        assert (taken.lane, taken.only, taken.lapses) == (claim.handler, claim.handler, 0)

    @pytest.mark.parametrize("event", [None, b"{}"])
    def test_what_a_handler_elsewhere_gave_up_goes_nowhere_and_its_next_claim_is_granted(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str, event: bytes | None
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.die(claim, OUTCOMES[state], event, DecodeOptions(foreign=True))
        before = ledger.run(ledger.store.depths())
        assert other.replay(claim) is True
        assert ledger.run(ledger.store.depths()) == before
        assert other.replay(claim) is False
        granted = other.grant(claim)
        assert (granted.attempt, granted.takeover) == (1, False)
        assert other.settle(granted, Done(b"1")) is True
        assert ledger.claim(claim) == Settled(Done(b"1"))

    def test_the_old_record_does_not_answer_the_claim_of_a_replay(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        old = ledger.die(claim, OUTCOMES[state])
        assert ledger.replay(claim) is True
        granted = other.grant(claim)
        assert (granted.attempt, granted.takeover) == (1, False)
        assert granted.lease.token > old.lease.token
        assert other.settle(granted, Done(b"1")) is True
        for known in (claim, harness.claim("b", aliases=["x"])):
            assert other.claim(known) == Settled(Done(b"1"))
        assert _finish(ledger, _taken(ledger, claim)) is True
        assert ledger.accept(arrival(harness, claim)) == "duplicate: done"

    def test_a_redelivery_of_what_is_replayed_waits(self, harness: Harness, ledger: InboxCaller, state: str) -> None:
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        ledger.die(claim, OUTCOMES[state])
        ledger.replay(claim)
        for again in (claim, harness.claim("b", aliases=["x"])):
            assert ledger.accept(arrival(harness, again)) == WAITS
        assert ledger.accept(arrival(harness, "a", fingerprint="2")).startswith("conflict: ")
        _finish(ledger, _taken(ledger, claim))

    def test_the_other_handlers_of_the_event_are_left_alone(self, harness: Harness, ledger: InboxCaller) -> None:
        one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
        ledger.put(arrival(harness, one, two))
        taken = ledger.take_one(harness)
        ledger.do(one, b"1")
        ledger.die(two)
        ledger.finish(Finished(taken))
        assert ledger.accept(arrival(harness, one, two)) == "duplicate: dead: no"
        assert ledger.replay(two) is True
        assert ledger.accept(arrival(harness, one, two)) == WAITS
        assert ledger.is_done(one, b"1")
        replayed = _taken(ledger, two)
        assert replayed.only == "two"
        _finish(ledger, replayed)

    def test_a_replay_is_not_finished_with_the_item_that_is_still_taken(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        """An operator replays the event between a worker's settle and finish. The finish does not remove the replay."""
        claim = harness.claim("a")
        ledger.put(arrival(harness, claim, event=b"1"))
        taken = ledger.take_one(harness)
        ledger.die(claim, event=b"1")
        assert other.replay(claim) is True
        assert ledger.finish(Finished(taken)) is True
        assert other.accept(arrival(harness, claim)) == WAITS
        replayed = _taken(other, claim)
        assert replayed.event == b"1"
        _finish(other, replayed)

    def test_a_replay_counts_once(self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str) -> None:
        claim = harness.claim("a")
        ledger.die(claim, OUTCOMES[state])
        assert [ledger.replay(claim), other.replay(claim), ledger.discard(claim)] == [True, False, False]
        _finish(ledger, _taken(ledger, claim))

    @pytest.mark.parametrize("other_state", ["unknown", "leased", "waiting", "done", "accepted"])
    def test_what_is_not_dead_or_uncertain_cannot_be_decided_about(
        self, harness: Harness, ledger: InboxCaller, other_state: str
    ) -> None:
        claim = harness.claim("a")
        match other_state:
            case "leased":
                ledger.grant(claim)
            case "waiting":
                ledger.settle(ledger.grant(claim), Retry(60))
            case "done":
                ledger.do(claim, b"1")
            case "accepted":
                ledger.put(arrival(harness, claim))
        before = ledger.claim(claim) if other_state in ("leased", "waiting", "done") else None
        assert [ledger.replay(claim), ledger.discard(claim)] == [False, False]
        if before is not None:
            assert type(ledger.claim(claim)) is type(before)
        assert ledger.depth(harness) == ((1, 0) if other_state == "accepted" else (0, 0))
        assert _waiting(ledger, claim) == 0

    @pytest.mark.parametrize("key", ["", "nonsense", "abc", "zz" * 16, "00" * 15, "00" * 17])
    def test_a_malformed_key_is_an_error(self, ledger: InboxCaller, key: str) -> None:
        for ask in (ledger.store.replay, ledger.store.discard):
            with pytest.raises(ConfigError, match="hexadecimal"):
                ledger.run(ask(key, "why", "who"))
        with pytest.raises(ConfigError, match="hexadecimal"):
            ledger.run(ledger.store.history(key))

    # ------------------------------------------------------------------------------------------------------ discard

    def test_what_is_discarded_leaves_the_list_and_still_answers(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.die(claim, OUTCOMES[state])
        before = ledger.run(ledger.store.counts())[state]
        assert ledger.discard(claim) is True
        assert other.entries(claim) == []
        assert ledger.run(ledger.store.counts())[state] == before - 1
        assert other.claim(claim) == Settled(OUTCOMES[state])
        assert other.accept(arrival(harness, claim)).startswith(f"duplicate: {state}: ")
        assert [other.discard(claim), other.replay(claim)] == [False, False]
        assert _waiting(ledger, claim) == 0

    # ------------------------------------------------------------------------------------------------------ history

    def test_every_decision_is_kept_with_its_reason(self, harness: Harness, ledger: InboxCaller, state: str) -> None:
        claim = harness.claim("a")
        ledger.die(claim, OUTCOMES[state], b"1")
        assert ledger.states_of(claim) == [(state, 1)]
        harness.advance(2)
        assert ledger.replay(claim, "the number was wrong", "anna") is True
        assert ledger.states_of(claim) == [("accepted", 2), ("replayed", 1)]
        taken = _taken(ledger, claim)
        harness.advance(2)
        granted = ledger.grant(claim)
        assert ledger.states_of(claim)[0] == ("leased", 2)
        ledger.settle(granted, Reject("again"), b"2")
        _finish(ledger, taken)
        assert ledger.states_of(claim) == [("dead", 2), ("replayed", 1)]
        harness.advance(2)
        assert ledger.discard(claim, "not needed", "otto") is True
        second, first = ledger.history(claim)
        assert (second.state, second.generation, second.reason, second.event) == ("discarded", 2, "again", b"2")
        assert (first.state, first.generation, first.event) == ("replayed", 1, b"1")
        assert first.reason == OUTCOMES[state].reason
        for entry, words in (
            (second, ("discarded", "otto", "not needed")),
            (first, ("replayed", "anna", "number")),
        ):
            assert all(word in entry.decision for word in words)

    def test_a_replay_that_dies_again_can_be_replayed_again(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim)
        for generation in (2, 3, 4):
            assert ledger.replay(claim) is True
            taken = _taken(ledger, claim)
            ledger.die(claim, event=taken.event)
            _finish(ledger, taken)
            (entry,) = ledger.entries(claim, "dead")
            assert entry.generation == generation
        assert ledger.states_of(claim) == [("dead", 4), ("replayed", 3), ("replayed", 2), ("replayed", 1)]

    def test_what_is_done_at_last_has_a_history(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim)
        ledger.replay(claim)
        taken = _taken(ledger, claim)
        harness.advance(2)
        ledger.do(claim, b"1")
        _finish(ledger, taken)
        assert ledger.states_of(claim) == [("done", 2), ("replayed", 1)]
        assert ledger.history(claim)[0].result == b"1"
        (done,) = ledger.entries(claim)
        assert (done.state, done.generation) == ("done", 2)

    def test_any_words_can_be_given_as_a_reason(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim)
        assert ledger.discard(claim, reason='it\'s "done" – ä\n100 %', by="\udcff") is True
        (entry,) = ledger.history(claim)
        assert 'it\'s "done" – ä\n100 %' in entry.decision

    # --------------------------------------------------------------------- several dead letters of one key, and time

    def test_an_old_dead_letter_is_replayed_after_its_retention(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim)
        harness.advance(harness.retention_ms + SWEPT_MS if harness.clock else harness.retention_ms)
        ledger.purge()
        assert ledger.replay(claim) is True
        assert ledger.accept(arrival(harness, claim)) == WAITS
        _finish(ledger, _taken(ledger, claim))

    def test_two_dead_letters_of_one_key_are_decided_one_by_one(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim, Reject("first"), b"1")
        harness.advance(harness.retention_ms)
        ledger.die(claim, Reject("second"), b"2")
        assert ledger.replay(claim) is True
        assert [entry.reason for entry in ledger.entries(claim, "dead")] == ["first"]
        assert ledger.replay(claim) is True
        assert ledger.entries(claim, "dead") == []
        assert sorted(_finish_all(ledger, claim)) == [b"1", b"2"]
        assert ledger.replay(claim) is False

    def test_a_key_that_is_done_meanwhile_is_not_replayed_but_its_dead_letter_can_be_discarded(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        claim = harness.claim("a")
        ledger.die(claim)
        harness.advance(harness.retention_ms)
        ledger.do(claim, b"1")
        assert ledger.replay(claim) is False
        assert ledger.is_done(claim, b"1")
        assert ledger.discard(claim) is True
        assert ledger.entries(claim, "dead") == []
        assert ledger.is_done(claim, b"1")

    def test_an_alias_that_has_moved_on_stays(self, harness: Harness, ledger: InboxCaller) -> None:
        old = harness.claim("a", aliases=["x"], alias_retention_ms=harness.unit_ms)
        ledger.die(old)
        harness.advance(2 * harness.unit_ms)
        new = harness.claim("b", aliases=["x"])
        ledger.do(new, b"1")
        assert ledger.replay(old) is True
        assert ledger.is_done(harness.claim("c", aliases=["x"]), b"1")
        _finish(ledger, _taken(ledger, old))

    def test_a_replay_does_not_end_the_current_lease_of_the_key(self, harness: Harness, ledger: InboxCaller) -> None:
        """After the retention a worker runs the event again. The replay of the old dead letter keeps its lease."""
        claim = harness.claim("a")
        ledger.die(claim)
        harness.advance(harness.retention_ms)
        granted = ledger.grant(claim)
        assert ledger.replay(claim) is True
        assert isinstance(ledger.claim(claim), Busy)
        assert ledger.settle(granted, Done(b"1")) is True
        assert ledger.is_done(claim, b"1")
        _finish(ledger, _taken(ledger, claim))

    # -------------------------------------------------------------------------------------- what the inbox gave up

    def test_an_item_that_was_given_up_can_be_replayed(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        one, two = of_handler(harness, "one", "a", "1"), of_handler(harness, "two", "a", "1")
        ledger.put(arrival(harness, one, two, event=b"1", decode_options=READING))
        ledger.take(harness)
        harness.advance(harness.lease_ms)
        ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        key = _dead_key(ledger, harness)
        assert ledger.accept(arrival(harness, one, two)) == "duplicate: dead: no"
        assert ledger.run(ledger.store.replay(key, "fixed", "anna")) is True
        assert other.run(other.store.replay(key, "fixed", "anna")) is False
        assert other.accept(arrival(harness, one, two)) == WAITS
        assert other.accept(arrival(harness, of_handler(harness, "two", "a", "2"))).startswith("conflict: ")
        taken = other.take_one(harness)
        assert (taken.event, taken.decode_options, taken.only, taken.lapses) == (b"1", READING, "", 0)
        assert [entry.state for entry in other.history(one)] == ["accepted"]
        states = [entry.state for entry in other.run(other.store.history(key))]
        assert states == ["accepted", "replayed"]
        assert other.finish(GivenUp(taken, "again")) is True
        assert ledger.run(ledger.store.replay(key, "fixed", "anna")) is True
        assert ledger.finish(Finished(ledger.take_one(harness))) is True
        ledger.put(arrival(harness, one, two))

    def test_an_item_that_was_given_up_can_be_discarded_and_is_still_known(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        claim = harness.claim("a")
        ledger.put(arrival(harness, claim))
        ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        assert [ledger.discard(claim), ledger.discard(claim), ledger.replay(claim)] == [True, False, False]
        assert ledger.entries(claim) == []
        assert ledger.states_of(claim) == [("discarded", 1)]
        assert ledger.accept(arrival(harness, claim)) == "duplicate: dead: no"
        harness.advance(harness.retention_ms)
        ledger.put(arrival(harness, claim))

    def test_a_key_that_both_gave_up_can_be_replayed_by_both(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.put(arrival(harness, claim, event=b"inbox"))
        taken = ledger.take_one(harness)
        ledger.die(claim, event=b"handler")
        ledger.finish(GivenUp(taken, "no"))
        assert len(ledger.entries(claim, "dead")) == 2
        assert [ledger.replay(claim) for _ in range(3)] == [True, True, False]
        assert ledger.entries(claim, "dead") == []
        assert ledger.take_one(harness).event == b"inbox"
        assert _finish_all(ledger, claim) == [b"handler"]

    # -------------------------------------------------------------------------------------------------------- purge

    @pytest.mark.parametrize("decision", ["replayed", "discarded"])
    @pytest.mark.parametrize("by_inbox", [False, True], ids=["handler", "inbox"])
    def test_purge_forgets_what_was_decided_after_its_retention(
        self, harness: Harness, ledger: InboxCaller, decision: str, by_inbox: bool
    ) -> None:
        claim, undecided = harness.claim("a"), harness.claim("b")
        ledger.die(undecided)
        if by_inbox:
            ledger.put(arrival(harness, claim))
            ledger.finish(GivenUp(ledger.take_one(harness), "no"))
        else:
            ledger.die(claim)
        harness.advance(3 * harness.retention_ms)
        assert (ledger.replay if decision == "replayed" else ledger.discard)(claim) is True
        if decision == "replayed":
            _finish(ledger, ledger.take_one(harness) if by_inbox else _taken(ledger, claim))
        _purge(harness, ledger)
        assert ledger.states_of(claim) == [(decision, 1)], "the decision was taken just now"
        harness.advance(harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        _purge(harness, ledger)
        assert ledger.states_of(claim) == []
        assert len(ledger.entries(undecided, "dead")) == 1
        ledger.put(arrival(harness, claim))

    def test_purge_keeps_waiting_inbox_items(self, harness: Harness, ledger: InboxCaller) -> None:
        ledger.put(arrival(harness, "a"))
        harness.advance(3 * harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        _purge(harness, ledger)
        assert ledger.accept(arrival(harness, "a")) == WAITS
        assert ledger.finish(Finished(ledger.take_one(harness))) is True


def _waiting(ledger: InboxCaller, claim: Claim) -> int:
    """The number of items that wait for the handler of a claim. Other tests may share the store and the handler."""
    return len(
        [entry for entry in ledger.history(claim) if entry.state == "accepted" and entry.handler == claim.handler]
    )


def _all_taken(ledger: InboxCaller, claim: Claim) -> list[Taken]:
    taken = ledger.take_all({claim.handler: 1000}, 60_000)
    return [one for one in taken if one.tenant == claim.tenant]


def _taken(ledger: InboxCaller, claim: Claim) -> Taken:
    """The replayed item of a claim, taken for its handler."""
    (taken,) = _all_taken(ledger, claim)
    return taken


def _finish(ledger: InboxCaller, taken: Taken) -> bool:
    return ledger.finish(Finished(taken))


def _finish_all(ledger: InboxCaller, claim: Claim) -> list[bytes]:
    taken = _all_taken(ledger, claim)
    assert all(_finish(ledger, one) for one in taken)
    return [one.event for one in taken]


def _dead_key(ledger: InboxCaller, harness: Harness) -> str:
    (entry,) = ledger.run(ledger.store.entries(EntryQuery("dead", 10, tenant=harness.namespace)))
    assert entry.handler == lane(harness)
    return entry.key


def _purge(harness: Harness, ledger: InboxCaller) -> None:
    for _ in range(3):  # a purge that stopped in the middle starts again
        ledger.purge()


# Laws of `replay(…, force=True)`: an operator runs a finished event again. They need no inbox: every ledger with
# DeadLetters and a Catalog binds them with its harness.

NOT_DONE: dict[str, Ending | None] = {"leased": None, "waiting": Retry(60)}


class ForceLaws(Binding):
    def test_a_finished_event_is_replayed_only_by_force(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        first = ledger.do(claim, b"1")
        assert _replay(other, claim, force=False) is False
        assert ledger.is_done(claim, b"1")
        assert _states_of(ledger, claim) == [("done", 1)]
        harness.advance(2)
        assert _replay(other, claim) is True
        again = ledger.grant(claim)
        assert (again.attempt, again.takeover) == (1, False)
        assert again.lease.token > first.lease.token
        assert ledger.settle(again, Done(b"2")) is True
        for known in (claim, harness.claim("b", aliases=["x"])):
            assert other.claim(known) == Settled(Done(b"2"))

    def test_it_is_kept_with_its_reason_and_what_it_came_to_before(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.do(claim, b'{"n":1}')
        harness.advance(2)
        assert _replay(ledger, claim, "the number was wrong", "anna") is True
        (before,) = _history(ledger, claim)
        assert (before.state, before.generation, before.attempts) == ("replayed", 1, 1)
        assert (before.text, before.handler, before.tenant) == ("a", claim.handler, claim.tenant)
        assert (before.result, before.reason, before.event) == (b'{"n":1}', "", None)
        assert all(word in before.decision for word in ("replayed", "done", "anna", "the number was wrong"))
        harness.advance(2)
        ledger.do(claim)
        now, then = _history(ledger, claim)
        assert (now.state, now.generation, now.result) == ("done", 2, b"null")
        assert then == before
        assert [(entry.state, entry.generation) for entry in ledger.entries(claim)] == [("done", 2)]

    def test_every_call_begins_one_generation(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a")
        for generation in (1, 2, 3):
            ledger.do(claim)
            assert _states_of(ledger, claim)[0] == ("done", generation)
            harness.advance(2)
            assert [_replay(other, claim), _replay(ledger, claim), _replay(ledger, claim, force=False)] == [
                *(True, False, False)
            ]
            harness.advance(2)
        assert _states_of(ledger, claim) == [("replayed", 3), ("replayed", 2), ("replayed", 1)]

    def test_a_replayed_event_is_not_counted_as_done(self, harness: Harness, ledger: Caller) -> None:
        claim, stays = harness.claim("a", aliases=["x"]), harness.claim("b")
        before = _counts(ledger)
        ledger.do(claim)
        ledger.do(stays)
        assert _replay(ledger, claim) is True
        assert ledger.entries(claim) == []
        assert _counts(ledger) == before | {"done": before["done"] + 1}
        assert ledger.is_done(stays)

    def test_another_payload_may_come_then(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(harness.claim("a", fingerprint="1"))
        assert _replay(ledger, harness.claim("a")) is True
        ledger.do(harness.claim("a", fingerprint="2"), b"2")
        assert ledger.is_done(harness.claim("a", fingerprint="2"), b"2")

    def test_of_many_at_once_one_begins_a_generation_and_one_is_granted(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.do(claim, b"1")
        key, store = claim.digest.hex(), _store(ledger)

        async def all_at_once() -> tuple[list[bool], list[Verdict]]:
            asked = [store.replay(key, "why", "anna", force=True) for _ in range(6)]
            claimed = [store.claim([claim]) for _ in range(6)]
            replayed, verdicts = await asyncio.gather(asyncio.gather(*asked), asyncio.gather(*claimed))
            return list(replayed), [verdict for (verdict,) in verdicts]

        replayed, verdicts = ledger.run(all_at_once())
        assert replayed.count(True) == 1
        granted = [verdict for verdict in verdicts if isinstance(verdict, Granted)]
        assert len(granted) <= 1
        assert all(v == Settled(Done(b"1")) or isinstance(v, Busy | Granted) for v in verdicts)
        again = granted[0] if granted else ledger.grant(claim)
        assert ledger.settle(again, Done(b"2")) is True
        assert ledger.is_done(claim, b"2")

    # ------------------------------------------------------------------------------------------------ what is not done

    @pytest.mark.parametrize("state", ["unknown", *NOT_DONE])
    def test_what_is_not_over_is_left_alone(self, harness: Harness, ledger: Caller, state: str) -> None:
        claim = harness.claim("a")
        granted = None if state == "unknown" else ledger.grant(claim)
        if granted is not None and (ending := NOT_DONE[state]) is not None:
            ledger.settle(granted, ending)
        assert _replay(ledger, claim) is False
        if granted is None:
            assert _history(ledger, claim) == []
        else:
            assert _states_of(ledger, claim) == [(state, 1)]
            assert isinstance(ledger.claim(claim), Busy)

    def test_what_is_known_no_more_cannot_be_replayed(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.do(claim)
        harness.advance(harness.retention_ms)
        assert _replay(ledger, claim) is False
        assert ledger.grant(claim).attempt == 1

    @pytest.mark.parametrize("state", list(OUTCOMES))
    def test_a_dead_letter_is_replayed_as_without_force(self, harness: Harness, ledger: Caller, state: str) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), OUTCOMES[state])
        assert [_replay(ledger, claim), _replay(ledger, claim)] == [True, False]
        assert ledger.grant(claim).attempt == 1

    def test_a_discarded_event_is_not_done(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Reject("no"), b"{}")
        assert ledger.run(_store(ledger).discard(claim.digest.hex(), "why", "who")) is True
        assert _replay(ledger, claim) is False
        assert ledger.claim(claim) == Settled(Reject("no"))

    def test_a_dead_letter_of_a_key_that_is_done_meanwhile_is_replayed_with_it(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        lease = ledger.grant(claim).lease
        dead_letter = DeadLetter(
            b"{}", 1, DecodeOptions(foreign=True)
        )  # its handler is elsewhere: a replay goes nowhere
        assert ledger.settle_all([Settlement(lease, Reject("no"), dead_letter)]) == [True]
        harness.advance(harness.retention_ms)
        ledger.do(claim, b"1")
        assert _replay(ledger, claim, force=False) is False
        assert [_replay(ledger, claim), _replay(ledger, claim)] == [True, False]
        assert ledger.entries(claim) == []
        assert [entry.state for entry in _history(ledger, claim)] == ["replayed", "replayed"]
        assert sorted(str(entry.result) for entry in _history(ledger, claim)) == ["None", "b'1'"]
        ledger.do(claim, b"2")
        assert _states_of(ledger, claim)[0][0] == "done"
        assert _states_of(ledger, claim)[0][1] > 1

    # ------------------------------------------------------------------------------------------- aliases and subjects

    def test_an_alias_that_has_moved_on_stays_where_it_is(self, harness: Harness, ledger: Caller) -> None:
        old = harness.claim("a", aliases=["x", "y"], alias_retention_ms=harness.unit_ms)
        ledger.do(old)
        harness.advance(2 * harness.unit_ms)
        ledger.do(harness.claim("b", aliases=["x"]), b"1")
        assert _replay(ledger, old) is True
        assert ledger.is_done(harness.claim("c", aliases=["x"]), b"1")
        ledger.grant(harness.claim("a"))

    def test_an_alias_is_not_the_key(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.do(claim, b"1")
        assert ledger.run(_store(ledger).replay(claim.aliases[0].digest.hex(), "why", "who", force=True)) is False
        assert ledger.is_done(claim, b"1")

    def test_the_newest_of_a_subject_may_happen_again_and_an_older_one_is_stale_still(
        self, harness: Harness, ledger: Caller
    ) -> None:
        older = harness.claim("a", subject="s", position=1)
        newer = harness.claim("b", subject="s", position=2)
        for claim in (older, newer):
            ledger.do(claim)
        assert [_replay(ledger, older), _replay(ledger, newer)] == [True, True]
        assert ledger.claim(older) == Stale(2)
        ledger.do(newer, b"2")
        assert ledger.is_done(newer, b"2")

    # ------------------------------------------------------------------------------------------------------------ time

    def test_purge_keeps_what_was_replayed_for_its_retention(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", aliases=["x"])
        ledger.settle(ledger.grant(claim), Retry(0, "first"))
        ledger.do(claim)
        harness.advance(harness.retention_ms // 2)
        assert _replay(ledger, claim) is True
        _purge_claims(ledger)
        assert _states_of(ledger, claim) == [("replayed", 1)]
        harness.advance(2 * harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        _purge_claims(ledger)
        assert _states_of(ledger, claim) == []
        assert ledger.grant(claim).attempt == 1


class DecidedLedger(Ledger, Catalog, DeadLetters, Protocol):
    """A ledger with every port that these laws need."""


def _store(ledger: Caller) -> DecidedLedger:
    assert isinstance(ledger.ledger, DeadLetters)
    return cast(DecidedLedger, ledger.ledger)


def _replay(ledger: Caller, claim: Claim, reason: str = "again", by: str = "anna", *, force: bool = True) -> bool:
    return ledger.run(_store(ledger).replay(claim.digest.hex(), reason, by, force=force))


def _history(ledger: Caller, claim: Claim) -> Sequence[Entry]:
    return ledger.run(_store(ledger).history(claim.digest.hex()))


def _states_of(ledger: Caller, claim: Claim) -> list[tuple[str, int]]:
    return [(entry.state, entry.generation) for entry in _history(ledger, claim)]


def _counts(ledger: Caller) -> dict[str, int]:
    return ledger.run(_store(ledger).counts())


def _purge_claims(ledger: Caller) -> None:
    for _ in range(3):  # a purge that stopped in the middle starts again
        ledger.purge()
