"""What was sent again by policy may have left before: whatever becomes of it then, it is not called unsent."""

from __future__ import annotations

import pytest

from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Contract, DeliveryState, Refused, Unknown

CONTRACT = Contract(name="p", channels=("sms",), policy="resend", policy_after_s=10.0)
NOW = 1_000_000


def rolled() -> float:
    return 0.5


def sent_again(**known: object) -> DeliveryState:
    """Nobody knows what came of the first attempt, and its deadline has come."""
    first = states.crossed(DeliveryState(provider="p", policy="resend", **known), NOW)  # type: ignore[arg-type]
    doubted = states.answered(first, Unknown("no answer"), CONTRACT, NOW + 1, rolled)
    assert (doubted.state, doubted.exit) == ("uncertain", "policy")
    again = states.overdue(doubted, doubted.due_ms)
    assert (again.state, again.possible_duplicates, again.doubt_ms) == ("pending", 1, 0)
    return again


def test_a_refusal_of_the_second_time_says_nothing_of_the_first() -> None:
    second = states.crossed(sent_again(), NOW + 20_000)
    after = states.answered(second, Refused("400", final=True), CONTRACT, NOW + 20_001, rolled)
    assert (after.state, after.exit) == ("uncertain", ""), "a person decides"
    assert after.reason == "400"


def test_an_acceptance_of_the_second_time_ends_it() -> None:
    second = states.crossed(sent_again(), NOW + 20_000)
    assert states.answered(second, Accepted("r"), CONTRACT, NOW + 20_001, rolled).state == "accepted"


def test_a_second_time_that_comes_too_late_is_not_called_expired() -> None:
    again = sent_again(not_after_ms=NOW + 15_000)
    assert states.ready(again, CONTRACT, NOW + 20_000, rolled).state == "uncertain"


@pytest.mark.parametrize("says", ["cancelled", "given_up"])
def test_a_person_who_stops_the_second_time_still_has_the_first_to_decide(says: states.Resolution) -> None:
    after = states.decided(sent_again(), says, "not wanted any more", True, NOW + 20_000)
    assert after is not None
    assert after.state == "uncertain"


def test_relays_that_vanish_with_the_second_time_do_not_make_it_fail() -> None:
    delivery_state = sent_again()
    for _ in range(states.CLAIMS_MAX):
        delivery_state = states.lapsed(delivery_state, CONTRACT, NOW + 20_000, rolled)
    assert (delivery_state.state, delivery_state.exit) == ("uncertain", "")
