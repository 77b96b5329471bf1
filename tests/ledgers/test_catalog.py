"""What people see of the memory and the SQLite ledger keeps the laws of the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ledgers.test_memory import memory_harness
from tests.ledgers.test_sqlite_laws import sqlite_harness

from semel.adapters.ledgers.memory import MemoryLedger
from semel.ports import Inbox, Letters
from semel.testing.harness import Harness
from semel.testing.laws.catalog import CatalogLaws


def test_memory_has_no_inbox_and_no_letters() -> None:
    """What it forgets with its process must not be answered as accepted."""
    assert not isinstance(MemoryLedger(), Inbox)
    assert not isinstance(MemoryLedger(), Letters)


class TestMemoryCatalog(CatalogLaws):
    @pytest.fixture
    def harness(self) -> Harness:
        return memory_harness()


class TestSqliteCatalog(CatalogLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return sqlite_harness(tmp_path)
