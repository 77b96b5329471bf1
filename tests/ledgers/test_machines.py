"""Random histories: the memory and the SQLite ledger against the model, and proof that the machine would notice."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from semel.adapters.ledgers.memory import MemoryLedger
from semel.adapters.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.machine import ledger_machine
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.outcome import Done, Release

RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def memory() -> Harness:
    clock = FakeClock()
    ledger = MemoryLedger(clock)
    return Harness(open=lambda: ledger, clock=clock)


def sqlite() -> Harness:
    folder, clock = tempfile.mkdtemp(), FakeClock()
    path = str(Path(folder, "ledger.db"))
    return Harness(
        open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
        clock=clock,
        dispose=lambda: shutil.rmtree(folder),
    )


def run(harness: Callable[[], Harness], examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(
        ledger_machine(harness),
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=RARELY),
    )


def test_memory_answers_like_the_model() -> None:
    run(memory, 150)


def test_sqlite_answers_like_the_model() -> None:
    run(sqlite, 100)


@pytest.mark.long
@pytest.mark.parametrize("harness", [memory, sqlite])
def test_long_histories_are_answered_like_the_model(harness: Callable[[], Harness]) -> None:
    run(harness, 3_000, steps=100)
