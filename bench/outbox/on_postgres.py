"""PostgreSQL: one server on loopback with fsync. Every outbox and the table of the loop have their own database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from bench.outbox.plan import Caller, Pending, Queue, Tally
from bench.stores.servers import running
from bench.stores.timing import of_processes
from tests.support.servers.postgres import PostgresServer

from semel.ledgers.postgres import outbox as adding
from semel.ports import Migrates
from semel.values.notification import Notification
from semel.wiring import open_ledger

TEMPLATE = "bench_template"
SCHEMA = "semel"
COUNTER = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none"}

QUEUE = """
    create table outbox (id bigserial primary key, key text not null, kind text not null, recipient text not null,
        channel text not null, body text not null, state text not null default 'pending', reference text);
    create index outbox_pending on outbox (id) where state = 'pending';
"""
ENQUEUE = """
    insert into outbox (key, kind, recipient, channel, body)
    select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[])
"""
FIRST = """
    select id, key, kind, recipient, channel, body from outbox where state = 'pending' order by id limit 1
    for update skip locked
"""
SENT = "update outbox set state = 'sent', reference = $1 where id = $2"
ORDERS = "create table orders (id bigserial primary key, at bigint not null)"
ORDER = "insert into orders (at) values ($1)"

# The columns that differ in each copy of a finished message, as `sending.notification` creates them.
KEY, RECIPIENT = "'order-' || c.n || '-shipped'", "'+49' || lpad(c.n::text, 11, '0')"
COPIED = {
    "id": f"semel.digest('', {KEY}, 'shipping', {RECIPIENT}, 'sms', '1')",
    "recipient_digest": f"semel.digest('who', '', {RECIPIENT})",
    "key": KEY,
    "recipient": RECIPIENT,
    "reference": "t.reference || '-' || c.n",
}
ORIGINAL = "reference !~ '-'"
CHUNK = 100_000  # keeps each statement below its timeout
COLUMNS = """
    select string_agg(quote_ident(attname), ',' order by attnum) from pg_attribute
    where attrelid = '{}'::regclass and attnum > 0 and not attisdropped
"""

# Excludes the statements of a driver at connect. A statement outside a client's transaction is its own transaction.
COUNTED = """
    select coalesce(sum(calls), 0), coalesce(sum(calls) filter (where query !~* '^(begin|commit)'), 0)
    from pg_stat_statements s join pg_database d on d.oid = s.dbid
    where d.datname = '{}' and (s.query ~ '"semel"\\.(?!migration)' or s.query ~* '^(begin|commit)')
"""


@contextmanager
def opened(folder: Path) -> Iterator[OnPostgres]:
    with running(PostgresServer(folder / "postgres", fsync=True, settings=COUNTER)) as server:
        yield OnPostgres(server)


class OnPostgres:
    name = "postgres"
    title = "The outbox on PostgreSQL, fsync on"

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._names = count()
        self.server = of_processes(server.process.pid)
        asyncio.run(_migrate(server.database(TEMPLATE)))

    def remarks(self) -> list[str]:
        ((version,),) = self._server.execute("show server_version")
        return [f"PostgreSQL {version}, synchronous_commit=on; the loop has its row locked until it commits"]

    def new(self) -> str:
        name = f"bench_{next(self._names)}"
        self._server.execute(f"create database {name} template {TEMPLATE} strategy file_copy")
        return self._server.url(name)

    def drop(self, url: str) -> None:
        self._server.drop(_database(url))

    @asynccontextmanager
    async def queue(self, notifications: Sequence[Notification]) -> AsyncIterator[Queue]:
        url = self.new()
        connection = await asyncpg.connect(url)
        await connection.execute(QUEUE)
        await connection.execute(ENQUEUE, *_columns(notifications))
        await connection.execute("vacuum analyze outbox")
        yield PostgresQueue(connection, await connection.prepare(FIRST), await connection.prepare(SENT))
        await connection.close()
        self.drop(url)

    @asynccontextmanager
    async def caller(self, url: str) -> AsyncIterator[Caller]:
        connection = await asyncpg.connect(url)
        await connection.execute(f"{ORDERS};{QUEUE}")
        await connection.execute("drop index outbox_pending")
        yield PostgresCaller(connection)
        await connection.close()

    @contextmanager
    def counting(self, url: str) -> Iterator[Tally]:
        """Count the statements of clients, each of which is a round trip. Statements inside functions do not count."""
        name = _database(url)
        self._server.execute(
            "create extension if not exists pg_stat_statements",
            f"alter database {name} set pg_stat_statements.track = 'top'",
            f"alter database {name} set pg_stat_statements.track_utility = on",
        )
        self._server.execute("select pg_stat_statements_reset()")
        tally = PostgresTally()
        yield tally
        ((tally.statements, tally.transactions),) = [
            map(int, row) for row in self._server.execute(COUNTED.format(name))
        ]

    def multiply(self, url: str, number: int) -> None:
        name = _database(url)
        for table in ("notification", "attempt"):
            ((columns,),) = self._server.execute(COLUMNS.format(f"semel.{table}"), database=name)
            values = ", ".join(COPIED.get(column, f"t.{column}") for column in columns.split(","))
            for first in range(1, number, CHUNK):
                self._server.execute(
                    f"insert into semel.{table} ({columns}) select {values} "
                    f"from generate_series({first}, {min(number, first + CHUNK) - 1}) c (n), "
                    f"(select * from semel.{table} where {ORIGINAL}) t",
                    database=name,
                )
        self._server.execute("vacuum analyze", "checkpoint", database=name)


class PostgresQueue:
    """Begin, select, update, commit: the usual loop of an author who accepts duplicates."""

    def __init__(self, connection: Any, first: Any, sent: Any) -> None:
        self._connection = connection
        self._first = first
        self._sent = sent

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Pending | None]:
        async with self._connection.transaction():
            found = await self._first.fetchrow()
            if found is None:
                yield None
                return
            id, *said = found

            async def sent(reference: str) -> None:
                await self._sent.fetch(reference, id)

            yield _notification(said), sent


class PostgresCaller:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.statements = 0
        connection.add_query_logger(self._counted)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            await self._connection.execute(ORDER, 0)
            yield

    async def add(self, notifications: Sequence[Notification]) -> None:
        await adding.add(self._connection, notifications, None, SCHEMA)

    async def insert(self, notifications: Sequence[Notification]) -> None:
        await self._connection.fetch(ENQUEUE, *_columns(notifications))

    def _counted(self, query: object) -> None:
        self.statements += 1


class PostgresTally:
    statements = 0
    transactions = 0


def _columns(notifications: Sequence[Notification]) -> list[list[Any]]:
    rows = [(one.key, one.kind, one.recipient, one.channel, one.body) for one in notifications]
    return [list(column) for column in zip(*rows, strict=True)]


def _notification(said: Sequence[Any]) -> Notification:
    key, kind, recipient, channel, body = said
    return Notification(key=key, kind=kind, recipient=recipient, channel=channel, body=body)


def _database(url: str) -> str:
    return urlsplit(url).path[1:]


async def _migrate(url: str) -> None:
    ledger = open_ledger(url)
    assert isinstance(ledger, Migrates)
    await ledger.migrate()
    await ledger.close()
