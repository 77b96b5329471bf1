"""A database of either kind, seen from outside: what the tables hold, and the ledger that reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import apsw
import asyncpg
from tests.outbox.adding.roads import POSTGRES, SQLITE, Road

from semel.ledgers.postgres import PostgresLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.values.notification import Guard, Notification

OWN = {"added_ms", "changed_ms", "due_ms", "sequence", "token"}  # columns for time and order
ORDERS = "create table if not exists orders (name text)"


@dataclass(frozen=True)
class Place:
    """One database with an outbox and a table of the caller's own. Nobody has it open between two questions."""

    url: str
    is_postgres: bool

    @property
    def roads(self) -> dict[str, Road]:
        return POSTGRES if self.is_postgres else SQLITE

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table of the outbox, but for what tells when."""
        name = f"semel.{table}" if self.is_postgres else f"semel_{table}"
        found = self.ask(f"select * from {name} order by id")
        return [{column: value for column, value in row.items() if column not in OWN} for row in found]

    def keys(self) -> list[str]:
        """Of all notifications, each with its dispatch."""
        prefix = "semel." if self.is_postgres else "semel_"
        sql = f"select n.key from {prefix}notification n left join {prefix}dispatch d on d.id = n.id order by n.key"
        found = [row["key"] for row in self.ask(sql)]
        assert len(self.ask(f"select 1 from {prefix}dispatch")) == len(found)
        return found

    def orders(self) -> list[str]:
        return [row["name"] for row in self.ask("select name from orders order by name")]

    def empty(self) -> None:
        prefix = "semel." if self.is_postgres else "semel_"
        self.run(f"{ORDERS}; delete from {prefix}notification; delete from {prefix}dispatch; delete from orders")

    def run(self, sql: str) -> None:
        """Several statements, of which nobody wants rows."""
        if not self.is_postgres:
            self._ask_file(sql)
            return

        async def story() -> None:
            connection = await asyncpg.connect(self.url)
            try:
                await connection.execute(sql)
            finally:
                await connection.close()

        asyncio.run(story())

    def ask(self, sql: str) -> list[dict[str, Any]]:
        return asyncio.run(self._ask(sql)) if self.is_postgres else self._ask_file(sql)

    async def _ask(self, sql: str) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self.url)
        try:
            return [dict(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    def _ask_file(self, sql: str) -> list[dict[str, Any]]:
        connection = apsw.Connection(self.url)
        try:
            cursor = connection.execute(sql)
            names: list[str] = []
            found = []
            for row in cursor:
                names = names or [name for name, _ in cursor.get_description()]
                found.append(dict(zip(names, row, strict=True)))
            return found
        finally:
            connection.close()

    @asynccontextmanager
    async def ledger(self) -> AsyncIterator[Any]:
        ledger = PostgresLedger.from_url(self.url) if self.is_postgres else SqliteLedger(self.url)
        try:
            yield ledger
        finally:
            await ledger.close()

    def with_ledger(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        async def story() -> Any:
            async with self.ledger() as ledger:
                return await work(ledger)

        return asyncio.run(story())


def notification(key: str = "order-1", **said: Any) -> Notification:
    wanted: dict[str, Any] = {
        "key": key,
        "kind": "shipping",
        "recipient": "+491",
        "channel": "sms",
        "body": "On its way",
        **said,
    }
    return Notification(**wanted)


EVERYTHING: dict[str, Any] = {
    "body": {"text": "é – 漢字 \U0001f4de % $1 ? :x \x00", "z": [1, 2.5, None, True], "a": {"é": 1, "b": -0.001}},
    "subject": "s\n\t ü %s",
    "sender": "+490",
    "template": "t",
    "data": {"b": None, "a": [1], "aa": "x"},
    "tenant": "ß {1}",
    "not_after": datetime(2100, 1, 1, tzinfo=UTC),
    "priority": 2,
    "order": "customer-1",
    "guard": Guard(window_s=60.5, key="g"),
    "provider": "one",
    "policy": "resend",
    "generation": 70_000,
}
