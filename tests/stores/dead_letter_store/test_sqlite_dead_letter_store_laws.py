"""SQLite keeps the letters of other ledgers by the laws."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.laws.dead_letter_store import DeadLetterStoreLaws


class TestSqliteLetterbox(DeadLetterStoreLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        path, clock = str(tmp_path / "ledger.db"), FakeClock()
        return Harness(
            open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
            clock=clock,
            remote=partial(SqliteLedger, path, synchronous="normal"),
        )
