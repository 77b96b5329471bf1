"""Laws of an outbox: adding, taking, crossing, recording answers, and delivery reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from semel.ports import Ledger
from semel.testing.bystanders import OutboxBystanders, watch
from semel.testing.harness import (
    Harness,
    OutboxCaller,
    altered,
    answered,
    contract,
    keys_of,
    notification,
    overdue,
    people,
    provider,
    released,
    shown,
    with_delivery_state,
)
from semel.testing.laws.binding import Binding
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Refused, Reported, Unknown
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification
from semel.values.outbox import (
    Crossed,
    DeliveryReport,
    Dispatch,
    Held,
    Lane,
    Lost,
    NotificationQuery,
    Record,
    Suppressed,
)


class OutboxBinding(Binding):
    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        purges = request.function.__qualname__.startswith(
            "PurgeLaws."
        )  # they purge finished notifications of every tenant
        return watch(OutboxBystanders(harness, finished=not purges), partial(OutboxCaller, open_ledger))

    @pytest.fixture
    def ledger(self, harness: Harness) -> Iterator[OutboxCaller]:
        with OutboxCaller(harness.open) as sender:
            yield sender

    @pytest.fixture
    def other(self, harness: Harness) -> Iterator[OutboxCaller]:
        """Another relay on the same store."""
        with OutboxCaller(harness.open) as sender:
            yield sender


class AddLaws(OutboxBinding):
    def test_an_added_notification_is_taken_unchanged(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(
            harness,
            body={"text": "é – 漢字 \U0001f4de", "n": 1},
            subject="s",
            sender="+490",
            template="t",
            data={"b": None, "a": [1]},
            not_after=datetime(2100, 1, 1, tzinfo=UTC),
            priority=2,
            order="customer-1",
            guard=Guard(window_s=60, key="g"),
            policy="resend",
            generation=3,
        )
        (added,) = ledger.add(message)
        assert (added.id, added.status) == (message.id.hex(), "added")
        dispatch = other.take_one(harness)
        assert (dispatch.id, dispatch.notification, dispatch.content) == (message.id, message, message.content)
        assert dispatch.delivery_state.state == "pending"
        assert (dispatch.delivery_state.policy, dispatch.delivery_state.not_after_ms) == ("resend", 4_102_444_800_000)
        assert dispatch.token > 0

    @pytest.mark.parametrize("listed", [False, True])
    def test_what_is_no_list_of_notifications_is_refused_with_what_to_write(
        self, harness: Harness, ledger: OutboxCaller, listed: bool
    ) -> None:
        """Passing a single notification instead of a list is a common mistake."""
        wrong: Any = [notification(harness), "order-2"] if listed else notification(harness)
        with pytest.raises(ConfigError, match=r"await app\.outbox\.add\(\[Notification\("):
            ledger.run(ledger.outbox.add(wrong))
        assert ledger.take(harness) == []

    def test_it_is_known_when_it_was_added(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness))
        harness.advance(harness.unit_ms)
        first = ledger.take_one(harness)
        assert harness.is_near(first.added_ms, first.taken_ms - harness.unit_ms)
        ledger.record(released(first))
        assert ledger.take_one(harness).added_ms == first.added_ms

    def test_an_added_notification_outlives_the_process_that_added_it(
        self, harness: Harness, other: OutboxCaller
    ) -> None:
        with OutboxCaller(harness.open) as short_lived:
            short_lived.add(notification(harness))
        assert keys_of(other.take(harness)) == ["order-1"]

    def test_the_same_call_twice_is_one_notification_and_reported_as_known(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        assert [one.status for one in ledger.add(message, message)] == ["added", "known"]
        assert [(one.status, one.state) for one in other.add(message)] == [("known", "pending")]
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Accepted())
        assert [(one.status, one.state) for one in other.add(message)] == [("known", "accepted")]
        assert other.take(harness) == []

    def test_the_same_key_with_another_content_is_a_conflict(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        first = notification(harness)
        ledger.add(first)
        assert [one.status for one in other.add(notification(harness, body="Something else"))] == ["conflict"]
        assert ledger.take_one(harness).content == first.content

    def test_a_new_generation_is_another_notification(self, harness: Harness, ledger: OutboxCaller) -> None:
        statuses = [one.status for one in ledger.add(notification(harness), notification(harness, generation=2))]
        assert statuses == ["added", "added"]
        assert len(ledger.take(harness)) == 2

    def test_a_large_batch_is_answered_in_order(self, harness: Harness, ledger: OutboxCaller) -> None:
        for size in harness.batches:
            batch = [notification(harness, f"batch-{size}-{number % (size - size // 3)}") for number in range(size)]
            statuses = [one.status for one in ledger.add(*batch)]
            assert statuses == ["added"] * (size - size // 3) + ["known"] * (size // 3)


class OutboxTakeLaws(OutboxBinding):
    def test_a_taken_notification_is_not_taken_twice(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(5)])
        assert len(ledger.take(harness, room=3)) == 3
        assert len(other.take(harness)) == 2
        assert ledger.take(harness) == other.take(harness) == []

    def test_a_lapsed_lease_is_taken_again_with_a_higher_token_and_reported_as_vanished(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        assert not first.vanished
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert second.vanished
        assert second.token > first.token

    def test_what_was_crossed_and_left_behind_is_known_to_have_crossed(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"the bytes")
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert second.vanished
        assert (second.delivery_state.state, second.delivery_state.attempts) == ("sending", 1)
        assert second.request == b"the bytes"

    def test_lanes_that_were_not_asked_for_are_left_alone(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness), notification(harness, "two", provider=provider(harness, "two")))
        assert keys_of(ledger.take(harness)) == ["order-1"]
        assert keys_of(ledger.take(harness, "two")) == ["two"]

    def test_a_notification_without_a_provider_uses_the_lane_of_its_channel(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        ledger.add(notification(harness, provider="", channel="voice"))
        assert ledger.take(harness) == []
        lanes = {"@voice": Lane(1_000, provider(harness))}
        found = [one for one in ledger.run(ledger.outbox.take(lanes, harness.lease_ms)) if _is_ours(harness, one)]
        assert keys_of(found) == ["order-1"]
        assert found[0].delivery_state.provider == ""

    def test_priority_comes_first_and_then_the_longest_due(self, harness: Harness, ledger: OutboxCaller) -> None:
        for number, priority in enumerate([5, 9, 0, 5]):
            ledger.add(notification(harness, f"n-{number}", priority=priority))
            harness.advance(harness.unit_ms)
        assert [keys_of(ledger.take(harness, room=1)) for _ in range(4)] == [["n-2"], ["n-0"], ["n-3"], ["n-1"]]

    def test_a_postponed_notification_is_not_due_before_its_time(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(notification(harness))
        dispatch = ledger.take_one(harness)
        later_ms = dispatch.taken_ms + 5 * harness.unit_ms
        assert ledger.record(released(dispatch, due_ms=later_ms, reason="not now")) == [True]
        assert other.take(harness) == []
        harness.advance(5 * harness.unit_ms)
        again = other.take_one(harness)
        assert (again.vanished, again.delivery_state.reason) == (False, "not now")


def _is_ours(harness: Harness, dispatch: object) -> bool:
    return bool(getattr(dispatch, "notification").tenant == harness.namespace)  # noqa: B009 - a store may be shared


# Laws of `cross`, `record` and `apply_reports`: which message may leave, and its delivery state afterwards.

REFUSED = Refused("no such number", final=True)


class CrossLaws(OutboxBinding):
    def test_an_old_token_may_send_nothing(self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert ledger.cross(first) == [Lost()]
        assert other.cross(second) == [Crossed()]
        assert ledger.cross(first) == [Lost()]

    def test_a_token_crosses_once(self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller) -> None:
        ledger.add(notification(harness, guard=Guard(window_s=3600)))
        dispatch = ledger.take_one(harness)
        assert ledger.cross(dispatch, dispatch) == [Crossed(), Lost()], "the caller may have sent it already"
        assert ledger.cross(dispatch) == [Lost()]
        harness.advance(harness.lease_ms)
        assert other.cross(other.take_one(harness)) == [Lost()], (
            "the outcome of the first attempt must be recorded first"
        )

    def test_a_dispatch_that_was_given_back_may_not_cross(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness))
        dispatch = ledger.take_one(harness)
        ledger.record(released(dispatch))
        assert ledger.cross(dispatch) == [Lost()]

    def test_a_retry_sends_the_bytes_of_the_first_try(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"first")
        ledger.answer(harness, first, Refused("busy"))
        harness.advance(2_000)
        second = ledger.take_one(harness)
        assert (second.request, second.delivery_state.attempts) == (b"first", 1)
        ledger.cross(second, request=b"second")
        ledger.answer(harness, second, Refused("busy"))
        harness.advance(4_000)
        assert ledger.take_one(harness).request == b"first"

    def test_another_provider_has_a_request_of_its_own(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        two = provider(harness, "two")
        ledger.record(released(first, others=(two,)))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"for one")
        ledger.answer(harness, first, REFUSED)
        second = ledger.take_one(harness, "two")
        assert (second.delivery_state.provider, second.request) == (two, None)
        assert second.content == first.content

    # ------------------------------------------------------------------------------------------------------- guards

    def test_in_one_window_one_notification_crosses(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        first, second = _guarded(harness, "n-1"), _guarded(harness, "n-2")
        ledger.add(first, second)
        one, two = sorted(ledger.take(harness), key=lambda dispatch: dispatch.notification.key)
        assert ledger.cross(one) == [Crossed()]
        assert other.cross(two) == [Held(one.id)], "the outcome of the first is still open"
        ledger.answer(harness, one, Accepted())
        assert other.cross(two) == [Suppressed(one.id)]
        assert [added.state for added in ledger.add(second)] == ["suppressed"]
        harness.advance(harness.lease_ms)
        assert ledger.take(harness) == [], "it is finished, also after the lease of its relay"

    def test_two_of_one_guard_in_one_batch_are_decided_in_order(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        assert ledger.cross(one, two) == [Crossed(), Held(one.id)]

    def test_an_uncertain_notification_suppresses_too(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, Unknown("timeout"))
        assert ledger.cross(two) == [Suppressed(one.id)], "it may have been sent"

    def test_a_final_refusal_lets_the_next_notification_through(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, REFUSED)
        assert ledger.cross(two) == [Crossed()]

    def test_the_window_slides(self, harness: Harness, ledger: OutboxCaller) -> None:
        window_s = 20 * harness.unit_ms / 1000
        ledger.add(_guarded(harness, "n-1", window_s))
        ledger.send(harness, ledger.take_one(harness), Accepted())
        harness.advance(12 * harness.unit_ms)
        ledger.add(_guarded(harness, "n-2", window_s))
        (verdict,) = ledger.cross(ledger.take_one(harness))
        assert isinstance(verdict, Suppressed)
        harness.advance(8 * harness.unit_ms)
        ledger.add(_guarded(harness, "n-3", window_s))
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()], "the suppressed one does not count"

    def test_a_guard_lets_its_own_notification_through_again(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(_guarded(harness, "n-1"))
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        assert ledger.cross(ledger.take_one(harness)) == [Crossed()]

    @pytest.mark.parametrize("other_than", [{"recipient": "+492"}, {"kind": "reminder"}, {"tenant": "another"}])
    def test_a_guard_watches_nothing_else(
        self, harness: Harness, ledger: OutboxCaller, other_than: dict[str, str]
    ) -> None:
        window = Guard(window_s=3600)
        ledger.add(notification(harness, "n-1", guard=window), notification(harness, "n-2", guard=window, **other_than))
        one, two = ledger.take(harness)
        assert ledger.cross(one, two) == [Crossed(), Crossed()]


class RecordLaws(OutboxBinding):
    def test_an_old_token_can_record_nothing(self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        first = ledger.take_one(harness)
        ledger.cross(first)
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert not ledger.answer(harness, first, Accepted())
        assert [one.state for one in ledger.add(message)] == ["sending"]
        assert other.record(released(second, state="uncertain", exit="", due_ms=0)) == [True]
        assert not ledger.answer(harness, first, REFUSED)
        assert [one.state for one in ledger.add(message)] == ["uncertain"]

    def test_the_same_record_twice_is_written_once(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        record = answered(harness, dispatch, Accepted("r-1"))
        assert [ledger.record(record), other.record(record)] == [[True], [True]]
        assert [one.state for one in ledger.add(message)] == ["accepted"]

    @pytest.mark.parametrize(
        ("answer", "state"),
        [(Accepted("r"), "accepted"), (REFUSED, "failed"), (Unknown("?"), "uncertain"), (Refused("busy"), "pending")],
    )
    def test_a_state_is_what_the_relay_concluded(
        self, harness: Harness, ledger: OutboxCaller, answer: Accepted | Refused | Unknown, state: str
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), answer)
        assert [one.state for one in ledger.add(message)] == [state]

    def test_what_is_held_is_never_due_and_what_has_an_exit_is_when_it_comes(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        ledger.add(notification(harness, "held"), notification(harness, "looked up"))
        for dispatch in ledger.take(harness):
            looks_up = dispatch.notification.key == "looked up"
            ledger.send(harness, dispatch, Unknown("?"), looks_up=looks_up, settle_s=harness.unit_ms / 1000)
        assert ledger.take(harness) == []
        harness.advance(harness.unit_ms)
        again = ledger.take_one(harness)
        assert (again.notification.key, again.delivery_state.exit, again.vanished) == ("looked up", "look_up", False)

    def test_a_finished_notification_is_never_taken_again(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(2)])
        one, two = ledger.take(harness)
        ledger.send(harness, one, Accepted())
        ledger.send(harness, two, REFUSED)
        harness.advance(10 * harness.lease_ms)
        assert ledger.take(harness) == other.take(harness) == []

    def test_a_repeated_record_without_an_attempt_is_confirmed(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness))
        record = released(ledger.take_one(harness), state="expired", reason="too late")
        assert [ledger.record(record), ledger.record(record)] == [[True], [True]]

    def test_of_two_records_of_one_token_in_a_batch_the_first_counts(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        both = [answered(harness, dispatch, answer) for answer in (Unknown("timeout"), Accepted("r-1"))]
        assert ledger.record(*both) == [True, True]
        assert [one.state for one in ledger.add(message)] == ["uncertain"]

    def test_a_batch_with_one_old_token_writes_the_others(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.cross(one, two)
        harness.advance(harness.lease_ms)
        (taken,) = other.take(harness, room=1)
        mine = [answered(harness, dispatch, Accepted()) for dispatch in (one, two)]
        assert ledger.record(*mine) == [dispatch.id != taken.id for dispatch in (one, two)]


class DeliveryReportLaws(OutboxBinding):
    def test_a_report_moves_a_state_up_or_not_at_all(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Accepted("r-1"))
        order: list[Reported] = ["undelivered", "accepted", "delivered", "undelivered", "accepted"]
        found_states = [other.apply_reports(DeliveryReport(reported, message.id))[0] for reported in order]
        assert found_states == ["undelivered", "undelivered", "delivered", "delivered", "delivered"]

    def test_a_message_is_known_by_its_providers_own_id(self, harness: Harness, ledger: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        reference = f"r-{harness.namespace}"
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        mine = provider(harness)
        assert ledger.apply_reports(DeliveryReport("delivered", None, mine, reference)) == ["delivered"]
        assert ledger.apply_reports(DeliveryReport("delivered", None, "another provider", reference)) == [None]
        assert ledger.apply_reports(DeliveryReport("delivered", None, mine, "")) == [None]
        assert ledger.apply_reports(DeliveryReport("delivered", b"\0" * 16)) == [None]

    @pytest.mark.parametrize("reported", ["accepted", "delivered", "undelivered"])
    def test_a_report_resolves_an_uncertain_notification(
        self, harness: Harness, ledger: OutboxCaller, reported: Reported
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Unknown("timeout"), looks_up=True, settle_s=harness.unit_ms / 1000)
        assert ledger.apply_reports(DeliveryReport(reported, message.id, evidence="callback")) == [reported]
        harness.advance(harness.lease_ms)
        assert ledger.take(harness) == [], "there is nothing to look up any more"

    def test_it_counts_while_a_relay_still_waits_for_the_answer(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        message = notification(harness)
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        ledger.cross(dispatch)
        assert other.apply_reports(DeliveryReport("delivered", message.id)) == ["delivered"]
        ledger.answer(harness, dispatch, Unknown("timeout"))
        assert [one.state for one in ledger.add(message)] == ["delivered"], (
            "a delivery report outweighs an unknown answer"
        )

    def test_a_refusal_lets_the_next_one_of_its_guard_through(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(_guarded(harness, "n-1"), _guarded(harness, "n-2"))
        one, two = ledger.take(harness)
        ledger.send(harness, one, Unknown("timeout"))
        assert ledger.apply_reports(DeliveryReport("refused", one.id)) == ["failed"]
        assert ledger.cross(two) == [Crossed()]

    def test_a_refusal_by_one_provider_does_not_settle_a_message_at_another(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness, guard=Guard(window_s=3600))
        ledger.add(message)
        dispatch = ledger.take_one(harness)
        fallback = with_delivery_state(dispatch, altered(dispatch.delivery_state, others=(provider(harness, "two"),)))
        ledger.send(harness, fallback, Refused("no such number", final=True))
        second = ledger.take_one(harness, "two")
        ledger.cross(second)
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness))) == ["sending"]
        assert ledger.answer(harness, second, Unknown("timeout"), name="two")
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness))) == ["uncertain"]
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness, "two"))) == ["failed"]

    def test_a_refusal_of_a_resent_message_does_not_settle_the_first_attempt(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        message = notification(harness, policy="resend")
        ledger.add(message)
        overdue(harness, ledger)
        ledger.cross(ledger.take_one(harness))
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness))) == ["sending"]

    def test_a_report_stops_a_retry(self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller) -> None:
        message = notification(harness)
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        harness.advance(2_000)
        again = ledger.take_one(harness)
        assert other.apply_reports(DeliveryReport("accepted", message.id)) == ["accepted"]
        assert ledger.cross(again) == [Lost()]


def _guarded(harness: Harness, key: str, window_s: float = 3_600.0) -> Notification:
    return notification(harness, key, guard=Guard(window_s=window_s))


# Laws of provider references: which message a reference identifies, and when it is ambiguous.


def found(harness: Harness, dispatch: Dispatch, reference: str, name: str = "one") -> Record:
    """The record that a relay writes after a successful look-up."""
    terms = contract(harness, name, looks_up=True, settle_s=harness.unit_ms / 1000)
    otherwise = states.unclear(dispatch.delivery_state, "another's message", terms, dispatch.taken_ms, lambda: 0.0)
    delivery_state = states.found(dispatch.delivery_state, reference)
    return Record(dispatch, delivery_state, "accepted", "look-up", reference, otherwise)


def looking(harness: Harness, sender: OutboxCaller, *keys: str, name: str = "one") -> list[Dispatch]:
    """Notifications with an unknown outcome, taken by a relay for a look-up."""
    provider_name = provider(harness, name)
    sender.add(*[notification(harness, key, provider=provider_name) for key in keys])
    settle_s = harness.unit_ms / 1000
    for dispatch in sender.take(harness, name):
        sender.send(harness, dispatch, Unknown("timeout"), looks_up=True, settle_s=settle_s)
    harness.advance(harness.unit_ms)
    taken = {one.notification.key: one for one in sender.take(harness, name)}
    return [taken[key] for key in keys]


class ReferenceLaws(OutboxBinding):
    def test_a_message_found_by_a_look_up_is_accepted(self, harness: Harness, ledger: OutboxCaller) -> None:
        (doubtful,) = looking(harness, ledger, "n-1")
        assert ledger.record(found(harness, doubtful, f"r-{harness.namespace}")) == [True]
        after = shown(ledger, doubtful.notification)
        assert (after.state, after.attempts[-1].reference) == ("accepted", f"r-{harness.namespace}")

    def test_a_look_up_that_finds_the_message_of_another_proves_nothing(
        self, harness: Harness, ledger: OutboxCaller, other: OutboxCaller
    ) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "sent"))
        theirs = ledger.take_one(harness)
        ledger.send(harness, theirs, Accepted(reference))
        (doubtful,) = looking(harness, other, "n-1")
        assert other.record(found(harness, doubtful, reference)) == [True]
        after = shown(ledger, doubtful.notification)
        assert after.state == "uncertain"
        assert (after.attempts[-1].outcome, after.attempts[-1].reference) == ("unclear", "")
        assert theirs.id.hex() in after.attempts[-1].evidence
        assert reference in after.attempts[-1].evidence
        assert other.record(found(harness, doubtful, reference)) == [True], "the same record is confirmed again"
        harness.advance(harness.lease_ms)
        (again,) = other.take(harness)
        assert (again.delivery_state.exit, again.delivery_state.looks) == ("look_up", 1)
        assert ledger.apply_reports(DeliveryReport("delivered", None, provider(harness), reference)) == ["delivered"]
        assert shown(ledger, theirs.notification).state == "delivered"

    def test_of_two_look_ups_that_find_one_message_the_first_has_it(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        one, two = looking(harness, ledger, "n-1", "n-2")
        reference = f"r-{harness.namespace}"
        assert ledger.record(*[found(harness, each, reference) for each in (one, two)]) == [True, True]
        found_states = [shown(ledger, each.notification).state for each in (one, two)]
        assert found_states == ["accepted", "uncertain"]
        assert one.id.hex() in shown(ledger, two.notification).attempts[-1].evidence

    def test_in_one_batch_what_was_sent_comes_before_what_was_found(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        (doubtful,) = looking(harness, ledger, "n-1")
        ledger.add(notification(harness, "n-2"))
        sent = ledger.take_one(harness)
        ledger.cross(sent)
        reference = f"r-{harness.namespace}"
        crossed = states.crossed(sent.delivery_state, sent.taken_ms)
        after = states.answered(crossed, Accepted(reference), contract(harness), sent.taken_ms, lambda: 0.0)
        ledger.record(found(harness, doubtful, reference), Record(sent, after, "accepted", "202", reference))
        found_states = [shown(ledger, each.notification).state for each in (doubtful, sent)]
        assert found_states == ["uncertain", "accepted"]

    def test_a_look_up_that_finds_its_own_message_is_accepted(self, harness: Harness, ledger: OutboxCaller) -> None:
        message, reference = notification(harness, "n-1"), f"r-{harness.namespace}"
        ledger.add(message)
        ledger.send(harness, ledger.take_one(harness), Refused("busy"))
        assert ledger.apply_reports(DeliveryReport("refused", message.id, provider(harness), reference)) == ["pending"]
        harness.advance(2_000)
        (doubtful,) = looking(harness, ledger, "n-1")
        assert ledger.record(found(harness, doubtful, reference)) == [True]
        assert shown(ledger, message).state == "accepted", "no other notification has the reference"

    def test_another_provider_may_give_the_same_id(self, harness: Harness, ledger: OutboxCaller) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "sent"))
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        (doubtful,) = looking(harness, ledger, "n-1", name="two")
        ledger.record(found(harness, doubtful, reference, "two"))
        assert shown(ledger, doubtful.notification).state == "accepted"

    def test_an_answer_with_the_id_of_another_is_an_answer(self, harness: Harness, ledger: OutboxCaller) -> None:
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        for dispatch in ledger.take(harness):
            ledger.send(harness, dispatch, Accepted(f"r-{harness.namespace}"))
            assert shown(ledger, dispatch.notification).state == "accepted", (
                "it is the provider's answer to this message"
            )

    # ---------------------------------------------------------------------------------------------- delivery reports

    def test_a_report_about_a_shared_reference_changes_neither_notification(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"), notification(harness, "n-2"))
        one, two = ledger.take(harness)
        for dispatch in (one, two):
            ledger.send(harness, dispatch, Accepted(reference))
        assert ledger.apply_reports(DeliveryReport("delivered", None, provider(harness), reference)) == [None]
        assert [shown(ledger, each.notification).state for each in (one, two)] == ["accepted", "accepted"]
        ours = DeliveryReport("delivered", two.id, provider(harness), reference)
        assert ledger.apply_reports(ours) == ["delivered"], "our own id identifies the notification"
        assert [shown(ledger, each.notification).state for each in (one, two)] == ["accepted", "delivered"]

    def test_our_own_id_counts_for_more_than_a_reference(self, harness: Harness, ledger: OutboxCaller) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"))
        one = ledger.take_one(harness)
        ledger.send(harness, one, Accepted(reference))
        (two,) = looking(harness, ledger, "n-2")
        assert ledger.apply_reports(DeliveryReport("delivered", two.id, provider(harness), reference)) == ["delivered"]
        assert shown(ledger, one.notification).state == "accepted"
        assert ledger.apply_reports(DeliveryReport("delivered", b"\0" * 16, provider(harness), reference)) == [None]

    def test_many_reports_about_one_message_are_about_one(self, harness: Harness, ledger: OutboxCaller) -> None:
        reference = f"r-{harness.namespace}"
        ledger.add(notification(harness, "n-1"))
        ledger.send(harness, ledger.take_one(harness), Accepted(reference))
        reports: list[Reported] = ["accepted", "undelivered", "delivered"]
        for reported in reports:
            report = DeliveryReport(reported, None, provider(harness), reference)
            assert ledger.apply_reports(report) == [reported]

    def test_a_report_about_another_message_of_the_same_notification_counts_a_possible_duplicate(
        self, harness: Harness, ledger: OutboxCaller
    ) -> None:
        """A look-up missed the first attempt, which was only late; or another relay has sent the notification too."""
        message, once = notification(harness, "twice"), notification(harness, "once")
        ledger.add(message, once)
        for number, dispatch in enumerate(ledger.take(harness)):
            ledger.send(harness, dispatch, Accepted(f"r-{number} {harness.namespace}"))
        query = NotificationQuery(tenant=harness.namespace, possible_duplicates=True)
        for one in (message, once):
            reference = shown(ledger, one).attempts[0].reference
            ledger.apply_reports(DeliveryReport("accepted", one.id, provider(harness), reference))
            ledger.apply_reports(DeliveryReport("delivered", one.id, provider(harness), reference))
            ledger.apply_reports(DeliveryReport("delivered", one.id, provider(harness)))
        assert ledger.run(people(ledger).find(query)) == [], "all reports are about the known message"
        for _ in range(2):  # callbacks come twice
            ledger.apply_reports(
                DeliveryReport("delivered", message.id, provider(harness), f"another {harness.namespace}")
            )
        (found,) = ledger.run(people(ledger).find(query))
        assert (found.notification.key, found.possible_duplicates, found.state) == ("twice", 1, "delivered")
