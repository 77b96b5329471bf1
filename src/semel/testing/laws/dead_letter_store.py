"""Laws of `keep` and `withdraw`: a store for the dead letters of another ledger.

A DeadLetterStore binds them with the harness of its inbox laws.
"""

from __future__ import annotations

from typing import Any

import pytest

from semel.ports import DeadLetterStore, EntryQuery
from semel.testing.harness import Harness, InboxCaller, altered
from semel.testing.laws.catalog import SWEPT_MS
from semel.testing.laws.inbox import InboxBinding
from semel.values.attempts import REASON_MAX, TRIED_MAX, FailedAttempt
from semel.values.claim import Claim, DeadLetter, Granted, Lease, Settlement
from semel.values.event import PLAIN, DecodeOptions
from semel.values.inbox import Finished
from semel.values.outcome import Reject, Uncertain

OUTCOMES: dict[str, Reject | Uncertain] = {"dead": Reject("no"), "uncertain": Uncertain("?")}
READING = DecodeOptions("org", "data.id", "data.type")


class DeadLetterStoreLaws(InboxBinding):
    @pytest.mark.parametrize("state", list(OUTCOMES))
    def test_what_is_kept_is_durable_and_waits_for_a_person(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, state: str
    ) -> None:
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        with InboxCaller(harness.open) as short_lived:
            _keep(short_lived, claim, 7, outcome=OUTCOMES[state], attempts=3)
        (entry,) = other.entries(claim)
        assert (entry.key, entry.state, entry.reason, entry.attempts) == (
            claim.digest.hex(),
            state,
            OUTCOMES[state].reason,
            3,
        )
        assert (entry.handler, entry.text, entry.tenant, entry.event) == (claim.handler, "a", claim.tenant, b"{}")

    def test_what_came_of_each_attempt_is_kept_with_it(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        """The earlier attempts have the times of the other ledger; the last attempt has the time of this store."""
        claim, before = (
            harness.claim("a"),
            (FailedAttempt(1, 1_700_000_000_000, "first – ä"), FailedAttempt(3, 1_700_000_005_000, "")),
        )
        _keep(ledger, claim, 7, outcome=Reject("no " * REASON_MAX), attempts=4, attempt_log=before)
        (entry,) = other.entries(claim)
        *earlier, last = entry.attempt_log
        assert tuple(earlier) == before
        assert (last.attempt, last.reason, len(last.reason)) == (4, ("no " * REASON_MAX)[:499] + "…", REASON_MAX)
        assert harness.is_near(last.at_ms, entry.at_ms)
        assert ledger.discard(claim)
        assert [one.attempt_log for one in ledger.history(claim)] == [entry.attempt_log]
        _keep(ledger, claim, 8, event=None)
        assert [(one.attempt, one.reason) for one in ledger.entries(claim)[0].attempt_log] == [(1, "no")]

    def test_the_first_and_the_newest_attempts_are_kept(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        _keep(
            ledger,
            claim,
            7,
            attempts=21,
            attempt_log=tuple(FailedAttempt(at, 1_700_000_000_000 + at, "no") for at in range(1, 21)),
        )
        (entry,) = ledger.entries(claim)
        assert [one.attempt for one in entry.attempt_log] == [1, *range(23 - TRIED_MAX, 22)]

    def test_a_kept_dead_letter_answers_no_claim(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        _keep(ledger, claim, 7)
        for unknown in (harness.claim("a", fingerprint="2"), harness.claim("b", aliases=["x"])):
            assert isinstance(ledger.claim(unknown), Granted)
        assert len(ledger.entries(claim, "dead")) == 1

    def test_the_same_token_leaves_one_dead_letter(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        claim = harness.claim("a")
        settlement = _settlement(claim, 7)
        _keep_all(ledger, [settlement, settlement])
        _keep_all(other, [settlement])
        assert [entry.event for entry in ledger.entries(claim)] == [b"{}"]

    @pytest.mark.parametrize("decided", [False, True])
    def test_another_event_under_a_reused_token_is_another_dead_letter(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, decided: bool
    ) -> None:
        """A ledger that lost its data may issue the same tokens again, starting with the first."""
        claim = harness.claim("a")
        _keep(ledger, claim, 1, event=b"1")
        if decided:
            assert ledger.discard(claim)
        _keep_all(other, [_settlement(claim, 1, event=b"2"), _settlement(claim, 1, event=b"2")])
        waiting = [b"2"] if decided else [b"1", b"2"]
        assert sorted(entry.event or b"" for entry in ledger.entries(claim, "dead")) == waiting
        _withdraw(ledger, claim, 1)
        assert [entry.event for entry in ledger.entries(claim, "dead")] == waiting[:-1]

    @pytest.mark.parametrize("decision", ["replayed", "discarded"])
    def test_the_same_token_is_not_kept_again_after_a_decision(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller, decision: str
    ) -> None:
        claim = harness.claim("a")
        _keep(ledger, claim, 7)
        assert (other.replay if decision == "replayed" else other.discard)(claim) is True
        _keep(ledger, claim, 7)
        assert ledger.entries(claim, "dead") == []
        _finish_replays(ledger, claim)

    def test_an_event_that_waits_already_stays_one_dead_letter(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        """The first holder vanished before its settle. Its dead letter may also arrive after the second one."""
        claim = harness.claim("a")
        _keep(ledger, claim, 7, outcome=Reject("first"))
        _keep(other, claim, 9, outcome=Uncertain("second"), attempts=2)
        _keep(ledger, claim, 8, outcome=Reject("late"))
        assert [(e.state, e.reason, e.attempts) for e in ledger.entries(claim)] == [("uncertain", "second", 2)]

    def test_another_event_of_the_key_is_another_dead_letter(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        for token, event in ((7, b"1"), (9, b"2"), (8, b"3"), (10, None)):
            _keep(ledger, claim, token, event=event)
        assert sorted(str(entry.event) for entry in ledger.entries(claim, "dead")) == ["None", "b'1'", "b'2'", "b'3'"]

    def test_a_new_failure_after_a_decision_is_another_dead_letter_whatever_its_token(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        """A ledger that lost its data may issue lower tokens than before."""
        claim = harness.claim("a")
        _keep(ledger, claim, 7)
        ledger.replay(claim)
        _finish_replays(ledger, claim)
        _keep(ledger, claim, 3)
        (entry,) = ledger.entries(claim, "dead")
        assert entry.generation == 2

    def test_a_dead_letter_of_this_ledger_is_left_alone(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        ledger.die(claim, Reject("its own"))
        _keep(ledger, claim, 10**9)
        assert len(ledger.entries(claim, "dead")) == 2
        _withdraw(ledger, claim, 10**9)
        assert [entry.reason for entry in ledger.entries(claim, "dead")] == ["its own"]

    # ----------------------------------------------------------------------------------------------------- withdraw

    def test_a_withdrawn_dead_letter_leaves_no_trace(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        claim, neighbour = harness.claim("a"), harness.claim("b")
        _keep(ledger, claim, 7)
        _keep(ledger, neighbour, 7)
        _withdraw(other, claim, 7)
        _withdraw(other, claim, 7)
        assert ledger.history(claim) == []
        assert len(ledger.entries(neighbour, "dead")) == 1
        _keep(ledger, claim, 7)
        assert len(ledger.entries(claim, "dead")) == 1

    @pytest.mark.parametrize("token", [6, 8])
    def test_only_what_was_kept_under_exactly_this_lease_is_withdrawn(
        self, harness: Harness, ledger: InboxCaller, token: int
    ) -> None:
        claim = harness.claim("a")
        _keep(ledger, claim, 7)
        _withdraw(ledger, claim, token)
        assert len(ledger.entries(claim, "dead")) == 1

    def test_a_decision_is_not_withdrawn(self, harness: Harness, ledger: InboxCaller) -> None:
        claim = harness.claim("a")
        _keep(ledger, claim, 7)
        ledger.discard(claim)
        _withdraw(ledger, claim, 7)
        assert ledger.states_of(claim) == [("discarded", 1)]

    # ----------------------------------------------------------------------------------------------------- decisions

    def test_a_replay_brings_the_event_to_its_handler_alone(
        self, harness: Harness, ledger: InboxCaller, other: InboxCaller
    ) -> None:
        claim = harness.claim("a", aliases=["x"])
        _keep(ledger, claim, 7, event=b"1", decode_options=READING)
        assert [other.replay(claim), ledger.replay(claim)] == [True, False]
        (taken,) = [one for one in ledger.take_all({claim.handler: 1000}, 60_000) if one.tenant == claim.tenant]
        assert (taken.event, taken.decode_options, taken.only) == (b"1", READING, claim.handler)
        assert ledger.states_of(claim) == [("accepted", 2), ("replayed", 1)]
        assert ledger.finish(Finished(taken)) is True

    @pytest.mark.parametrize("event", [None, b"{}"])
    def test_what_a_handler_elsewhere_gave_up_goes_nowhere(
        self, harness: Harness, ledger: InboxCaller, event: bytes | None
    ) -> None:
        claim = harness.claim("a")
        _keep(ledger, claim, 7, event=event, decode_options=DecodeOptions(foreign=True))
        assert ledger.replay(claim) is True
        assert ledger.states_of(claim) == [("replayed", 1)]

    def test_purge_keeps_what_waits_for_a_person_and_forgets_what_was_decided(
        self, harness: Harness, ledger: InboxCaller
    ) -> None:
        claim, decided = harness.claim("a"), harness.claim("b")
        _keep(ledger, claim, 7)
        _keep(ledger, decided, 8)
        ledger.discard(decided)
        harness.advance(2 * harness.retention_ms + (SWEPT_MS if harness.clock else 0))
        for _ in range(3):  # a purge that stopped in the middle starts again
            ledger.purge()
        assert ledger.states_of(claim) == [("dead", 1)]
        assert ledger.states_of(decided) == []

    def test_many_are_kept_at_once(self, harness: Harness, ledger: InboxCaller) -> None:
        claims = harness.claims(501)
        _keep_all(ledger, [_settlement(claim, at + 1) for at, claim in enumerate(claims)])
        before = ledger.run(ledger.store.entries(EntryQuery("dead", 1000, tenant=harness.namespace)))
        assert {entry.key for entry in before} == {claim.digest.hex() for claim in claims}
        ledger.run(_dead_letter_store(ledger).withdraw([Lease(claim, at + 1) for at, claim in enumerate(claims)]))
        assert ledger.run(ledger.store.entries(EntryQuery("dead", 1000, tenant=harness.namespace))) == []

    @pytest.mark.parametrize("words", ["\x00", "\udcff half a character", "ä" * 2000], ids=["nul", "half", "long"])
    def test_any_words_can_be_a_reason(self, harness: Harness, ledger: InboxCaller, words: str) -> None:
        claim = altered(harness.claim("a"), text="a \U0001f4de")
        _keep(ledger, claim, 7, outcome=Reject(words))
        (entry,) = ledger.entries(claim, "dead")
        assert entry.text == claim.text


def _dead_letter_store(clerk: InboxCaller) -> DeadLetterStore:
    assert isinstance(clerk.ledger, DeadLetterStore)
    return clerk.ledger


def _settlement(
    claim: Claim,
    token: int,
    *,
    outcome: Reject | Uncertain | None = None,
    event: bytes | None = b"{}",
    attempts: int = 1,
    decode_options: DecodeOptions = PLAIN,
    attempt_log: tuple[FailedAttempt, ...] = (),
) -> Settlement:
    dead_letter = None if event is None else DeadLetter(event, attempts, decode_options, attempt_log)
    return Settlement(Lease(claim, token), outcome or Reject("no"), dead_letter)


def _keep_all(clerk: InboxCaller, settlements: list[Settlement]) -> None:
    clerk.run(_dead_letter_store(clerk).keep(settlements))


def _keep(
    clerk: InboxCaller,
    claim: Claim,
    token: int,
    *,
    outcome: Reject | Uncertain | None = None,
    event: bytes | None = b"{}",
    attempts: int = 1,
    decode_options: DecodeOptions = PLAIN,
    attempt_log: tuple[FailedAttempt, ...] = (),
) -> None:
    about: dict[str, Any] = {
        "outcome": outcome,
        "event": event,
        "attempts": attempts,
        "decode_options": decode_options,
        "attempt_log": attempt_log,
    }
    _keep_all(clerk, [_settlement(claim, token, **about)])


def _withdraw(clerk: InboxCaller, claim: Claim, token: int) -> None:
    clerk.run(_dead_letter_store(clerk).withdraw([Lease(claim, token)]))


def _finish_replays(clerk: InboxCaller, claim: Claim) -> None:
    for taken in clerk.take_all({claim.handler: 1000}, 60_000):
        if taken.tenant == claim.tenant:
            assert clerk.finish(Finished(taken)) is True
