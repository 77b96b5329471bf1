"""Random histories: PostgreSQL against the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.machine import ledger_machine

RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def harness_of(url: str) -> Callable[[], Harness]:
    def harness() -> Harness:
        clock = FakeClock()
        return Harness(open=lambda: PostgresLedger.from_url(url, clock=clock), clock=clock)

    return harness


def run(url: str, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ledger_machine(harness_of(url)),
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=RARELY),
    )


def test_postgres_answers_like_the_model(url: str) -> None:
    run(url, examples=8, steps=30)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_long_histories_are_answered_like_the_model(url: str) -> None:
    run(url, examples=150, steps=60)
