"""A ledger whose letters are put on a bus too keeps every law of the ledger that it is."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.dead_letter_targets.bus import AwsServer, Bus
from tests.ledgers.test_sqlite_laws import MEDDLE, write

from semel.core.dead_letter_store import LedgerWithDeadLetterTarget
from semel.dead_letter_targets import EventBridgeTarget
from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, TransactionHarness
from semel.testing.laws.binding import OneProcess
from semel.testing.laws.catalog import CatalogLaws
from semel.testing.laws.settlement import SettleLaws, TryLaws
from semel.testing.ledger_laws import LedgerLaws, TransactionLaws


class OnABus:
    @pytest.fixture
    def harness(self, tmp_path: Path, server: AwsServer) -> TransactionHarness:
        """What matters here is the way through the bus, so the ledger is a quick one."""
        clock = FakeClock()
        connection = apsw.Connection(str(tmp_path / "ledger.db"))
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table effect (name text)")
        connection.execute("create table only_one (id integer primary key); insert into only_one values (1)")
        url = Bus.bare_url(server)

        def both() -> LedgerWithDeadLetterTarget:
            ledger = SqliteLedger(str(tmp_path / "ledger.db"), synchronous="normal", clock=clock)
            return LedgerWithDeadLetterTarget(ledger, EventBridgeTarget(url, clock=clock))

        return TransactionHarness(
            open=both,
            clock=clock,
            write=write,
            written=lambda: [name for (name,) in connection.execute("select name from effect order by rowid")],
            meddle=MEDDLE,
        )


class TestLettersOnABus(OnABus, SettleLaws, CatalogLaws, TryLaws):
    """What has anything to do with letters."""


@pytest.mark.long
class TestALedgerWithABus(OneProcess, OnABus, LedgerLaws, TransactionLaws):
    """All of it."""
