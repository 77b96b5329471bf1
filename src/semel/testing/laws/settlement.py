"""Laws of `settle` and `renew`, and of the attempt log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semel.ports import Entry
from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import Binding
from semel.values.attempts import REASON_MAX, TRIED_MAX
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Lease, Settled, Settlement
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain

ENDINGS: tuple[Ending, ...] = (Done(b"2"), Reject("late"), Uncertain("late"), Retry(3600), Release())
FINAL: tuple[Done | Reject | Uncertain, ...] = (Done(b"1"), Reject("no"), Uncertain("?"))


def _named(ending: object) -> str:
    return type(ending).__name__.lower()


class SettleLaws(Binding):
    @pytest.mark.parametrize("ending", ENDINGS, ids=_named)
    def test_a_stale_owner_can_change_nothing(
        self, harness: Harness, ledger: Caller, other: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        stale = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        current = other.grant(claim)
        before = other.claim(claim)
        assert ledger.settle(stale, ending, b"{}") is False
        assert ledger.renew(stale.lease) == [False]
        after = other.claim(claim)
        assert isinstance(before, Busy)
        assert isinstance(after, Busy)
        assert harness.is_near(after.after_ms, before.after_ms)
        assert other.settle(current, Done(b"1")) is True
        assert ledger.settle(stale, ending, b"{}") is False
        assert ledger.renew(stale.lease) == [False]
        assert other.is_done(claim, b"1")

    def test_the_token_of_another_key_is_nobodys(self, harness: Harness, ledger: Caller) -> None:
        """This also holds in one batch in which each token is the current one of another key."""
        one, two = harness.claim("a"), harness.claim("b")
        first, second = ledger.grant(one), ledger.grant(two)
        crossed = [Lease(one, second.lease.token), Lease(two, first.lease.token)]
        for ending in (Done(), Reject("no"), Retry(0), Release()):
            assert ledger.settle_all([Settlement(lease, ending) for lease in crossed]) == [False, False]
        assert ledger.renew(*crossed) == [False, False]
        assert all(isinstance(verdict, Busy) for verdict in ledger.claim_all([one, two]))
        assert ledger.settle_all([Settlement(first.lease, Done()), Settlement(second.lease, Done())]) == [True, True]

    def test_a_stale_owner_finds_the_same_outcome_of_another_not_its_own(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        claim = harness.claim("a")
        stale = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        other.do(claim, b"1")
        assert ledger.settle(stale, Done(b"1")) is False

    @pytest.mark.parametrize("ending", ENDINGS, ids=_named)
    def test_the_token_of_another_key_can_change_nothing(
        self, harness: Harness, ledger: Caller, ending: Ending
    ) -> None:
        granted = ledger.grant(harness.claim("a"))
        other_key = Granted(type(granted.lease)(harness.claim("b"), granted.lease.token), 1, False, 0)
        assert ledger.settle(other_key, ending) is False
        assert ledger.renew(other_key.lease) == [False]
        assert isinstance(ledger.claim(harness.claim("a")), Busy)
        ledger.grant(harness.claim("b"))

    @pytest.mark.parametrize("outcome", [*FINAL, Retry(20)], ids=_named)
    def test_settling_twice_with_the_same_token_finds_it_settled(
        self, harness: Harness, ledger: Caller, other: Caller, outcome: Ending
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        assert ledger.settle(granted, outcome, b"{}") is True
        known = ledger.claim(claim)
        assert [ledger.settle(granted, outcome, b"{}"), other.settle(granted, outcome, b"{}")] == [True, True]
        again = ledger.claim(claim)
        assert type(again) is type(known)
        if isinstance(known, Settled):
            assert again == known

    def test_settling_twice_does_not_lengthen_the_retention(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.do(claim)
        harness.advance(harness.retention_ms // 2)
        assert ledger.settle(granted, Done()) is True
        harness.advance(harness.retention_ms // 2)
        ledger.grant(claim)

    @pytest.mark.parametrize("first", FINAL, ids=_named)
    @pytest.mark.parametrize("second", ENDINGS, ids=_named)
    def test_a_final_outcome_stays(
        self, harness: Harness, ledger: Caller, first: Done | Reject | Uncertain, second: Ending
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        assert ledger.settle(granted, first, b"{}") is True
        assert ledger.settle(granted, second, b"{}") is False
        assert ledger.renew(granted.lease) == [False]
        assert ledger.claim(claim) == Settled(first)

    @pytest.mark.parametrize("second", [*FINAL, Release()], ids=_named)
    def test_a_key_waiting_for_a_retry_cannot_be_settled_by_the_old_token(
        self, harness: Harness, ledger: Caller, second: Ending
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        assert ledger.settle(granted, Retry(harness.unit_ms / 1000)) is True
        assert ledger.settle(granted, second) is False
        assert ledger.renew(granted.lease) == [False]
        assert isinstance(ledger.claim(claim), Busy)
        harness.advance(harness.unit_ms)
        assert ledger.settle(granted, second) is False
        assert ledger.grant(claim).attempt == 2

    def test_settling_after_the_lease_lapsed_but_before_a_takeover_still_counts(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        harness.advance(2 * harness.lease_ms)
        assert ledger.settle(granted, Done(b"1")) is True
        assert ledger.is_done(claim, b"1")

    def test_leases_belong_to_their_tokens_not_to_the_object(self, harness: Harness, other: Caller) -> None:
        claim = harness.claim("a")
        with Caller(harness.open) as short_lived:
            granted = short_lived.grant(claim)
        assert isinstance(other.claim(claim), Busy)
        assert other.renew(granted.lease) == [True]
        assert other.settle(granted, Done(b"1")) is True

    # ---------------------------------------------------------------------------------------------------- batches

    def test_batches_of_every_size_are_settled_in_order(self, harness: Harness, ledger: Caller) -> None:
        for count in harness.batches:
            claims = harness.claims(count, f"one of {count},")
            granted = [verdict for verdict in ledger.claim_all(claims) if isinstance(verdict, Granted)]
            outcomes = [(Done(b"%d" % at), Reject(f"{at}"), Uncertain(f"{at}"))[at % 3] for at in range(count)]
            pairs = list(zip(granted, outcomes, strict=True))
            assert ledger.settle_all([Settlement(one.lease, outcome) for one, outcome in pairs]) == [True] * count
            assert ledger.claim_all(claims) == [Settled(outcome) for outcome in outcomes]

    def test_lost_leases_in_a_batch_do_not_keep_the_others_back(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        claims = harness.claims(6)
        stale = [ledger.grant(claim) for claim in claims]
        harness.advance(harness.lease_ms)
        taken = [other.grant(claim) for claim in claims[:3]]
        endings: list[Ending] = [Done(b"1"), Retry(0), Release()]
        answers = ledger.settle_all(
            [Settlement(one.lease, ending) for one, ending in zip(stale, endings * 2, strict=True)]
        )
        assert answers == [False] * 3 + [True] * 3
        assert other.renew(*[one.lease for one in taken]) == [True] * 3
        assert [type(verdict) for verdict in ledger.claim_all(claims[3:])] == [Settled, Granted, Granted]

    def test_of_two_different_outcomes_in_one_batch_one_counts(self, harness: Harness, ledger: Caller) -> None:
        pairs: list[tuple[Done | Reject, Ending]] = [
            (Done(b"1"), Done(b"2")),
            (Done(b"1"), Reject("no")),
            (Reject(""), Retry(0)),
        ]
        for at, (one, two) in enumerate(pairs):
            claim = harness.claim(f"key {at}")
            lease = ledger.grant(claim).lease
            assert ledger.settle_all([Settlement(lease, one), Settlement(lease, two)]) == [True, False]
            assert ledger.claim(claim) == Settled(one)

    def test_of_a_retry_and_a_final_outcome_in_one_batch_one_counts(self, harness: Harness, ledger: Caller) -> None:
        lease = ledger.grant(harness.claim("a")).lease
        kept = ledger.settle_all([Settlement(lease, Retry(0)), Settlement(lease, Done(b"1"))])
        assert sorted(kept) == [False, True]

    def test_the_same_outcome_twice_in_one_batch_is_true_twice(self, harness: Harness, ledger: Caller) -> None:
        lease = ledger.grant(harness.claim("a")).lease
        assert ledger.settle_all([Settlement(lease, Done(b"1"))] * 2) == [True, True]

    # ------------------------------------------------------------------------------------------ retry and release

    def test_retry_keeps_the_key_busy_for_its_delay(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a")
        delay_ms = 20 * harness.unit_ms  # longer than the lease
        assert ledger.settle(ledger.grant(claim), Retry(delay_ms / 1000, "not yet")) is True
        busy = other.claim(claim)
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, delay_ms)
        harness.advance(12 * harness.unit_ms)
        assert isinstance(other.claim(claim), Busy)
        harness.advance(8 * harness.unit_ms)
        second = other.grant(claim)
        assert (second.attempt, second.takeover) == (2, False)

    @pytest.mark.parametrize("after", [None, 0, 0.0001])
    def test_a_retry_without_delay_is_due_at_once(self, harness: Harness, ledger: Caller, after: float | None) -> None:
        claim = harness.claim("a")
        for attempt in range(1, 4):
            granted = ledger.grant(claim)
            assert (granted.attempt, granted.takeover) == (attempt, False)
            assert ledger.settle(granted, Retry(after)) is True
            harness.advance(1)

    def test_release_takes_the_claim_back_with_its_attempt(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", fingerprint="1")
        for _ in range(3):
            granted = ledger.grant(claim)
            assert (granted.attempt, granted.takeover) == (1, False)
            assert ledger.settle(granted, Release()) is True
        other_payload = ledger.grant(harness.claim("a", fingerprint="2"))
        assert other_payload.attempt == 1

    def test_release_keeps_the_attempts_before(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.settle(ledger.grant(claim), Retry(0))
        for _ in range(3):
            granted = ledger.grant(claim)
            assert (granted.attempt, granted.takeover) == (2, False)
            assert ledger.settle(granted, Release()) is True

    def test_release_keeps_the_knowledge_of_a_takeover(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        for _ in range(3):
            granted = ledger.grant(claim)
            assert (granted.attempt, granted.takeover) == (2, True)
            assert ledger.settle(granted, Release()) is True

    def test_releasing_twice_takes_back_one_claim(self, harness: Harness, ledger: Caller) -> None:
        """After a lost reply and a retry, the ledger still reports that a holder vanished."""
        claim = harness.claim("a")
        for attempts_before in (1, 2):
            ledger.grant(claim)
            harness.advance(harness.lease_ms)
            taken = ledger.grant(claim)
            assert taken.attempt == attempts_before + 1
            assert ledger.settle(taken, Release()) is True
            ledger.settle(taken, Release())  # either answer is right
            again = ledger.grant(claim)
            assert (again.attempt, again.takeover) == (attempts_before + 1, True)
            assert ledger.settle(again, Release()) is True

    @pytest.mark.parametrize("ending", ENDINGS[:-1], ids=_named)
    @pytest.mark.parametrize("before", ["nothing", "a retry", "a crash"])
    def test_a_released_token_can_change_nothing(
        self, harness: Harness, ledger: Caller, before: str, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        if before == "a retry":
            ledger.settle(ledger.grant(claim), Retry(0))
        if before == "a crash":
            ledger.grant(claim)
            harness.advance(harness.lease_ms)
        released = ledger.grant(claim)
        assert ledger.settle(released, Release()) is True
        assert ledger.settle(released, ending) is False
        assert ledger.renew(released.lease) == [False]
        again = ledger.grant(claim)
        assert (again.attempt, again.takeover) == (released.attempt, released.takeover)

    # ------------------------------------------------------------------------------------------------------ renew

    def test_renew_extends_a_lease_by_its_full_length_from_now(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        for _ in range(3):
            harness.advance(6 * harness.unit_ms)
            assert ledger.renew(granted.lease) == [True]
        busy = ledger.claim(claim)
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, harness.lease_ms)
        harness.advance(harness.lease_ms)
        assert ledger.grant(claim).attempt == 2

    def test_a_lapsed_lease_can_be_renewed_before_another_claim(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        harness.advance(2 * harness.lease_ms)
        assert ledger.renew(granted.lease) == [True]
        assert isinstance(ledger.claim(claim), Busy)

    def test_renew_answers_each_lease_by_itself(self, harness: Harness, ledger: Caller) -> None:
        lost = ledger.grant(harness.claim("lost"))
        harness.advance(harness.lease_ms)
        ledger.grant(harness.claim("lost"))
        kept, done = ledger.grant(harness.claim("kept")), ledger.do(harness.claim("done"))
        assert ledger.renew(lost.lease, kept.lease, done.lease, kept.lease) == [False, True, False, True]
        assert ledger.is_done(harness.claim("done"))

    def test_renew_holds_the_alias_too(self, harness: Harness, ledger: Caller) -> None:
        granted = ledger.grant(harness.claim("a", aliases=["x"]))
        harness.advance(6 * harness.unit_ms)
        assert ledger.renew(granted.lease) == [True]
        harness.advance(6 * harness.unit_ms)
        assert isinstance(ledger.claim(harness.claim("b", aliases=["x"])), Busy)


# Laws of the attempt log: an entry shows each failed attempt.


class TryLaws(Binding):
    def test_failed_attempts_are_listed_oldest_first(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        claim = harness.claim("a", fingerprint="1")
        _try(ledger, claim, Retry(0, "ValueError: first"))
        assert _attempts(ledger, claim) == ("waiting", [(1, "ValueError: first")])
        harness.advance(2)
        granted = other.grant(claim)
        assert _attempts(ledger, claim) == ("leased", [(1, "ValueError: first")])
        assert other.settle(granted, Retry(0, "second – ä")) is True
        assert _attempts(other, claim) == ("waiting", [(1, "ValueError: first"), (2, "second – ä")])
        harness.advance(2)
        _try(ledger, claim, Reject("gave up"))
        all_three = [(1, "ValueError: first"), (2, "second – ä"), (3, "gave up")]
        assert _attempts(other, claim) == ("dead", all_three)
        attempt_log = _entry(ledger, claim).attempt_log
        assert attempt_log[0].at_ms < attempt_log[1].at_ms < attempt_log[2].at_ms
        assert all(harness.is_near(one.at_ms, attempt_log[0].at_ms + 2 * at) for at, one in enumerate(attempt_log))

    @pytest.mark.parametrize("ending", [Reject("no"), Uncertain("no")], ids=["dead", "uncertain"])
    def test_an_event_that_is_given_up_at_once_was_tried_once(
        self, harness: Harness, ledger: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, ending)
        entry = _entry(ledger, claim)
        assert [(one.attempt, one.reason) for one in entry.attempt_log] == [(1, "no")]
        assert harness.is_near(entry.attempt_log[0].at_ms, entry.at_ms)

    def test_what_succeeds_at_once_has_none(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        assert _attempts(ledger, claim) == ("leased", [])
        ledger.settle(granted, Done())
        assert _attempts(ledger, claim) == ("done", [])

    @pytest.mark.parametrize("result", [b"null", b'{"n":1}'])
    def test_what_succeeds_at_last_answers_as_if_it_had_at_once(
        self, harness: Harness, ledger: Caller, result: bytes
    ) -> None:
        """The earlier attempts are either purged or listed in full."""
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        _try(ledger, claim, Retry(0, "first"))
        ledger.do(claim, result)
        assert ledger.is_done(claim, result)
        assert ledger.is_done(harness.claim("b", aliases=["x"]), result)
        entry = _entry(ledger, claim)
        assert (entry.state, entry.attempts, entry.result) == ("done", 2, result)
        assert [one.reason for one in entry.attempt_log] in ([], ["first"])

    def test_an_attempt_whose_holder_vanished_leaves_a_gap(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        _try(ledger, claim, Reject("third"))
        assert _attempts(ledger, claim) == ("dead", [(1, "first"), (3, "third")])

    def test_a_claim_that_is_taken_back_was_no_attempt(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Release())
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Release())
        assert _attempts(ledger, claim)[1] == [(1, "first")]
        _try(ledger, claim, Uncertain("second"))
        assert _attempts(ledger, claim) == ("uncertain", [(1, "first"), (2, "second")])

    def test_the_doubt_about_a_lapsed_lease_keeps_what_was_tried_before(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        _try(ledger, claim, Release())
        _try(ledger, claim, Reject("third"))
        assert _attempts(ledger, claim)[1] == [(1, "first"), (3, "third")]

    @pytest.mark.parametrize("ending", [Retry(0, "again"), Reject("again")], ids=["retry", "dead"])
    def test_a_repeated_settle_is_logged_once(
        self, harness: Harness, ledger: Caller, other: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        settlement = Settlement(granted.lease, ending, None if isinstance(ending, Retry) else DeadLetter(b"{}", 1))
        assert ledger.settle_all([settlement, settlement]) == [True, True]
        assert other.settle_all([settlement]) == [True]
        assert _attempts(ledger, claim)[1] == [(1, "again")]

    @pytest.mark.parametrize("ending", [Retry(0, "late"), Reject("late")], ids=["retry", "dead"])
    def test_a_stale_owner_adds_nothing(self, harness: Harness, ledger: Caller, other: Caller, ending: Ending) -> None:
        claim = harness.claim("a")
        stale = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        current = other.grant(claim)
        assert ledger.settle(stale, ending, b"{}") is False
        assert _attempts(ledger, claim) == ("leased", [])
        assert other.settle(current, Retry(0, "second")) is True
        assert ledger.settle(stale, ending, b"{}") is False
        assert _attempts(ledger, claim) == ("waiting", [(2, "second")])

    def test_the_first_and_the_newest_attempts_are_listed(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=1000 * harness.unit_ms)
        last = TRIED_MAX + 4
        for attempt in range(1, last):
            _try(ledger, claim, Retry(0, f"attempt {attempt}"))
            assert len(_entry(ledger, claim).attempt_log) == min(attempt, TRIED_MAX)
        _try(ledger, claim, Reject(f"attempt {last}"))
        kept = [1, *range(last - TRIED_MAX + 2, last + 1)]
        assert _attempts(ledger, claim) == ("dead", [(attempt, f"attempt {attempt}") for attempt in kept])

    @pytest.mark.parametrize("ending", [Retry, Reject], ids=["retry", "dead"])
    def test_a_long_reason_is_cut_between_characters(
        self, harness: Harness, ledger: Caller, ending: type[Retry] | type[Reject]
    ) -> None:
        claim, words = harness.claim("a"), "ä\U0001f4de" * REASON_MAX
        _try(ledger, claim, Retry(0, words) if ending is Retry else Reject(words))
        (one,) = _entry(ledger, claim).attempt_log
        assert one.reason == words[: REASON_MAX - 1] + "…"

    @pytest.mark.parametrize("words", ["", "\x00", "\udcff half a character", "line\nline"], ids=repr)
    def test_any_words_can_be_the_reason_of_an_attempt(self, harness: Harness, ledger: Caller, words: str) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, words))
        _try(ledger, claim, Reject(words))
        assert [one.attempt for one in _entry(ledger, claim).attempt_log] == [1, 2]

    def test_attempts_go_on_under_an_alias(self, harness: Harness, ledger: Caller) -> None:
        _try(ledger, harness.claim("a", aliases=["x"]), Retry(0, "first"))
        known = harness.claim("b", aliases=["x", "y"])
        _try(ledger, known, Retry(0, "second"))
        assert _attempts(ledger, known) == ("waiting", [(1, "first"), (2, "second")])
        _try(ledger, harness.claim("c", aliases=["y"]), Reject("third"))
        assert _attempts(ledger, harness.claim("c"))[1] == [(1, "first"), (2, "second"), (3, "third")]

    def test_attempts_of_ordered_events_are_listed(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", subject="s", position=1)
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Reject("second"))
        assert _attempts(ledger, claim) == ("dead", [(1, "first"), (2, "second")])

    def test_in_one_batch_each_key_has_its_own(self, harness: Harness, ledger: Caller) -> None:
        claims = [*harness.claims(20), harness.claim("alias", aliases=["x"]), harness.claim("place", subject="s")]
        for turn in ("first", "second"):
            verdicts = [ledger.grant(claim) for claim in claims]
            endings = [Done() if claim.text == "key 3" else Retry(0, f"{turn} {claim.text}") for claim in claims]
            pairs = zip(verdicts, endings, strict=True)
            assert all(ledger.settle_all([Settlement(granted.lease, ending) for granted, ending in pairs]))
            claims = [claim for claim in claims if claim.text != "key 3"]
        for claim in claims:
            failed = [(1, f"first {claim.text}"), (2, f"second {claim.text}")]
            assert _attempts(ledger, claim) == ("waiting", failed)

    @pytest.mark.parametrize("ending", [Done(), Reject("no"), Retry(0, "no")], ids=["done", "dead", "waiting"])
    def test_a_new_life_begins_with_none(self, harness: Harness, ledger: Caller, ending: Ending) -> None:
        claim = harness.claim("a", aliases=["x"])
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, ending)
        harness.advance(harness.retention_ms + (60_000 if harness.clock else 2))
        for _ in range(3):
            ledger.purge()
        assert ledger.grant(claim).attempt == 1
        assert [list(e.attempt_log) for e in ledger.entries(claim, "leased")] == [[]]

    def test_the_attempt_log_starts_empty_after_the_retention_also_without_a_purge(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Done())
        harness.advance(harness.retention_ms)
        _try(ledger, claim, Retry(0, "another life"))
        (entry,) = ledger.entries(claim, "waiting")
        assert [(one.attempt, one.reason) for one in entry.attempt_log] == [(1, "another life")]


def _try(ledger: Caller, claim: Claim, ending: Ending) -> None:
    granted = ledger.grant(claim)
    assert ledger.settle(granted, ending, b"{}" if isinstance(ending, Reject | Uncertain) else None) is True


def _entry(ledger: Caller, claim: Claim) -> Entry:
    (entry,) = [entry for entry in ledger.entries(claim) if entry.key == claim.digest.hex()]
    return entry


def _attempts(ledger: Caller, claim: Claim) -> tuple[str, Sequence[tuple[int, str]]]:
    entry = _entry(ledger, claim)
    return entry.state, [(one.attempt, one.reason) for one in entry.attempt_log]
