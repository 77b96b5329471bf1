"""Random histories: the ledger in DynamoDB against the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.ledgers.dynamodb.tables import clock_ahead

from semel.ledgers.dynamodb import DynamoLedger
from semel.testing.harness import Harness
from semel.testing.machine import ledger_machine


def run(ledger_url: Callable[..., str], examples: int, steps: int) -> None:
    def harness() -> Harness:
        url, clock = ledger_url(margin_ms="0"), clock_ahead()
        return Harness(open=lambda: DynamoLedger.from_url(url, clock=clock), clock=clock)

    run_state_machine_as_test(
        ledger_machine(harness),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),  # each step is many requests
        ),
    )


def test_dynamodb_behaves_like_the_model(ledger_url: Callable[..., str]) -> None:
    run(ledger_url, 2, 25)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_long_histories_behave_like_the_model(ledger_url: Callable[..., str]) -> None:
    run(ledger_url, 40, 50)
