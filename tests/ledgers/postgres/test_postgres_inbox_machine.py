"""Random histories: the PostgreSQL inbox against the model. `test_inbox_machine.py` proves that it would notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.ledgers.postgres.stores import empty

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.inbox_machine import inbox_machine

RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def emptied(url: str) -> Callable[[], Harness]:
    """A harness on the same database each time, without what the last one left there: machines look at all of it."""

    def harness() -> Harness:
        asyncio.run(empty(url))
        clock = FakeClock()
        return Harness(open=lambda: PostgresLedger.from_url(url, clock=clock), clock=clock)

    return harness


def run(url: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        inbox_machine(emptied(url)),
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=RARELY),
    )


def test_the_inbox_behaves_like_the_model(url: str) -> None:
    run(url, 6, steps=40)


@pytest.mark.long
@pytest.mark.timeout(1800)  # every step is a round trip or more
def test_the_inbox_behaves_like_the_model_over_long_histories(url: str) -> None:
    run(url, 120, steps=80)
