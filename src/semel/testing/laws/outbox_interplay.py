"""Laws of an outbox where two things meet: clocks that go back, guards that are freed, words of two providers."""

from __future__ import annotations

import pytest

from semel.testing.clerk import altered
from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import decide, shown, status
from semel.testing.sender import Sender, answered, notification, provider, with_standing
from semel.values import sending
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, Record, Suppressed, Witness
from semel.values.sending import Accepted, Refused, Unknown

REFUSED = Refused("no such number", final=True)


class InterplayLaws(OutboxBinding):
    # ------------------------------------------------------------------------------------------------------- guards

    def test_who_is_refused_leaves_the_guard_to_who_passed_before(self, harness: Harness, ledger: Sender) -> None:
        brief = 2 * harness.unit_ms / 1000
        told = _guarded(harness, "told", brief)
        ledger.add(told)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(2 * harness.unit_ms)
        ledger.add(_guarded(harness, "refused", brief))
        ledger.send(harness, ledger.take_one(harness), REFUSED)
        ledger.add(_guarded(harness, "later"))
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(told.id)], "its window is longer"

    def test_two_who_are_refused_leave_the_guard_to_who_was_sent_before_them(
        self, harness: Harness, ledger: Sender
    ) -> None:
        """The second one of them passed when nobody knew yet what would come of the first."""
        brief = 2 * harness.unit_ms / 1000
        told = _guarded(harness, "told", brief)
        ledger.add(told)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        refused = []
        for key in ("one", "two"):
            harness.advance(2 * harness.unit_ms)
            ledger.add(_guarded(harness, key, brief))
            refused.append(ledger.take_one(harness))
            assert ledger.cross(refused[-1]) == [Crossed()]
        for dispatch in refused:
            assert ledger.answer(harness, dispatch, REFUSED)
        ledger.add(_guarded(harness, "later"))
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(told.id)], "its window is longer"

    def test_a_guard_is_not_left_to_who_was_suppressed_meanwhile(self, harness: Harness, ledger: Sender) -> None:
        brief = 2 * harness.unit_ms / 1000
        ledger.add(_guarded(harness, "refused at first"))
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(max(2_000, 2 * harness.unit_ms))
        again = ledger.take_one(harness)
        passing = _guarded(harness, "passes", brief)
        ledger.add(passing)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        assert ledger.cross(again) == [Suppressed(passing.id)]
        assert ledger.witness(Witness("refused", passing.id)) == ["failed"]
        ledger.add(_guarded(harness, "later"))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()], "nobody was told"

    # ------------------------------------------------------------------------------------------------------- people

    def test_a_person_decides_about_what_a_relay_has_left_behind_when_its_lease_is_over(
        self, harness: Harness, ledger: Sender
    ) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert decide(ledger, said, "given_up") is None, "it may be leaving at this moment"
        harness.advance(harness.lease_ms)
        assert decide(ledger, said, "given_up") == "failed"

    def test_what_was_not_sent_and_is_too_late_is_told_to_who_wants_it_sent(
        self, harness: Harness, ledger: Sender
    ) -> None:
        """Whoever hears "pending" would take it for sent; the relay would let it expire."""
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = sorted(ledger.take(harness), key=lambda dispatch: dispatch.notification.key)
        aged = with_standing(one, sending.aging(one.standing, one.taken_ms + harness.unit_ms))
        ledger.send(harness, aged, Unknown("timeout"))
        harness.advance(2 * harness.unit_ms)
        assert decide(ledger, one.notification, "not_sent") == "expired"
        assert "its time was over" in shown(ledger, one.notification).reason
        assert ledger.cross(two) == [Crossed()], "nobody was told"

    def test_who_was_told_once_is_told_whatever_failed_since(self, harness: Harness, ledger: Sender) -> None:
        """Whoever asks would else tell this customer again."""
        ledger.add(told := notification(harness, "told"))
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(1)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(60)])
        dispatches = ledger.take(harness)
        ledger.cross(*dispatches)
        assert all(ledger.record(*[answered(harness, one, REFUSED) for one in dispatches]))
        assert (status(ledger, told).told, status(ledger, told).id) == ("sent", told.id.hex())

    # ---------------------------------------------------------------------------------------------------- witnesses

    def test_two_providers_that_have_it_may_both_have_sent_it(self, harness: Harness, ledger: Sender) -> None:
        said = notification(harness)
        ledger.add(said)
        dispatch = ledger.take_one(harness)
        two = provider(harness, "two")
        fallback = with_standing(dispatch, altered(dispatch.standing, others=(two,)))
        ledger.send(harness, fallback, REFUSED)
        ledger.send(harness, ledger.take_one(harness, "two"), Accepted())
        assert ledger.witness(Witness("delivered", said.id, provider(harness))) == ["delivered"]
        assert shown(ledger, said).possible_duplicates == 1

    @pytest.mark.parametrize("again", ["a look-up found nothing", "a person said so"])
    def test_a_refusal_says_nothing_of_what_was_sent_after_a_doubt(
        self, harness: Harness, ledger: Sender, again: str
    ) -> None:
        """It may be about the first message, which was there after all. The second one may have been sent."""
        said = notification(harness, guard=Guard(window_s=3600))
        ledger.add(said)
        first = ledger.take_one(harness)
        ledger.send(harness, first, Unknown("timeout"), looks_up=True, settle_s=harness.unit_ms / 1000)
        harness.advance(harness.unit_ms)
        if again == "a person said so":
            assert decide(ledger, said, "not_sent") == "pending"
        else:
            looked = ledger.take_one(harness)
            absent = sending.absent(looked.standing, looked.taken_ms)
            assert ledger.record(Record(looked, absent, "absent", "look-up")) == [True]
        second = ledger.take_one(harness)
        ledger.cross(second)
        assert ledger.witness(Witness("refused", said.id, provider(harness))) == ["sending"]
        assert ledger.answer(harness, second, Unknown("timeout"))
        assert ledger.witness(Witness("refused", said.id, provider(harness))) == ["uncertain"]


class MovedClockLaws(OutboxBinding):
    """Of an outbox whose clock the tests can move: it goes back."""

    def test_a_clock_that_went_back_makes_nobody_a_stranger_to_its_own_guard(
        self, harness: Harness, ledger: Sender
    ) -> None:
        assert harness.clock is not None, "bind RealTimeOutboxLaws to a store with its own clock"
        one, two = _guarded(harness, "n-1"), _guarded(harness, "n-2")
        ledger.add(one, two)
        first, second = ledger.take(harness)
        harness.clock.now_ms -= 5
        ledger.send(harness, first, Refused("busy"))
        harness.advance(2_000)
        again = ledger.take_one(harness)
        assert ledger.cross(again) == [Crossed()]
        assert ledger.answer(harness, again, REFUSED)
        assert ledger.cross(second) == [Crossed()], "nobody was told"

    def test_a_clock_that_went_back_gives_out_slots_all_the_same(self, harness: Harness, ledger: Sender) -> None:
        assert harness.clock is not None, "bind RealTimeOutboxLaws to a store with its own clock"
        ledger.add(*[notification(harness, f"n-{number}") for number in range(20)])
        assert len(ledger.take(harness, per_second=2.0)) == 3
        harness.clock.now_ms -= 3_600_000
        ledger.add(notification(harness, "later"))
        harness.advance(3_000)
        assert [one.notification.key for one in ledger.take(harness, per_second=2.0)] == ["later"]


def _guarded(harness: Harness, key: str, window_s: float = 3_600.0) -> Notification:
    return notification(harness, key, guard=Guard(window_s=window_s))
