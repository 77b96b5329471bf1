"""Laws of the ordering guard: `Claim.order`."""

from __future__ import annotations

import pytest

from semel.testing.harness import Caller, Harness
from semel.testing.laws.binding import Binding
from semel.values.claim import Busy, Claim, Granted, Settled, Stale
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain


class OrderLaws(Binding):
    def test_an_event_older_than_the_newest_applied_one_is_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        assert ledger.claim(_at(harness, 4)) == Stale(5)
        ledger.do(_at(harness, 7))
        assert ledger.claim(_at(harness, 6)) == Stale(7)

    def test_an_equal_position_is_not_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        ledger.do(harness.claim("twin", subject="s", position=5))

    @pytest.mark.parametrize("position", [-(2**63), -1, 0, 2**63 - 1])
    def test_positions_have_64_bits(self, harness: Harness, ledger: Caller, position: int) -> None:
        ledger.do(_at(harness, position))
        below = harness.claim("below", subject="s", position=max(position - 1, -(2**63)))
        assert ledger.claim(below) == Stale(position) or position == -(2**63)

    def test_subjects_do_not_disturb_each_other(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        ledger.grant(harness.claim("other", subject="other", position=1))

    def test_two_events_of_one_subject_are_not_granted_at_the_same_time(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        first = ledger.grant(_at(harness, 1))
        busy = other.claim(_at(harness, 2))
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, harness.lease_ms)
        assert isinstance(other.claim(_at(harness, 0)), Busy)
        ledger.settle(first, Done())
        other.grant(_at(harness, 2))

    def test_two_events_of_one_subject_in_one_batch_are_decided_in_order(
        self, harness: Harness, ledger: Caller
    ) -> None:
        verdicts = ledger.claim_all([_at(harness, 2), _at(harness, 1), _at(harness, 2)])
        assert [type(verdict) for verdict in verdicts] == [Granted, Busy, Busy]

    def test_a_settled_event_is_a_duplicate_though_it_is_older(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 1), b"1")
        ledger.do(_at(harness, 2), b"2")
        assert ledger.claim(_at(harness, 1)) == Settled(Done(b"1"))

    @pytest.mark.parametrize(
        "ending", [Retry(0), Reject("no"), Uncertain("?"), Release()], ids=lambda e: type(e).__name__
    )
    def test_a_position_is_applied_only_when_done(self, harness: Harness, ledger: Caller, ending: Ending) -> None:
        assert ledger.settle(ledger.grant(_at(harness, 5)), ending) is True
        ledger.do(_at(harness, 4))
        assert ledger.claim(_at(harness, 3)) == Stale(4)

    def test_a_late_settle_does_not_turn_the_subject_back(self, harness: Harness, ledger: Caller) -> None:
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        ledger.do(_at(harness, 5))
        ledger.settle(slow, Done())
        assert ledger.claim(_at(harness, 4)) == Stale(5)

    def test_a_late_settle_does_not_free_a_subject_that_another_acts_on(
        self, harness: Harness, ledger: Caller, other: Caller
    ) -> None:
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        other.grant(_at(harness, 5))
        ledger.settle(slow, Done())
        assert isinstance(other.claim(_at(harness, 6)), Busy)

    def test_a_retry_that_was_overtaken_is_stale(self, harness: Harness, ledger: Caller) -> None:
        ledger.settle(ledger.grant(_at(harness, 1)), Retry(0))
        ledger.do(_at(harness, 2))
        harness.advance(1)
        assert ledger.claim(_at(harness, 1)) == Stale(2)

    def test_a_vanished_holder_frees_its_subject_when_its_lease_ends(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        second = ledger.grant(_at(harness, 2))
        assert (second.attempt, second.takeover) == (1, False)
        assert isinstance(ledger.claim(_at(harness, 1)), Busy)

    def test_a_renewed_lease_holds_its_subject_too(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        first = ledger.grant(_at(harness, 5))
        harness.advance(harness.lease_ms - 2 * harness.unit_ms)
        assert ledger.renew(first.lease) == [True]
        harness.advance(harness.lease_ms - 2 * harness.unit_ms)
        busy = other.claim(_at(harness, 6))
        assert isinstance(busy, Busy)
        assert harness.is_near(busy.after_ms, 2 * harness.unit_ms)

    def test_whoever_lost_the_subject_cannot_renew(self, harness: Harness, ledger: Caller, other: Caller) -> None:
        """Or two events of one subject would run at the same time."""
        slow = ledger.grant(_at(harness, 1))
        harness.advance(harness.lease_ms)
        current = other.grant(_at(harness, 2))
        assert ledger.renew(slow.lease) == [False]
        assert other.renew(current.lease) == [True]
        other.settle(current, Done())
        assert ledger.renew(slow.lease) == [False]
        other.grant(_at(harness, 3))

    def test_the_newest_position_outlives_a_purge(self, harness: Harness, ledger: Caller) -> None:
        ledger.do(_at(harness, 5))
        harness.advance(harness.retention_ms // 2)
        ledger.purge()
        assert ledger.claim(_at(harness, 4)) == Stale(5)

    def test_a_late_settle_is_applied_though_its_subject_was_purged(self, harness: Harness, ledger: Caller) -> None:
        slow = ledger.grant(_at(harness, 5))
        harness.advance(harness.lease_ms)
        ledger.settle(ledger.grant(_at(harness, 6)), Reject("no"))
        harness.advance(2 * harness.retention_ms)
        ledger.purge()
        assert ledger.settle(slow, Done()) is True
        assert ledger.claim(_at(harness, 4)) == Stale(5)

    def test_a_refused_claim_does_not_take_the_subject(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("held"))
        assert isinstance(ledger.claim(harness.claim("held", subject="s", position=9)), Busy)
        ledger.grant(_at(harness, 1))

    def test_a_doubt_is_told_though_its_event_is_stale_meanwhile(self, harness: Harness, ledger: Caller) -> None:
        ledger.grant(harness.claim("a", subject="s", position=1))
        harness.advance(harness.lease_ms)
        ledger.do(harness.claim("b", subject="s", position=2))
        assert ledger.claim(harness.claim("a", subject="s", position=1)) == Stale(2)
        told = ledger.grant(harness.claim("a", subject="s", position=1, doubt_first=True))
        assert told.takeover
        assert ledger.claim(harness.claim("c", subject="s", position=1, doubt_first=True)) == Stale(2)


def _at(harness: Harness, position: int) -> Claim:
    return harness.claim(f"event {position}", subject="s", position=position)
