"""Random histories on a Valkey server and on a Cluster, against the model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.ledgers.redis.stores import harness_on

from semel.testing.machine import ledger_machine

RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def run(url: str, examples: int, steps: int = 40, **options: str) -> None:
    machine = ledger_machine(lambda: harness_on(url, timed=True, **options))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=RARELY
        ),
    )


def test_random_histories_on_one_server(redis_url: str) -> None:
    run(redis_url, 12)


def test_random_histories_on_a_cluster(cluster_url: str) -> None:
    run(cluster_url, 6, together="*")


@pytest.mark.long
def test_many_random_histories_on_a_cluster(cluster_url: str) -> None:
    run(cluster_url, 60, 60, together="*")


@pytest.mark.long
def test_many_random_histories_on_one_server(redis_url: str) -> None:
    run(redis_url, 300, 60)
