"""The SQLite ledger's inbox and letters keep the laws."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.inbox_laws import InboxLaws


class TestSqliteInbox(InboxLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        path, clock = str(tmp_path / "ledger.db"), FakeClock()
        return Harness(
            open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
            clock=clock,
            remote=partial(SqliteLedger, path, synchronous="normal"),
        )


@pytest.mark.long
class TestSqliteInboxOnItsOwnClock(InboxLaws):
    """The same laws in real time: what a store with its own clock will see."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        remote = partial(SqliteLedger, str(tmp_path / "ledger.db"), synchronous="normal")
        return Harness(open=remote, remote=remote, unit_ms=60)
