"""The outbox in SQLite and in PostgreSQL, seen from outside: what is written there, row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import apsw
import asyncpg
from tests.support.servers.postgres import PostgresServer

from semel.ledgers.postgres import PostgresLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.values.notification import Notification

SQLITE = "sqlite:"
NOTIFICATIONS = "select id, state, reason, provider, possible_duplicates from {}notification"
ATTEMPTS = "select id, token, outcome, evidence, provider, number from {}attempt"
LIVE = "select count(*) from {}dispatch where due_ms is not null"
PORTIONS = 25


def open_store(url: str) -> Any:
    """The ledger whose outbox it is."""
    if url.startswith(SQLITE):
        return SqliteLedger(url.removeprefix(SQLITE), synchronous="normal")  # a killed process loses nothing by that
    return PostgresLedger.from_url(url)


class Store(Protocol):
    url: str

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """`{}` stands for what is before the names of tables."""

    def close(self) -> None: ...


class OnSqlite:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "outbox.db"
        self.url = f"{SQLITE}{self._path}"

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(60_000)
            return list(connection.execute(statement.format("semel_")))
        finally:
            connection.close()

    def close(self) -> None:
        pass


class OnPostgres:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._name = f"proof_{uuid4().hex}"
        self.url = server.database(self._name)

        async def migrate() -> None:
            ledger = PostgresLedger.from_url(self.url)
            await ledger.migrate()
            await ledger.close()

        asyncio.run(migrate())

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        async def ask() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(statement.format("semel."))]
            finally:
                await connection.close()

        return asyncio.run(ask())

    def close(self) -> None:
        self._server.drop(self._name)


def add(store: Store, notifications: Sequence[Notification], within_s: float = 0.0) -> None:
    """In order, a portion at a time, spread over so many seconds."""
    portion = -(-len(notifications) // PORTIONS)

    async def story() -> None:
        ledger = open_store(store.url)
        try:
            for at in range(0, len(notifications), portion):
                await ledger.outbox.add(notifications[at : at + portion])
                await asyncio.sleep(within_s / PORTIONS)
        finally:
            await ledger.close()

    asyncio.run(story())
