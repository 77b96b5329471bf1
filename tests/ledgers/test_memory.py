"""The memory ledger keeps the laws."""

from __future__ import annotations

import pytest

from semel.ledgers.memory import MemoryLedger
from semel.ports import DeadLetters, Inbox
from semel.testing.harness import FakeClock, Harness
from semel.testing.laws.binding import OneProcess
from semel.testing.ledger_laws import LedgerLaws


def memory_harness() -> Harness:
    clock = FakeClock()
    ledger = MemoryLedger(clock)
    return Harness(open=lambda: ledger, clock=clock)


def test_the_memory_ledger_has_no_inbox_and_no_dead_letters() -> None:
    """What it forgets with its process must not be answered as accepted."""
    assert not isinstance(MemoryLedger(), Inbox)
    assert not isinstance(MemoryLedger(), DeadLetters)


class TestMemory(OneProcess, LedgerLaws):
    @pytest.fixture
    def harness(self) -> Harness:
        return memory_harness()


@pytest.mark.long
class TestMemoryOnItsOwnClock(OneProcess, LedgerLaws):
    """The same laws in real time: what a store with its own clock will see."""

    @pytest.fixture
    def harness(self) -> Harness:
        ledger = MemoryLedger()
        return Harness(open=lambda: ledger, unit_ms=50)
