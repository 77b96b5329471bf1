"""The contract of an outbox, bound to SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.outbox_laws import OutboxLaws


class TestSqliteOutbox(OutboxLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        clock = FakeClock()
        return Harness(open=lambda: SqliteLedger(str(tmp_path / "semel.db"), clock=clock), clock=clock)
