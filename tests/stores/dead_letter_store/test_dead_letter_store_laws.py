"""A ledger whose letters are kept in another store keeps every law of the ledger that it is."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.ledgers.test_sqlite_laws import MEDDLE, write

from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.ledgers.memory import MemoryLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.ports import DeadLetters, Inbox, Migrates, TransactionalLedger
from semel.testing.harness import FakeClock, Harness, TransactionHarness
from semel.testing.laws.binding import OneProcess
from semel.testing.laws.dead_letters import ForceLaws
from semel.testing.ledger_laws import LedgerLaws, TransactionLaws


def both(folder: str, clock: FakeClock | None = None) -> LedgerWithDeadLetterStore:
    """A ledger in one file, and its letters in another."""
    return LedgerWithDeadLetterStore(
        SqliteLedger(f"{folder}/ledger.db", synchronous="normal", clock=clock),
        SqliteLedger(f"{folder}/letters.db", synchronous="normal", clock=clock),
    )


class TestLettersOfSqlite(OneProcess, LedgerLaws, TransactionLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> TransactionHarness:
        clock = FakeClock()
        connection = apsw.Connection(str(tmp_path / "ledger.db"))
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table effect (name text)")
        connection.execute("create table only_one (id integer primary key); insert into only_one values (1)")
        return TransactionHarness(
            open=lambda: both(str(tmp_path), clock),
            clock=clock,
            write=write,
            written=lambda: [name for (name,) in connection.execute("select name from effect order by rowid")],
            meddle=MEDDLE,
        )


@pytest.mark.long
class TestLettersOfMemory(OneProcess, LedgerLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        clock = FakeClock()
        path = str(tmp_path / "letters.db")
        memory = MemoryLedger(clock)
        return Harness(
            open=lambda: LedgerWithDeadLetterStore(memory, SqliteLedger(path, synchronous="normal", clock=clock)),
            clock=clock,
        )


def test_the_wrapper_has_the_abilities_of_its_ledger_and_no_inbox(tmp_path: Path) -> None:
    """What is accepted and what is claimed would be in two stores."""
    for ledger in (
        both(str(tmp_path)),
        LedgerWithDeadLetterStore(MemoryLedger(), SqliteLedger(str(tmp_path / "x.db"))),
    ):
        assert isinstance(ledger, TransactionalLedger) == ledger.traits.transactional
        assert isinstance(ledger, DeadLetters)
        assert isinstance(ledger, Migrates)
        assert not isinstance(ledger, Inbox)
        assert isinstance(ledger.replays, Inbox)


class TestForcedReplaysOfSqlite(ForceLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        clock = FakeClock()
        return Harness(open=lambda: both(str(tmp_path), clock), clock=clock)
