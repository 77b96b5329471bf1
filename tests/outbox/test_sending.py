"""The life of a notification: no step of it claims to know what nobody knows."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.values import delivery_state as states
from semel.values.delivery_state import (
    ATTEMPTS_MAX,
    ATTEMPTS_OF_FIRST,
    CLAIMS_MAX,
    RANK,
    STATES,
    Accepted,
    Answer,
    Contract,
    DeliveryState,
    Key,
    Refused,
    Reported,
    Unknown,
)
from semel.values.effect import KEYED_SHARE
from semel.values.notification import POLICIES, Policy

NOW_MS = 1_000_000
PLAIN = Contract(name="plain", channels=("sms",))
KEYED = Contract(name="keyed", channels=("sms",), key=Key(header="Idempotency-Key", window_s=3600))
LOOKS = Contract(name="looks", channels=("sms",), looks_up=True, settle_s=60)
CONTRACTS = (PLAIN, KEYED, LOOKS)


def one() -> float:
    return 1.0


def none() -> float:
    return 0.0


def sent(contract: Contract = PLAIN, **delivery_state: object) -> DeliveryState:
    """Crossed, and not yet answered."""
    return states.crossed(DeliveryState(provider=contract.name, **delivery_state), NOW_MS)  # type: ignore[arg-type]


def answered(delivery_state: DeliveryState, answer: Answer, contract: Contract = PLAIN) -> DeliveryState:
    return states.answered(delivery_state, answer, contract, NOW_MS, one)


# ------------------------------------------------------------------------------------------------------- crossing


def test_a_crossing_counts_an_attempt_and_begins_the_key_window_once() -> None:
    first = sent(KEYED)
    assert (first.state, first.attempts, first.keyed_ms) == ("sending", 1, NOW_MS)
    again = states.crossed(states.replayed(states.doubtful(first, "?", KEYED, NOW_MS, one)), NOW_MS + 5)
    assert (again.attempts, again.keyed_ms, again.crossed_ms) == (2, NOW_MS, NOW_MS + 5)


def test_a_refusal_comes_again_and_honours_what_the_provider_asks_for() -> None:
    again = answered(sent(), Refused("busy", after_s=30))
    assert again.state == "pending"
    assert again.due_ms >= NOW_MS + 30_000


def test_a_rate_limit_burns_no_attempt_however_often_it_comes() -> None:
    delivery_state = DeliveryState(provider="plain")
    for _ in range(10 * ATTEMPTS_MAX):
        delivery_state = answered(states.crossed(delivery_state, NOW_MS), Refused("429", after_s=1, limited=True))
    assert (delivery_state.state, delivery_state.attempts) == ("pending", 0)


def test_refusals_end_after_their_attempts() -> None:
    delivery_state = DeliveryState(provider="plain")
    crossings = 0
    while delivery_state.state == "pending":
        delivery_state = answered(states.crossed(delivery_state, NOW_MS), Refused("500 and not accepted"))
        crossings += 1
    assert (delivery_state.state, crossings) == ("failed", ATTEMPTS_MAX)


def test_where_another_can_be_asked_a_provider_that_is_down_is_not_asked_for_hours() -> None:
    delivery_state = DeliveryState(provider="plain", others=("second",))
    crossings = 0
    while delivery_state.provider == "plain":
        delivery_state = answered(states.crossed(delivery_state, NOW_MS), Refused("nobody is there"))
        crossings += 1
    assert (delivery_state.state, delivery_state.provider, delivery_state.attempts) == ("pending", "second", 0)
    assert crossings == ATTEMPTS_OF_FIRST < ATTEMPTS_MAX


def test_a_final_refusal_goes_on_to_the_next_provider_with_a_window_of_its_own() -> None:
    delivery_state = answered(sent(others=("second", "third")), Refused("bad number", final=True))
    assert (delivery_state.state, delivery_state.provider, delivery_state.others) == ("pending", "second", ("third",))
    assert (delivery_state.attempts, delivery_state.keyed_ms) == (0, 0)
    assert answered(sent(), Refused("bad number", final=True)).state == "failed"


def test_an_unknown_outcome_never_goes_to_another_provider() -> None:
    for contract in CONTRACTS:
        delivery_state = answered(sent(contract, others=("second",)), Unknown("timeout"), contract)
        assert (delivery_state.state, delivery_state.provider) == ("uncertain", contract.name)


def test_what_would_be_too_late_expires() -> None:
    assert answered(sent(not_after_ms=NOW_MS + 10), Refused("busy", after_s=30)).state == "expired"


def test_a_relay_that_vanished_before_a_byte_left_is_harmless_until_it_is_a_habit() -> None:
    delivery_state = DeliveryState(provider="plain")
    for _ in range(CLAIMS_MAX - 1):
        delivery_state = states.lapsed(delivery_state, PLAIN, NOW_MS, one)
        assert delivery_state.state == "pending"
    assert states.lapsed(delivery_state, PLAIN, NOW_MS, one).state == "failed"


def test_a_relay_that_vanished_after_the_crossing_leaves_a_doubt() -> None:
    for contract in CONTRACTS:
        assert states.lapsed(sent(contract), contract, NOW_MS, one).state == "uncertain"


# ------------------------------------------------------------------------------------------------------- in doubt


@pytest.mark.parametrize("refused", [Refused("401", final=True), Refused("429", limited=True), Refused("busy")])
def test_a_refusal_says_nothing_of_the_attempt_before(refused: Refused) -> None:
    doubt = states.doubtful(sent(KEYED, others=("second",)), "timeout", KEYED, NOW_MS, none)
    again = states.crossed(states.replayed(doubt), NOW_MS + 1)
    after = answered(again, refused, KEYED)
    assert (after.state, after.provider, after.exit) == ("uncertain", "keyed", "replay")


def test_a_doubt_does_not_expire_and_is_not_worn_out() -> None:
    doubt = states.replayed(states.doubtful(sent(KEYED, not_after_ms=NOW_MS + 5_000), "?", KEYED, NOW_MS, none))
    assert states.ready(doubt, KEYED, NOW_MS + 4_000, one).state == "pending"
    assert states.ready(doubt, KEYED, NOW_MS + 6_000, one).state == "uncertain"
    for _ in range(CLAIMS_MAX):
        doubt = states.lapsed(doubt, KEYED, NOW_MS, one)
    assert doubt.state == "uncertain"


def test_a_key_is_sent_again_only_inside_its_window() -> None:
    early = states.doubtful(sent(KEYED), "timeout", KEYED, NOW_MS + 1, none)
    assert early.exit == "replay"
    assert KEYED.key is not None
    late_ms = NOW_MS + int(1000 * KEYED_SHARE * KEYED.key.window_s)
    late = states.doubtful(sent(KEYED), "timeout", KEYED, late_ms, none)
    assert (late.state, late.exit) == ("uncertain", "")


def test_a_look_up_waits_for_the_settle_time() -> None:
    delivery_state = states.doubtful(sent(LOOKS), "timeout", LOOKS, NOW_MS + 1, none)
    assert (delivery_state.exit, delivery_state.due_ms) == ("look_up", NOW_MS + 1 + 60_000), (
        "from when it was known to be over"
    )


def test_a_look_up_that_fails_relabels_nothing() -> None:
    delivery_state = states.doubtful(sent(LOOKS), "timeout", LOOKS, NOW_MS, none)
    for _ in range(50):
        delivery_state = states.unclear(delivery_state, "503", LOOKS, delivery_state.due_ms, one)
        assert delivery_state.state == "uncertain"


def test_look_ups_that_fail_all_day_do_not_make_the_reason_longer() -> None:
    delivery_state = states.doubtful(sent(LOOKS), "timeout; of 15 s", LOOKS, NOW_MS, none)
    for _ in range(50):
        delivery_state = states.unclear(
            delivery_state, "its list; could not be read", LOOKS, delivery_state.due_ms, one
        )
    assert delivery_state.reason == "timeout; of 15 s; its list, could not be read"


def test_look_ups_end_in_the_policy() -> None:
    delivery_state = states.doubtful(sent(LOOKS, policy="give_up"), "timeout", LOOKS, NOW_MS, none)
    looks = 0
    while delivery_state.exit == "look_up":
        delivery_state = states.unclear(delivery_state, "503", LOOKS, delivery_state.due_ms, one)
        looks += 1
    assert 1 < looks < 120, "of a whole day: they come more and more seldom"
    assert (delivery_state.state, delivery_state.exit) == ("uncertain", "policy")
    assert delivery_state.due_ms >= NOW_MS + int(1000 * LOOKS.policy_after_s)


@pytest.mark.parametrize(
    ("policy", "state"),
    [("hold", "uncertain"), ("presume_sent", "accepted"), ("give_up", "failed"), ("resend", "pending")],
)
def test_a_policy_decides_at_its_deadline(policy: str, state: str) -> None:
    delivery_state = states.doubtful(sent(policy=policy), "timeout", PLAIN, NOW_MS, none)
    assert delivery_state.state == "uncertain"
    after = states.overdue(delivery_state, NOW_MS)
    assert after.state == state
    assert after.possible_duplicates == (1 if policy == "resend" else 0), "only that may be a second message"


answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Accepted),
    st.builds(Refused, reason=st.just("r"), after_s=st.none() | st.floats(0, 100), final=st.booleans()),
    st.builds(Refused, reason=st.just("r"), limited=st.just(True)),
    st.builds(Unknown, reason=st.just("u")),
)


@settings(max_examples=1_000)
@given(
    contract=st.sampled_from(CONTRACTS),
    policy=st.sampled_from(POLICIES),
    story=st.lists(st.tuples(answers, st.integers(0, 4_000_000)), max_size=40),
    not_after_s=st.none() | st.integers(0, 10_000),
    look_ups=st.lists(st.sampled_from(["found", "absent", "unclear"]), min_size=40, max_size=40),
)
def test_nothing_is_sent_twice_that_may_have_left(
    contract: Contract,
    policy: Policy,
    story: list[tuple[Answer, int]],
    not_after_s: int | None,
    look_ups: list[str],
) -> None:
    """The relay's own rules on random histories. Messages that may be at the customer's are counted from outside."""
    not_after_ms = None if not_after_s is None else NOW_MS + 1000 * not_after_s
    delivery_state = DeliveryState(provider=contract.name, policy=policy, not_after_ms=not_after_ms)
    now_ms = NOW_MS
    may_have_left = 0  # attempts that nobody has proven absent, beyond one for all with the same honoured key
    for (answer, later_ms), look in zip(story, look_ups, strict=False):
        if delivery_state.state == "pending":
            now_ms = max(now_ms, delivery_state.due_ms) + later_ms
            delivery_state = states.ready(delivery_state, contract, now_ms, one)
            if delivery_state.state != "pending":
                continue
            remembered = contract.key is not None and now_ms < delivery_state.keyed_ms + 1000 * contract.key.window_s
            new = 0 if remembered and delivery_state.doubt_ms else 1
            delivery_state = states.crossed(delivery_state, now_ms)
            delivery_state = states.answered(delivery_state, answer, contract, now_ms, one)
            if not isinstance(answer, Refused):
                may_have_left += new
        elif delivery_state.state == "uncertain" and delivery_state.exit:
            now_ms = max(now_ms, delivery_state.due_ms)
            match delivery_state.exit:
                case "replay":
                    delivery_state = states.replayed(delivery_state)
                case "policy":
                    delivery_state = states.overdue(delivery_state, now_ms)
                case "look_up" if look == "found":
                    delivery_state = states.found(delivery_state, "id")
                case "look_up" if look == "absent":
                    delivery_state = states.absent(delivery_state, now_ms)
                    may_have_left = delivery_state.possible_duplicates
                case _:
                    delivery_state = states.unclear(delivery_state, "503", contract, now_ms, one)
        else:
            break
    assert may_have_left <= 1 + delivery_state.possible_duplicates
    if delivery_state.state in ("failed", "expired") and policy != "give_up":
        assert may_have_left == delivery_state.possible_duplicates, "an unknown outcome is never called failed"


# ------------------------------------------------------------------------------------------------------- evidence


@given(st.sampled_from(STATES), st.lists(st.sampled_from(get_args(Reported)), max_size=6))
def test_a_report_moves_a_state_up_or_not_at_all(state: states.State, reports: list[Reported]) -> None:
    for report in reports:
        after = states.reported(state, report)
        assert RANK.get(after, 0) >= RANK.get(state, 0)
        state = after


@given(st.permutations(["accepted", "undelivered", "delivered", "accepted", "delivered"]))
def test_reports_in_any_order_come_to_the_same(reports: list[Reported]) -> None:
    state: states.State = "uncertain"
    for report in reports:
        state = states.reported(state, report)
    assert state == "delivered"


def test_what_may_have_been_sent_is_not_called_expired_when_its_time_is_over() -> None:
    doubted = DeliveryState(
        state="uncertain", policy="resend", exit="policy", crossed_ms=1, doubt_ms=1, not_after_ms=NOW_MS
    )
    after = states.overdue(doubted, NOW_MS + 1)
    assert (after.state, after.exit, after.due_ms, after.possible_duplicates) == ("uncertain", "", 0, 0)
    assert states.overdue(doubted, NOW_MS).state == "pending"


def test_without_a_not_after_it_ages_and_never_lives_longer_than_it_asked_for() -> None:
    assert states.aging(DeliveryState(), 7).not_after_ms == 7
    assert states.aging(DeliveryState(not_after_ms=5), 7).not_after_ms == 5
    assert states.aging(DeliveryState(not_after_ms=9), 7).not_after_ms == 7
    late = states.aging(DeliveryState(), NOW_MS - 1)
    assert states.ready(late, PLAIN, NOW_MS, one).state == "expired"


def test_a_channel_is_sent_by_whoever_is_named_or_by_the_only_one_that_can() -> None:
    both = [PLAIN, Contract(name="mail", channels=("email", "sms"))]
    assert states.routes_of(both, {}) == {"email": ["mail"]}
    assert states.routes_of(both, {"sms": ["mail", "plain"], "voice": []}) == {
        "email": ["mail"],
        "sms": ["mail", "plain"],
    }


def test_a_policy_sends_again_once_and_then_a_person_decides() -> None:
    doubted = DeliveryState(state="uncertain", policy="resend", exit="policy", crossed_ms=1, doubt_ms=1)
    again = states.overdue(doubted, NOW_MS)
    assert (again.state, again.possible_duplicates) == ("pending", 1)
    unknown = states.doubtful(states.crossed(again, NOW_MS), "timeout", PLAIN, NOW_MS, one)
    held = states.overdue(unknown, NOW_MS)
    assert (held.state, held.exit, held.possible_duplicates) == ("uncertain", "", 1)


def test_who_waits_for_a_guard_asks_ever_less_often_and_stays_what_it_was() -> None:
    doubted = states.doubtful(sent(KEYED), "timeout", KEYED, NOW_MS, none)
    waits_ms = []
    for waited_s in (0, 10, 100, 86_400):
        held = states.held(doubted, b"by", NOW_MS - 1000 * waited_s, NOW_MS)
        assert (held.state, held.exit, held.doubt_ms, held.attempts) == ("uncertain", "replay", doubted.doubt_ms, 1)
        waits_ms.append(held.due_ms - NOW_MS)
    assert waits_ms == [1_000, 1_000, 10_000, 30_000]
