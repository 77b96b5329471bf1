"""The retry budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.service.destinations.servers import Clock

from semel.core.breaker import RetryBudget


def spent(budget: RetryBudget, wanted: int = 1_000) -> int:
    return sum(budget.spend() for _ in range(wanted))


def test_first_tries_earn_their_share_of_retries_on_top_of_the_reserve() -> None:
    budget = RetryBudget(0.25, clock=Clock(), reserve=4)
    for _ in range(40):
        budget.earn()
    assert spent(budget) == 4 + 10


def test_a_part_of_a_retry_is_none() -> None:
    budget = RetryBudget(0.5, clock=Clock(), reserve=0)
    budget.earn()
    assert not budget.spend()
    budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]


def test_good_times_do_not_pay_for_a_storm() -> None:
    budget = RetryBudget(1, clock=Clock(), reserve=4, cap=20)
    for _ in range(10_000):
        budget.earn()
    assert spent(budget) == 20


def test_the_reserve_fills_by_itself_so_that_nothing_waits_for_ever() -> None:
    clock = Clock()
    budget = RetryBudget(0, clock=clock, reserve=4, reserve_per_s=2)
    assert spent(budget) == 4
    assert budget.ready_in_s() == 0.5
    clock.now += 0.5
    assert (budget.ready_in_s(), spent(budget)) == (0, 1)
    clock.now += 3_600
    assert spent(budget) == 4


def test_retries_that_come_through_cost_nothing() -> None:
    budget = RetryBudget(0, clock=Clock(), reserve=2)
    for _ in range(1_000):
        assert budget.spend()
        budget.give_back()
    assert spent(budget) == 2


@given(st.floats(0, 10), st.lists(st.sampled_from(["earn", "spend", "back", "wait"]), max_size=200))
def test_retries_never_exceed_the_budget(ratio: float, steps: list[str]) -> None:
    clock = Clock()
    budget = RetryBudget(ratio, clock=clock, reserve=5, reserve_per_s=1, cap=50)
    room = 5.0
    for step in steps:
        match step:
            case "earn":
                budget.earn()
                room += ratio
            case "back":
                budget.give_back()
                room += 1
            case "wait":
                clock.now += 1
                room += 1
            case "spend":
                ready = budget.ready_in_s() == 0
                assert budget.spend() == ready
                room -= ready
        assert room > -1e-6
