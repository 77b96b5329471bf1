"""The memory ledger keeps the laws."""

from __future__ import annotations

import pytest

from semel.adapters.ledgers.memory import MemoryLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.ledger_laws import LedgerLaws


def memory_harness() -> Harness:
    clock = FakeClock()
    ledger = MemoryLedger(clock)
    return Harness(open=lambda: ledger, clock=clock)


class TestMemory(LedgerLaws):
    @pytest.fixture
    def harness(self) -> Harness:
        return memory_harness()


class TestMemoryOnItsOwnClock(LedgerLaws):
    """The same laws in real time: what a store with its own clock will see."""

    @pytest.fixture
    def harness(self) -> Harness:
        ledger = MemoryLedger()
        return Harness(open=lambda: ledger, unit_ms=10)
