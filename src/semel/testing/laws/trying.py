"""Laws of `Entry.tried`: what a person can see of each attempt that failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from semel.ports import Entry
from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import Binding
from semel.values.claim import Claim, DeadLetter, Settlement
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.tried import REASON_MAX, TRIED_MAX


class TryLaws(Binding):
    def test_each_failed_attempt_is_told_the_oldest_first(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        claim = harness.claim("a", fingerprint="1")
        _try(ledger, claim, Retry(0, "ValueError: first"))
        assert _told(ledger, claim) == ("waiting", [(1, "ValueError: first")])
        harness.advance(2)
        granted = other.grant(claim)
        assert _told(ledger, claim) == ("leased", [(1, "ValueError: first")])
        assert other.settle(granted, Retry(0, "second – ä")) is True
        assert _told(other, claim) == ("waiting", [(1, "ValueError: first"), (2, "second – ä")])
        harness.advance(2)
        _try(ledger, claim, Reject("gave up"))
        all_three = [(1, "ValueError: first"), (2, "second – ä"), (3, "gave up")]
        assert _told(other, claim) == ("dead", all_three)
        tried = _entry(ledger, claim).tried
        assert tried[0].at_ms < tried[1].at_ms < tried[2].at_ms
        assert all(harness.is_near(one.at_ms, tried[0].at_ms + 2 * at) for at, one in enumerate(tried))

    @pytest.mark.parametrize("ending", [Reject("no"), Uncertain("no")], ids=["dead", "uncertain"])
    def test_an_event_that_is_given_up_at_once_was_tried_once(
        self, harness: Harness, ledger: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, ending)
        entry = _entry(ledger, claim)
        assert [(one.attempt, one.reason) for one in entry.tried] == [(1, "no")]
        assert harness.is_near(entry.tried[0].at_ms, entry.at_ms)

    def test_what_succeeds_at_once_has_none(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        assert _told(ledger, claim) == ("leased", [])
        ledger.settle(granted, Done())
        assert _told(ledger, claim) == ("done", [])

    @pytest.mark.parametrize("result", [b"null", b'{"n":1}'])
    def test_what_succeeds_at_last_answers_as_if_it_had_at_once(
        self, harness: Harness, ledger: Caller, result: bytes
    ) -> None:
        """How often it was tried before is forgotten, or told in full."""
        claim = harness.claim("a", fingerprint="1", aliases=["x"])
        _try(ledger, claim, Retry(0, "first"))
        ledger.do(claim, result)
        assert ledger.is_done(claim, result)
        assert ledger.is_done(harness.claim("b", aliases=["x"]), result)
        entry = _entry(ledger, claim)
        assert (entry.state, entry.attempts, entry.result) == ("done", 2, result)
        assert [one.reason for one in entry.tried] in ([], ["first"])

    def test_an_attempt_whose_holder_vanished_leaves_a_gap(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        _try(ledger, claim, Reject("third"))
        assert _told(ledger, claim) == ("dead", [(1, "first"), (3, "third")])

    def test_a_claim_that_is_taken_back_was_no_attempt(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Release())
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Release())
        assert _told(ledger, claim)[1] == [(1, "first")]
        _try(ledger, claim, Uncertain("second"))
        assert _told(ledger, claim) == ("uncertain", [(1, "first"), (2, "second")])

    def test_the_doubt_about_a_lapsed_lease_keeps_what_was_tried_before(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        ledger.grant(claim)
        harness.advance(harness.lease_ms)
        _try(ledger, claim, Release())
        _try(ledger, claim, Reject("third"))
        assert _told(ledger, claim)[1] == [(1, "first"), (3, "third")]

    @pytest.mark.parametrize("ending", [Retry(0, "again"), Reject("again")], ids=["retry", "dead"])
    def test_an_end_that_is_told_twice_counts_once(
        self, harness: Harness, ledger: Caller, other: Caller, ending: Ending
    ) -> None:
        claim = harness.claim("a")
        granted = ledger.grant(claim)
        settlement = Settlement(granted.lease, ending, None if isinstance(ending, Retry) else DeadLetter(b"{}", 1))
        assert ledger.settle_all([settlement, settlement]) == [True, True]
        assert other.settle_all([settlement]) == [True]
        assert _told(ledger, claim)[1] == [(1, "again")]

    @pytest.mark.parametrize("ending", [Retry(0, "late"), Reject("late")], ids=["retry", "dead"])
    def test_a_stale_owner_adds_nothing(self, harness: Harness, ledger: Caller, other: Caller, ending: Ending) -> None:
        claim = harness.claim("a")
        stale = ledger.grant(claim)
        harness.advance(harness.lease_ms)
        current = other.grant(claim)
        assert ledger.settle(stale, ending, b"{}") is False
        assert _told(ledger, claim) == ("leased", [])
        assert other.settle(current, Retry(0, "second")) is True
        assert ledger.settle(stale, ending, b"{}") is False
        assert _told(ledger, claim) == ("waiting", [(2, "second")])

    def test_the_first_and_the_newest_attempts_are_told(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", retention_ms=1000 * harness.unit_ms)
        last = TRIED_MAX + 4
        for attempt in range(1, last):
            _try(ledger, claim, Retry(0, f"attempt {attempt}"))
            assert len(_entry(ledger, claim).tried) == min(attempt, TRIED_MAX)
        _try(ledger, claim, Reject(f"attempt {last}"))
        told = [1, *range(last - TRIED_MAX + 2, last + 1)]
        assert _told(ledger, claim) == ("dead", [(attempt, f"attempt {attempt}") for attempt in told])

    @pytest.mark.parametrize("ending", [Retry, Reject], ids=["retry", "dead"])
    def test_a_long_reason_is_cut_between_characters(
        self, harness: Harness, ledger: Caller, ending: type[Retry] | type[Reject]
    ) -> None:
        claim, words = harness.claim("a"), "ä\U0001f4de" * REASON_MAX
        _try(ledger, claim, Retry(0, words) if ending is Retry else Reject(words))
        (one,) = _entry(ledger, claim).tried
        assert one.reason == words[: REASON_MAX - 1] + "…"

    @pytest.mark.parametrize("words", ["", "\x00", "\udcff half a character", "line\nline"], ids=repr)
    def test_any_words_can_be_the_reason_of_an_attempt(self, harness: Harness, ledger: Caller, words: str) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, words))
        _try(ledger, claim, Reject(words))
        assert [one.attempt for one in _entry(ledger, claim).tried] == [1, 2]

    def test_attempts_go_on_under_an_alias(self, harness: Harness, ledger: Caller) -> None:
        _try(ledger, harness.claim("a", aliases=["x"]), Retry(0, "first"))
        known = harness.claim("b", aliases=["x", "y"])
        _try(ledger, known, Retry(0, "second"))
        assert _told(ledger, known) == ("waiting", [(1, "first"), (2, "second")])
        _try(ledger, harness.claim("c", aliases=["y"]), Reject("third"))
        assert _told(ledger, harness.claim("c"))[1] == [(1, "first"), (2, "second"), (3, "third")]

    def test_attempts_of_ordered_events_are_told(self, harness: Harness, ledger: Caller) -> None:
        claim = harness.claim("a", subject="s", position=1)
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Reject("second"))
        assert _told(ledger, claim) == ("dead", [(1, "first"), (2, "second")])

    def test_in_one_batch_each_key_has_its_own(self, harness: Harness, ledger: Caller) -> None:
        claims = [*harness.claims(20), harness.claim("alias", aliases=["x"]), harness.claim("place", subject="s")]
        for turn in ("first", "second"):
            verdicts = [ledger.grant(claim) for claim in claims]
            endings = [Done() if claim.text == "key 3" else Retry(0, f"{turn} {claim.text}") for claim in claims]
            pairs = zip(verdicts, endings, strict=True)
            assert all(ledger.settle_all([Settlement(granted.lease, ending) for granted, ending in pairs]))
            claims = [claim for claim in claims if claim.text != "key 3"]
        for claim in claims:
            told = [(1, f"first {claim.text}"), (2, f"second {claim.text}")]
            assert _told(ledger, claim) == ("waiting", told)

    @pytest.mark.parametrize("ending", [Done(), Reject("no"), Retry(0, "no")], ids=["done", "dead", "waiting"])
    def test_a_new_life_begins_with_none(self, harness: Harness, ledger: Caller, ending: Ending) -> None:
        claim = harness.claim("a", aliases=["x"])
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, ending)
        harness.advance(harness.retention_ms + (60_000 if harness.clock else 2))
        for _ in range(3):
            ledger.purge()
        assert ledger.grant(claim).attempt == 1
        assert [list(e.tried) for e in ledger.entries(claim, "leased")] == [[]]

    def test_a_life_after_the_retention_begins_with_none_also_where_nobody_purged(
        self, harness: Harness, ledger: Caller
    ) -> None:
        claim = harness.claim("a")
        _try(ledger, claim, Retry(0, "first"))
        _try(ledger, claim, Done())
        harness.advance(harness.retention_ms)
        _try(ledger, claim, Retry(0, "another life"))
        (entry,) = ledger.entries(claim, "waiting")
        assert [(one.attempt, one.reason) for one in entry.tried] == [(1, "another life")]


def _try(ledger: Caller, claim: Claim, ending: Ending) -> None:
    granted = ledger.grant(claim)
    assert ledger.settle(granted, ending, b"{}" if isinstance(ending, Reject | Uncertain) else None) is True


def _entry(ledger: Caller, claim: Claim) -> Entry:
    (entry,) = [entry for entry in ledger.entries(claim) if entry.key == claim.digest.hex()]
    return entry


def _told(ledger: Caller, claim: Claim) -> tuple[str, Sequence[tuple[int, str]]]:
    entry = _entry(ledger, claim)
    return entry.state, [(one.attempt, one.reason) for one in entry.tried]
