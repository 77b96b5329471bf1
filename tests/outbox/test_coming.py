"""What is told of the next step is what the relay then does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from semel.values import delivery_state as states
from semel.values.delivery_state import STATES, Contract, DeliveryState, Key, Refused, Unknown
from semel.values.notification import Notification
from semel.values.outbox import NotificationView, UpcomingStep, coming

NOW_MS = 1_000_000_000
DAY_MS = 86_400_000
ORDER = Notification(key="a", kind="shipping", recipient="+491", channel="sms", body="On its way")
PLAIN = Contract(name="p", channels=("sms",))
LOOKS = replace(PLAIN, looks_up=True, settle_s=300.0)
KEYED = replace(LOOKS, key=Key("Idempotency-Key", window_s=10_000.0))


def shown(delivery_state: DeliveryState, **more: Any) -> NotificationView:
    """As a store shows it."""
    fields: dict[str, Any] = {
        "id": "00",
        "notification": ORDER,
        "state": delivery_state.state,
        "reason": "",
        "provider": "p",
        "added_ms": NOW_MS,
        "changed_ms": NOW_MS,
        "due_ms": delivery_state.due_ms,
        "delivery_state": delivery_state,
        **more,
    }
    return NotificationView(**fields)


def doubted(contract: Contract, **said: Any) -> DeliveryState:
    crossed = states.crossed(DeliveryState(provider="p", **said), NOW_MS)
    return states.answered(crossed, Unknown("no answer"), contract, NOW_MS, lambda: 0.5)


def test_a_look_up_comes_first_and_the_policy_at_the_latest() -> None:
    delivery_state = doubted(LOOKS, policy="give_up")
    assert coming(shown(delivery_state), NOW_MS) == UpcomingStep(
        "look_up", NOW_MS + 300_000, False, "give_up", NOW_MS + DAY_MS
    )


def test_a_provider_with_nothing_waits_for_its_policy_or_for_a_person() -> None:
    by_policy = doubted(PLAIN, policy="presume_sent")
    deadline_ms = NOW_MS + DAY_MS
    assert coming(shown(by_policy), NOW_MS) == UpcomingStep("policy", deadline_ms, False, "presume_sent", deadline_ms)
    assert coming(shown(doubted(PLAIN)), NOW_MS) == UpcomingStep("person")


def test_a_key_that_counts_for_longer_than_the_policy_goes_before_it() -> None:
    hasty = replace(KEYED, policy_after_s=60.0)
    told = coming(shown(doubted(hasty, policy="presume_sent")), NOW_MS)
    assert told is not None
    assert (told.exit, told.policy_ms) == ("replay", NOW_MS + 8_000_000), "0.8 of its window"
    patient = coming(shown(doubted(KEYED)), NOW_MS)
    assert patient is not None
    assert patient.policy_ms == NOW_MS + DAY_MS


def test_a_policy_that_has_sent_again_holds_and_that_is_told() -> None:
    again = replace(states.overdue(doubted(LOOKS, policy="resend"), NOW_MS), due_ms=NOW_MS)
    unknown = states.answered(states.crossed(again, NOW_MS), Unknown("?"), LOOKS, NOW_MS, lambda: 0.5)
    told = coming(shown(unknown), NOW_MS)
    assert told is not None
    assert (told.exit, told.policy) == ("look_up", "hold")
    late = coming(shown(doubted(LOOKS, policy="resend", not_after_ms=NOW_MS + 1)), NOW_MS)
    assert late is not None
    assert late.policy == "hold", "its time is over by then"


@pytest.mark.parametrize(("due_ms", "at_ms", "under_way"), [(NOW_MS + 5, 0, True), (NOW_MS - 5, NOW_MS - 5, False)])
def test_the_end_of_a_lease_is_not_told_for_the_time_of_a_step(due_ms: int, at_ms: int, under_way: bool) -> None:
    """A relay has it in hand, or has vanished with it: then the next one goes on."""
    delivery_state = doubted(LOOKS)
    told = coming(shown(delivery_state, due_ms=due_ms, taken=True), NOW_MS)
    assert told == UpcomingStep("look_up", at_ms, under_way, "hold", NOW_MS + DAY_MS)


def test_what_waits_is_sent_and_what_leaves_is_answered() -> None:
    assert coming(shown(DeliveryState(due_ms=NOW_MS)), NOW_MS) == UpcomingStep("send", NOW_MS)
    refused = states.answered(
        states.crossed(DeliveryState(provider="p"), NOW_MS), Refused("429", 5.0), PLAIN, NOW_MS, lambda: 0.0
    )
    assert coming(shown(refused), NOW_MS) == UpcomingStep("send", NOW_MS + 5_000)
    crossed = states.crossed(DeliveryState(), NOW_MS)
    assert coming(shown(crossed, due_ms=NOW_MS + 9, taken=True), NOW_MS) == UpcomingStep("answer", NOW_MS + 9, True)
    again = states.replayed(doubted(KEYED))
    told = coming(shown(again), NOW_MS)
    assert told is not None
    assert told.exit == "replay"


def test_nothing_happens_to_what_is_over() -> None:
    for state in sorted(set(STATES) - set(states.LIVE)):
        assert coming(replace(shown(DeliveryState()), state=state, delivery_state=None), NOW_MS) is None


def test_what_is_told_is_what_a_relay_of_that_time_does() -> None:
    """Look-ups that say nothing, one after the other: each comes when it was told, and the last step is the policy."""
    delivery_state, now_ms, steps = doubted(LOOKS, policy="presume_sent"), NOW_MS, []
    while delivery_state.state == "uncertain":
        told = coming(shown(delivery_state), now_ms)
        assert told is not None
        assert now_ms <= told.at_ms <= told.policy_ms == NOW_MS + DAY_MS
        steps.append(told.exit)
        now_ms = told.at_ms
        if told.exit == "look_up":
            delivery_state = states.unclear(delivery_state, "503", LOOKS, now_ms, lambda: 0.5)
        else:
            delivery_state = states.overdue(delivery_state, now_ms)
    assert (steps[0], steps[-1], delivery_state.state) == ("look_up", "policy", "accepted")
    assert steps.count("policy") == 1
