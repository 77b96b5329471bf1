"""Laws of waiting notifications: the order of an order key, the rate of a provider, guards, and isolation."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from semel.testing.harness import (
    Harness,
    OutboxCaller,
    altered,
    answered,
    decide,
    keys_of,
    notification,
    people,
    provider,
    released,
    shown,
    status,
    with_delivery_state,
)
from semel.testing.laws.outbox import OutboxBinding
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Refused, Resolution, Unknown
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, DeliveryReport, Dispatch, Lane, NotificationView, Record, Suppressed

MANY = 700  # more than a store reads in one take


class QueueOrderLaws(OutboxBinding):
    def test_of_one_order_key_only_the_oldest_is_taken(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(
            *[notification(harness, f"n-{number}", order="customer", priority=9 - number) for number in range(3)]
        )
        ledger.add(notification(harness, "free", priority=9))
        first, free = sorted(ledger.take(harness), key=lambda one: one.notification.key, reverse=True)
        assert keys_of([first, free]) == ["n-0", "free"]
        assert other.take(harness) == [], "another relay has taken it"
        ledger.record(released(first, due_ms=first.taken_ms + harness.unit_ms))
        assert other.take(harness) == [], "it waits, and so do those behind it"
        harness.advance(harness.unit_ms)
        first = other.take_one(harness)
        other.send(harness, first, Accepted())
        assert keys_of(ledger.take(harness)) == ["n-1"]

    def test_an_order_key_belongs_to_one_tenant(self, harness: Harness, ledger: OutboxCaller) -> None:
        one = notification(harness, order="customer")
        ledger.add(one, altered(one, tenant=f"{harness.namespace} 2"))
        assert len(ledger.take(harness)) == 2

    def test_a_long_queue_does_not_delay_other_notifications(self, harness: Harness, ledger: OutboxCaller) -> None:
        self.queue(harness, ledger)
        ledger.add(notification(harness, "free"))
        assert keys_of(ledger.take(harness, room=1)) == ["free"]
        assert ledger.take(harness, room=1) == []

    def test_the_next_in_order_is_released_when_the_head_is_finished(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        head = self.queue(harness, ledger)
        assert ledger.take(harness, room=1) == other.take(harness, room=1) == [], "they wait behind the head"
        assert shown(ledger, notification(harness, "n-0", order="o")).due_ms > 0, "it has a due time"
        assert decide(other, head.notification, "sent") == "accepted"
        for number in range(3):
            (next_one,) = other.take(harness)
            assert next_one.notification.key == f"n-{number}"
            assert ledger.take(harness) == []
            other.send(harness, next_one, Accepted())
        third, fourth = (notification(harness, f"n-{number}", order="o") for number in (3, 4))
        assert decide(ledger, third, "cancelled") == decide(ledger, fourth, "cancelled") == "cancelled"
        assert keys_of(ledger.take(harness)) == ["n-5"]

    def test_cancelling_in_the_middle_of_a_queue_keeps_its_order(self, harness: Harness, ledger: OutboxCaller) -> None:
        head = self.queue(harness, ledger)
        assert ledger.take(harness, room=1) == []
        assert decide(ledger, notification(harness, "n-1", order="o"), "cancelled") == "cancelled"
        assert ledger.take(harness) == []
        decide(ledger, head.notification, "given_up")
        ledger.send(harness, ledger.take_one(harness), Accepted())
        assert keys_of(ledger.take(harness)) == ["n-2"]

    def queue(self, harness: Harness, ledger: OutboxCaller) -> Dispatch:
        """Add a long queue behind a notification with an unknown outcome."""
        ledger.add(notification(harness, "head", order="o"))
        head = ledger.take_one(harness)
        ledger.send(harness, head, Unknown("timeout"))
        ledger.add(*[notification(harness, f"n-{number}", order="o") for number in range(MANY)])
        return head


class RateLaws(OutboxBinding):
    def test_a_rate_holds_over_all_relays_and_counts_no_attempts(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        per_second = 4.0
        ledger.add(*[notification(harness, f"n-{number}") for number in range(20)])
        began_ms = None
        slots: list[int] = []
        for turn in range(40):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, room=3, per_second=per_second):
                began_ms = began_ms or dispatch.taken_ms
                slots.append(max(dispatch.slot_ms, dispatch.taken_ms))
                assert (dispatch.delivery_state.attempts, dispatch.delivery_state.claims, dispatch.vanished) == (
                    0,
                    0,
                    False,
                )
                relay.send(harness, dispatch, Accepted())
            if len(slots) == 20:
                break
            harness.advance(500)
        assert len(slots) == 20
        seconds = Counter(slot - slots[0] for slot in slots)
        assert max(seconds.values()) == 1, "evenly"
        assert max(slots) - min(slots) >= 19 * 1000 / per_second - 20

    def test_a_rate_is_for_each_tenant(self, harness: Harness, ledger: OutboxCaller) -> None:
        busy = [notification(harness, f"n-{number}") for number in range(30)]
        ledger.add(*busy, altered(busy[0], tenant=f"{harness.namespace} 2"))
        taken: list[str] = []
        for _ in range(8):
            taken += [one.notification.tenant for one in ledger.take(harness, room=5, per_second=1.0)]
        assert f"{harness.namespace} 2" in taken, "a busy tenant does not delay the others"

    def test_a_notification_waiting_for_the_rate_is_not_overtaken(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        """This includes notifications that are added while it waits and relays take continuously."""
        ledger.add(*[notification(harness, f"early {number}") for number in range(8)])
        order: list[str] = []
        for turn in range(60):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, room=2 + turn % 3, per_second=4.0):
                order.append(dispatch.notification.key)
                relay.send(harness, dispatch, Accepted())
            if turn < 8:
                ledger.add(notification(harness, f"late {turn}"))
            if len(order) == 16:
                break
            harness.advance(125)
        assert order == [*[f"early {number}" for number in range(8)], *[f"late {number}" for number in range(8)]]

    def test_a_notification_waiting_for_the_rate_is_not_overtaken_by_its_successors_in_order(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(*[notification(harness, f"n-{number}", order="o", priority=9 - number) for number in range(6)])
        ledger.add(*[notification(harness, f"free {number}") for number in range(6)])
        order: list[str] = []
        for turn in range(60):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, per_second=4.0):
                order.append(dispatch.notification.key)
                relay.send(harness, dispatch, Accepted())
            if len(order) == 12:
                break
            harness.advance(125)
        assert [key for key in order if key.startswith("n-")] == [f"n-{number}" for number in range(6)]
        assert len(order) == 12, "no notification waits forever"

    def test_an_urgent_notification_goes_before_all_that_wait_for_the_rate(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(30)])
        while ledger.take(harness, per_second=4.0):
            pass
        ledger.add(notification(harness, "urgent", priority=0))
        harness.advance(1_000)
        assert keys_of(ledger.take(harness, per_second=4.0))[0] == "urgent"

    def test_lanes_and_relays_that_share_a_provider_share_its_limit(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        """The limit is shared by relays that take by channel or by provider, in any number and at any rate."""
        provider_name = provider(harness)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(15)])
        ledger.add(
            *[notification(harness, f"other {number}", provider=provider(harness, "way")) for number in range(15)]
        )
        slots: list[int] = []
        for turn in range(80):
            lanes = {provider(harness, "way"): Lane(50, provider_name, 10.0)}
            if turn % 3:
                lanes[provider_name] = Lane(2, provider_name, 10.0)
            relay = (ledger, other)[turn % 2]
            taken = relay.run(relay.outbox.take(lanes, 100 * harness.lease_ms))
            slots += [max(dispatch.slot_ms, dispatch.taken_ms) for dispatch in taken]
            if len(slots) == 30:
                break
            harness.advance(100)
        assert len(slots) == 30
        apart = [later - sooner for sooner, later in pairwise(sorted(slots))]
        assert min(apart) >= 99, "ten in a second, and no more"

    def test_waiting_for_the_rate_changes_no_notification(self, harness: Harness, ledger: OutboxCaller) -> None:
        messages = [notification(harness, f"n-{number}") for number in range(10)]
        ledger.add(*messages)
        before = [shown(ledger, one) for one in messages]
        taken = ledger.take(harness, per_second=2.0)
        assert 0 < len(taken) < 10
        waiting = {one.id: one for one in before if one.id not in {each.id.hex() for each in taken}}
        for id, one in waiting.items():
            assert shown(ledger, one.notification) == one, id


# Laws of an outbox where two mechanisms meet: clocks that go back, guards that are freed, reports of two providers.

REFUSED = Refused("no such number", final=True)


class InterplayLaws(OutboxBinding):
    # ------------------------------------------------------------------------------------------------------- guards

    def test_a_refused_notification_returns_the_guard_to_the_one_sent_before_it(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        brief = 2 * harness.unit_ms / 1000
        first_sent = _guarded(harness, "first", brief)
        ledger.add(first_sent)
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(2 * harness.unit_ms)
        ledger.add(_guarded(harness, "refused", brief))
        ledger.send(harness, ledger.take_one(harness), REFUSED)
        ledger.add(_guarded(harness, "later"))
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first_sent.id)], "its window is longer"

    def test_two_refused_notifications_return_the_guard_to_the_one_sent_before_them(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        """The second one passed while the outcome of the first was still open."""
        brief = 2 * harness.unit_ms / 1000
        first_sent = _guarded(harness, "first", brief)
        ledger.add(first_sent)
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
        assert ledger.cross(ledger.take_one(harness)) == [Suppressed(first_sent.id)], "its window is longer"

    def test_a_freed_guard_does_not_return_to_a_suppressed_notification(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        brief = 2 * harness.unit_ms / 1000
        ledger.add(_guarded(harness, "refused at first"))
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(max(2_000, 2 * harness.unit_ms))
        again = ledger.take_one(harness)
        passing = _guarded(harness, "passes", brief)
        ledger.add(passing)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        assert ledger.cross(again) == [Suppressed(passing.id)]
        assert ledger.apply_reports(DeliveryReport("refused", passing.id)) == ["failed"]
        ledger.add(_guarded(harness, "later"))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()], "no message was sent"

    # ------------------------------------------------------------------------------------------------------- people

    def test_a_person_decides_about_what_a_relay_has_left_behind_when_its_lease_is_over(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert decide(ledger, message, "given_up") is None, "it may be leaving at this moment"
        harness.advance(harness.lease_ms)
        assert decide(ledger, message, "given_up") == "failed"

    def test_a_late_decision_not_sent_expires_the_notification(self, harness: Harness, ledger: OutboxCaller) -> None:
        """With the answer "pending" an operator would expect a message that the relay then lets expire."""
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = sorted(ledger.take(harness), key=lambda dispatch: dispatch.notification.key)
        aged = with_delivery_state(one, states.aging(one.delivery_state, one.taken_ms + harness.unit_ms))
        ledger.send(harness, aged, Unknown("timeout"))
        harness.advance(2 * harness.unit_ms)
        assert decide(ledger, one.notification, "not_sent") == "expired"
        assert shown(ledger, one.notification).state == "expired"
        assert ledger.cross(two) == [Crossed()], "no message was sent"

    def test_the_status_is_sent_after_later_failures(self, harness: Harness, ledger: OutboxCaller) -> None:
        """Otherwise the caller would notify this customer again."""
        ledger.add(first_sent := notification(harness, "first"))
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(1)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(60)])
        dispatches = ledger.take(harness)
        ledger.cross(*dispatches)
        assert all(ledger.record(*[answered(harness, one, REFUSED) for one in dispatches]))
        assert (status(ledger, first_sent).answer, status(ledger, first_sent).id) == ("sent", first_sent.id.hex())

    # --------------------------------------------------------------------------------------------- delivery reports

    def test_two_providers_that_have_it_may_both_have_sent_it(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        two = provider(harness, "two")
        fallback = with_delivery_state(dispatch, altered(dispatch.delivery_state, others=(two,)))
        ledger.send(harness, fallback, REFUSED)
        ledger.send(harness, ledger.take_one(harness, "two"), Accepted())
        assert ledger.apply_reports(DeliveryReport("delivered", message.id, provider(harness))) == ["delivered"]
        assert shown(ledger, message).possible_duplicates == 1

    @pytest.mark.parametrize("again", ["a look-up found nothing", "a person decided"])
    def test_a_refusal_does_not_settle_a_message_that_was_resent_after_a_doubt(
        self, harness: Harness, ledger: OutboxCaller, again: str
    ) -> None:
        """The refusal may be about the first message, which did arrive. The second one may have been sent."""
        message = notification(harness, guard=Guard(window_s=3600))
        ledger.add(message)
        first = ledger.take_one(harness)
        ledger.send(harness, first, Unknown("timeout"), looks_up=True, settle_s=harness.unit_ms / 1000)
        harness.advance(harness.unit_ms)
        if again == "a person decided":
            assert decide(ledger, message, "not_sent") == "pending"
        else:
            looked = ledger.take_one(harness)
            absent = states.absent(looked.delivery_state, looked.taken_ms)
            assert ledger.record(Record(looked, absent, "absent", "look-up")) == [True]
        second = ledger.take_one(harness)
        ledger.cross(second)
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness))) == ["sending"]
        assert ledger.answer(harness, second, Unknown("timeout"))
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness))) == ["uncertain"]


class MovedClockLaws(OutboxBinding):
    """Laws for an outbox whose clock the tests can set back."""

    def test_a_notification_passes_its_own_guard_after_the_clock_went_back(
        self, harness: Harness, ledger: OutboxCaller
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
        assert ledger.cross(second) == [Crossed()], "no message was sent"

    def test_a_clock_that_went_back_gives_out_slots_all_the_same(self, harness: Harness, ledger: OutboxCaller) -> None:
        assert harness.clock is not None, "bind RealTimeOutboxLaws to a store with its own clock"
        ledger.add(*[notification(harness, f"n-{number}") for number in range(20)])
        assert len(ledger.take(harness, per_second=2.0)) == 3
        harness.clock.now_ms -= 3_600_000
        ledger.add(notification(harness, "later"))
        harness.advance(3_000)
        assert [one.notification.key for one in ledger.take(harness, per_second=2.0)] == ["later"]

    def test_a_clock_that_went_back_gives_out_no_slot_a_second_time(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        """The test compares the distance of each slot from its take, because no time passes between the two takes."""
        assert harness.clock is not None, "bind RealTimeOutboxLaws to a store with its own clock"
        ledger.add(*[notification(harness, f"n-{number}") for number in range(3)])
        before = [max(one.slot_ms - one.taken_ms, 0) for one in ledger.take(harness, per_second=2.0)]
        harness.clock.now_ms -= 3_600_000
        ledger.add(*[notification(harness, f"later-{number}") for number in range(3)])
        after = [max(one.slot_ms - one.taken_ms, 0) for one in ledger.take(harness, per_second=2.0)]
        assert len(before) == 3
        assert min(after, default=max(before)) >= max(before)


def _guarded(harness: Harness, key: str, window_s: float = 3_600.0) -> Notification:
    return notification(harness, key, guard=Guard(window_s=window_s))


# Laws of isolation: a change to one notification changes no other, also within the same tenant.
#
# `OutboxBystanders` adds notifications of another tenant to every law. These laws use other notifications of the same
# tenant, recipient and provider, which a missing or too wide condition would change first.


def ways(sender: OutboxCaller, message: Notification) -> list[str]:
    """The status of a notification by each kind of query."""
    ask = people(sender).status
    asked = (
        ask(message.tenant, recipient=message.recipient, kind=message.kind),
        ask(message.tenant, recipient=message.recipient),
        ask(message.tenant, key=message.key),
    )
    return [sender.run(one).answer for one in asked]


def uncertain_ones(harness: Harness, ledger: OutboxCaller) -> list[Notification]:
    many = [notification(harness, f"uncertain-{number}") for number in range(3)]
    ledger.add(*many)
    for dispatch in ledger.take(harness):
        ledger.send(harness, dispatch, Unknown("timeout"))
    return many


class BystanderLaws(OutboxBinding):
    @pytest.mark.parametrize("resolution", ["sent", "not_sent", "given_up"])
    def test_a_decision_changes_no_other_notification(
        self, harness: Harness, ledger: OutboxCaller, resolution: Resolution
    ) -> None:
        uncertain = uncertain_ones(harness, ledger)
        waiting = notification(harness, "waiting")
        ledger.add(waiting)
        decided, *others = uncertain
        before = [shown(ledger, one) for one in (*others, waiting)]
        assert decide(ledger, decided, resolution) is not None
        assert [shown(ledger, one) for one in (*others, waiting)] == before
        due = ["uncertain-0", "waiting"] if resolution == "not_sent" else ["waiting"]
        assert sorted(keys_of(ledger.take(harness))) == due, "uncertain notifications are not sent again"

    def test_a_suppressed_notification_ends_no_other(self, harness: Harness, ledger: OutboxCaller) -> None:
        uncertain = uncertain_ones(harness, ledger)
        guarded = [notification(harness, f"guarded-{n}", guard=Guard(window_s=3600)) for n in range(2)]
        free = notification(harness, "free")
        ledger.add(guarded[0])
        ledger.send(harness, ledger.take_one(harness), Accepted())
        ledger.add(guarded[1], free)
        taken = {one.notification.key: one for one in ledger.take(harness)}
        waiting = notification(harness, "waiting")
        ledger.add(waiting)
        others = [*uncertain, waiting, guarded[0]]
        before: list[NotificationView] = [shown(ledger, one) for one in others]
        assert ledger.cross(taken["guarded-1"], taken["free"]) == [Suppressed(guarded[0].id), Crossed()]
        assert [shown(ledger, one) for one in others] == before
        assert ledger.answer(harness, taken["free"], Accepted("r-1")), "its dispatch is still there"
        assert keys_of(ledger.take(harness)) == ["waiting"]

    def test_every_way_of_asking_gives_one_answer(self, harness: Harness, ledger: OutboxCaller) -> None:
        """A notification that was given up may have been sent only if it had crossed."""
        left = notification(harness, "left", recipient="+4915100000001")
        ledger.add(left)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        untried = notification(harness, "untried", recipient="+4915100000002")
        refused = notification(harness, "refused", recipient="+4915100000003")
        ledger.add(untried, refused)
        (dispatch,) = [one for one in ledger.take(harness) if one.notification.key == "refused"]
        ledger.send(harness, dispatch, Refused("no such number", final=True))
        harness.advance(10 * harness.lease_ms)
        for message in (left, untried):
            assert decide(ledger, message, "given_up") == "failed"
        assert ways(ledger, left) == ["unknown"] * 3
        assert ways(ledger, untried) == ["not_sent"] * 3
        assert ways(ledger, refused) == ["not_sent"] * 3
