"""The SQLite ledger keeps the laws."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, TransactionHarness
from semel.testing.ledger_laws import LedgerLaws, TransactionLaws


async def write(handle: Any, text: str) -> None:
    handle.execute("insert into effect values (?)", (text,))


def running(*statements: str) -> Callable[[Any], Awaitable[None]]:
    async def run(handle: Any) -> None:
        for sql in statements:
            handle.execute(sql)

    return run


MEDDLE: Mapping[str, Callable[[Any], Awaitable[None]]] = {
    "commit": running("commit"),
    "rollback": running("rollback"),
    "commit and begin": running("commit", "begin"),
    "rollback and begin": running("rollback", "begin"),
    "rollback, begin and commit": running("rollback", "begin", "insert into effect values ('lone')", "commit"),
    "begin": running("begin immediate"),
    "release": running("release handler"),
    "own savepoint": running("savepoint own", "insert into effect values ('own')", "rollback to own", "release own"),
    "or rollback": running("insert or rollback into only_one values (1)"),
    "or fail": running("insert or fail into only_one values (1)"),
    "bad sql": running("selec 1"),
}


def sqlite_harness(folder: Path) -> TransactionHarness:
    path, clock = str(folder / "ledger.db"), FakeClock()
    connection = apsw.Connection(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table effect (name text)")
    connection.execute("create table only_one (id integer primary key); insert into only_one values (1)")
    return TransactionHarness(
        open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
        clock=clock,
        remote=partial(SqliteLedger, path, synchronous="normal"),
        write=write,
        written=lambda: [name for (name,) in connection.execute("select name from effect order by rowid")],
        meddle=MEDDLE,
    )


class TestSqlite(LedgerLaws, TransactionLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> TransactionHarness:
        return sqlite_harness(tmp_path)
