"""SQLite: every outbox has its own file with the settings of the ledger, as has the table of the hand-written loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
from bench.outbox.plan import Caller, Pending, Queue, Tally
from bench.outbox.sending import notification
from bench.peers import SETTINGS

from semel.ledgers.sqlite import outbox as adding
from semel.values.notification import Notification, notification_id, recipient_digest

QUEUE = """
    create table outbox (id integer primary key, key text not null, kind text not null, recipient text not null,
        channel text not null, body text not null, state text not null default 'pending', reference text) strict;
    create index outbox_pending on outbox (id) where state = 'pending';
"""
ENQUEUE = "insert into outbox (key, kind, recipient, channel, body) values {}"
FIRST = "select id, key, kind, recipient, channel, body from outbox where state = 'pending' order by id limit 1"
SENT = "update outbox set state = 'sent', reference = ? where id = ?"
ORDERS = "create table orders (id integer primary key, at integer not null) strict"
ORDER = "insert into orders (at) values (?)"

# The columns that differ in each copy of a finished message.
COPIED = {
    "id": "bench_id(c.value)",
    "recipient_digest": "bench_who(c.value)",
    "key": "bench_key(c.value)",
    "recipient": "bench_recipient(c.value)",
    "reference": "t.reference || '-' || c.value",
}
NUMBERS = "with recursive c (value) as (select 1 union all select value + 1 from c limit {})"


@contextmanager
def opened(folder: Path) -> Iterator[OnSqlite]:
    yield OnSqlite(folder)


class OnSqlite:
    name = "sqlite"
    title = "The outbox on SQLite, synchronous=FULL"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = count()

    def server(self) -> float:
        return 0.0

    def remarks(self) -> list[str]:
        return [f"SQLite {apsw.sqlitelibversion()}, WAL; the loop's table is in a file with the same settings"]

    def new(self) -> str:
        return f"sqlite:///{self._folder / f'{next(self._names)}.db'}"

    def drop(self, url: str) -> None:
        path = _path(url)
        for file in (path, f"{path}-wal", f"{path}-shm"):
            Path(file).unlink(missing_ok=True)

    @asynccontextmanager
    async def queue(self, notifications: Sequence[Notification]) -> AsyncIterator[Queue]:
        url = self.new()
        with _connected(_path(url)) as connection:
            connection.execute(QUEUE)
            with connection:
                connection.executemany(ENQUEUE.format("(?, ?, ?, ?, ?)"), [_row(one) for one in notifications])
            yield SqliteQueue(connection)
        self.drop(url)

    @asynccontextmanager
    async def caller(self, url: str) -> AsyncIterator[Caller]:
        """Writes to the file of the ledger, so that both writes are one transaction."""
        with _connected(_path(url)) as connection:
            connection.execute(f"{ORDERS};{QUEUE}")
            connection.execute("drop index outbox_pending")
            yield SqliteCaller(connection)

    @contextmanager
    def counting(self, url: str) -> Iterator[Tally]:
        tally = SqliteTally()
        apsw.connection_hooks.append(tally.watch)
        try:
            yield tally
        finally:
            apsw.connection_hooks.remove(tally.watch)

    def multiply(self, url: str, number: int) -> None:
        with _connected(_path(url)) as connection:
            for name, of in COPIES.items():
                connection.create_scalar_function(f"bench_{name}", of, 1, deterministic=True)
            connection.execute("pragma synchronous = off")
            with connection:
                for table in ("semel_notification", "semel_attempt"):
                    columns = [column for _, column, *_ in connection.execute(f"pragma table_info({table})")]
                    if table == "semel_notification" and (unknown := COPIED.keys() - columns):
                        raise AssertionError(f"{table} has no column {unknown}: its copies would be equal")
                    values = ", ".join(COPIED.get(column, f"t.{column}") for column in columns)
                    connection.execute(
                        f"insert into {table} ({', '.join(columns)}) {NUMBERS.format(number - 1)} select {values} "
                        f"from c cross join (select * from {table} limit 1) t"
                    )
            connection.execute("pragma wal_checkpoint(truncate)")


COPIES: dict[str, Callable[..., Any]] = {
    "id": lambda number: _id_of(notification(number)),
    "who": lambda number: recipient_digest("", notification(number).recipient),
    "key": lambda number: notification(number).key,
    "recipient": lambda number: notification(number).recipient,
}


def _id_of(one: Notification) -> bytes:
    return notification_id(one.tenant, one.key, one.kind, one.recipient, one.channel, one.generation)


class SqliteQueue:
    """One commit for each message, that of the update."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Pending | None]:
        found = self._connection.execute(FIRST).fetchall()
        if not found:
            yield None
            return
        ((id, *said),) = found

        async def sent(reference: str) -> None:
            self._connection.execute(SENT, (reference, id))

        yield _notification(said), sent


class SqliteCaller:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.statements = 0
        connection.set_exec_trace(self._counted)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._connection.execute("begin immediate")
        self._connection.execute(ORDER, (0,))
        yield
        self._connection.execute("commit")

    async def add(self, notifications: Sequence[Notification]) -> None:
        adding.add(self._connection, notifications, time.time_ns() // 1_000_000)

    async def insert(self, notifications: Sequence[Notification]) -> None:
        rows = [value for one in notifications for value in _row(one)]
        self._connection.execute(ENQUEUE.format(",".join(["(?, ?, ?, ?, ?)"] * len(notifications))), rows)

    def _counted(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        self.statements += 1
        return True


class SqliteTally:
    def __init__(self) -> None:
        self.statements = 0
        self.transactions = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._told, id=self)

    def _told(self, told: dict[str, Any]) -> None:
        if not told["trigger"]:
            self.statements += 1
            self.transactions += told["sql"] == "commit"


def _row(one: Notification) -> tuple[str, ...]:
    return one.key, one.kind, one.recipient, one.channel, one.body


def _notification(said: Sequence[Any]) -> Notification:
    key, kind, recipient, channel, body = said
    return Notification(key=key, kind=kind, recipient=recipient, channel=channel, body=body)


@contextmanager
def _connected(path: str) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(path, statementcachesize=256)
    for pragma in SETTINGS:
        connection.execute(f"pragma {pragma}")
    try:
        yield connection
    finally:
        connection.close()


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")
