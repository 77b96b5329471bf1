"""Adds a notification in your own transaction: it is sent after the commit, and never after a rollback.

    with psycopg.connect(…) as connection:
        connection.execute("update orders set shipped = now() where id = 4711")
        outbox.add(connection, Notification(key="order-4711-shipped", kind="shipping", …))

The connection must be to the ledger's own database. At most two statements are executed on it; nothing is begun,
committed or rolled back here. `await` the call if the connection is async:

    async with connection.transaction():
        await outbox.add(connection, Notification(…))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from inspect import iscoroutinefunction
from typing import Any, Literal, Protocol, TypeAlias, overload

from msgspec import Struct

from semel import wiring
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification, check_batch
from semel.values.outbox import Added

# The supported connections: their store, how to execute a statement, and whether they are in a transaction.
#
# No driver is imported here, and none needs to be installed: a connection is recognised by its class.

Rows: TypeAlias = Sequence[Any]
Ask: TypeAlias = Callable[[str, tuple[Any, ...]], Any]  # of a statement and its values: Rows, or an awaitable of them
Conversation: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Rows, list[Added]]

IDLE = 0  # of libpq's transaction states: in none

KNOWN = (
    "asyncpg.Connection, psycopg.Connection, psycopg.AsyncConnection, apsw.Connection, sqlite3.Connection, "
    "aiosqlite.Connection, or a Session, AsyncSession, Connection or AsyncConnection of SQLAlchemy on one of them"
)
ALONE = (
    "this connection is in no transaction: the notification would be committed at once, and would stay when your own "
    "writes are rolled back. Begin one around both: {how}"
)


class CallerConnection(Struct, frozen=True):
    """A connection with the caller's own transaction."""

    store: Literal["postgresql", "sqlite"]
    ask: Ask
    numbered: bool = False  # placeholders are $1, not %s
    library: str = ""  # the version of its SQLite, if it is not that of apsw


def name_of(connection: object) -> str:
    """The name of the first supported base class, such as `sqlalchemy.Session`; else the name of its class."""
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__]
    return next((name for name in names if name in CALLERS or name in ASYNC_SQLALCHEMY), names[0])


def caller(connection: Any) -> CallerConnection:
    """Adapt a connection. Raises ConfigError if it is not supported, or not in a transaction."""
    name = name_of(connection)
    if name not in CALLERS:
        raise ConfigError(
            f"outbox.add cannot write to a {name}: expected {KNOWN}. Any other driver: docs/outbox-sql.md"
        )
    return CALLERS[name](connection)


def _in_transaction(begun: Any, how: str) -> None:
    if not begun:
        raise ConfigError(ALONE.format(how=how))


# ------------------------------------------------------------------------------------------------------ PostgreSQL


def _asyncpg(connection: Any) -> CallerConnection:
    _in_transaction(connection.is_in_transaction(), "async with connection.transaction():")

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        rows: Rows = await connection.fetch(sql, *values)
        return rows

    return CallerConnection("postgresql", ask, numbered=True)


def _psycopg(connection: Any) -> CallerConnection:
    _psycopg_begins(connection, "with connection.transaction():")

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        with connection.cursor(row_factory=_plain) as cursor:
            rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return CallerConnection("postgresql", ask, numbered=_writes_numbers(connection))


def _psycopg_async(connection: Any) -> CallerConnection:
    _psycopg_begins(connection, "async with connection.transaction():")

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        async with connection.cursor(row_factory=_plain) as cursor:
            rows: Rows = await (await cursor.execute(sql, values)).fetchall()
        return rows

    return CallerConnection("postgresql", ask, numbered=_writes_numbers(connection))


def _psycopg_begins(connection: Any, how: str) -> None:
    """Check for a transaction. Without autocommit, psycopg begins one before the first statement."""
    _in_transaction(not connection.autocommit or connection.info.transaction_status != IDLE, how)


def _plain(cursor: object) -> type[tuple[Any, ...]]:
    """A row is a tuple here, whatever row factory the caller has set."""
    return tuple


def _writes_numbers(connection: Any) -> bool:
    """Whether the cursors of this connection use $1."""
    return any(kind.__name__ == "RawCursorMixin" for kind in connection.cursor_factory.__mro__)


# ---------------------------------------------------------------------------------------------------------- SQLite


def _apsw(connection: Any) -> CallerConnection:
    _in_transaction(connection.in_transaction, "with connection:")

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        cursor = connection.cursor()
        cursor.row_trace = _unchanged
        rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return CallerConnection("sqlite", ask)


def _unchanged(cursor: object, row: Any) -> Any:
    return row


def _sqlite3(connection: Any) -> CallerConnection:
    _in_transaction(_sqlite3_begins(connection), 'connection.execute("begin immediate")')

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = None
        rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return CallerConnection("sqlite", ask, library=_standard_library())


def _aiosqlite(connection: Any) -> CallerConnection:
    _in_transaction(_sqlite3_begins(connection), 'await connection.execute("begin immediate")')

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        async with connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(sql, values)
            rows: Rows = await cursor.fetchall()
        return rows

    return CallerConnection("sqlite", ask, library=_standard_library())


def _sqlite3_begins(connection: Any) -> bool:
    """Whether it is in a transaction, or begins one before the first write: by `isolation_level`, or by `autocommit =
    False` (from Python 3.12 on)."""
    autocommit = getattr(connection, "autocommit", -1)
    implied = connection.isolation_level is not None if autocommit not in (True, False) else not autocommit
    return bool(connection.in_transaction) or implied


def _standard_library() -> str:
    import sqlite3

    return sqlite3.sqlite_version


# ------------------------------------------------------------------------------------------------------ SQLAlchemy

ASYNC_SQLALCHEMY = ("sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection")
"""They run sync code by `run_sync`."""

BEGIN_SQLALCHEMY = 'no isolation_level="AUTOCOMMIT", and: with session.begin():'


def _session(session: Any) -> CallerConnection:
    """The connection of a session, in the transaction of the session."""
    return _sqlalchemy(session.connection())


def _sqlalchemy(connection: Any) -> CallerConnection:
    """A connection of SQLAlchemy, which begins a transaction with its first statement unless it has autocommit."""
    dialect, driver = connection.dialect, connection.connection.driver_connection
    name = name_of(driver)
    if name == "asyncpg.Connection":
        begun = not connection.connection.dbapi_connection.autocommit or driver.is_in_transaction()
        _in_transaction(begun, BEGIN_SQLALCHEMY)
        return CallerConnection("postgresql", _executed(connection), numbered=True)
    if name in ("psycopg.Connection", "psycopg.AsyncConnection"):
        _psycopg_begins(driver, BEGIN_SQLALCHEMY)
        return CallerConnection("postgresql", _executed(connection), numbered=_writes_numbers(driver))
    if dialect.name == "sqlite" and dialect.driver in ("pysqlite", "aiosqlite"):
        _in_transaction(_sqlite3_begins(driver), BEGIN_SQLALCHEMY)
        return CallerConnection("sqlite", _executed(connection), library=dialect.dbapi.sqlite_version)
    raise ConfigError(
        f"outbox.add cannot write through {dialect.name}+{dialect.driver} of SQLAlchemy: expected postgresql+psycopg, "
        "postgresql+asyncpg, sqlite+pysqlite or sqlite+aiosqlite. Any other driver: docs/outbox-sql.md"
    )


def _executed(connection: Any) -> Ask:
    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        try:
            rows: Rows = connection.exec_driver_sql(sql, values).all()
        except Exception as error:
            if hasattr(error, "hide_parameters"):
                error.hide_parameters = True  # a message and its recipient must not appear in a log
            raise
        return rows

    return ask


CALLERS: dict[str, Callable[[Any], CallerConnection]] = {
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "psycopg.Connection": _psycopg,
    "psycopg.AsyncConnection": _psycopg_async,
    "apsw.Connection": _apsw,
    "sqlite3.Connection": _sqlite3,
    "aiosqlite.Connection": _aiosqlite,
    "sqlalchemy.Session": _session,
    "sqlalchemy.scoped_session": _session,
    "sqlalchemy.Connection": _sqlalchemy,
}


__all__ = ["Added", "AsyncConnection", "Connection", "Guard", "Notification", "add", "add_many"]


class Connection(Protocol):
    """A connection of psycopg, apsw, sqlite3 or SQLAlchemy, or a session. For type checkers: `close` is not awaited."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """A connection of asyncpg, psycopg, aiosqlite or SQLAlchemy, or an async session, whose `close` is awaited."""

    def close(self) -> Awaitable[None]: ...


@overload
def add(connection: AsyncConnection, notification: Notification, *, schema: str = "semel") -> Awaitable[Added]: ...
@overload
def add(connection: Connection, notification: Notification, *, schema: str = "semel") -> Added: ...
def add(connection: Any, notification: Notification, *, schema: str = "semel") -> Added | Awaitable[Added]:
    """Add one notification, in the transaction that the connection is in.

    "added": it is new. "known": the same notification was added before. "conflict": it was added before with another
    content, which stays. `schema` is that of PostgreSQL, as in the ledger's URL. Raises ConfigError if the connection
    is not in a transaction, or has no outbox. Errors of the driver are raised unchanged: roll back, and repeat the
    whole transaction if the error asks for it."""
    if not isinstance(notification, Notification):
        raise ConfigError("expected a Notification: outbox.add(connection, Notification(key=…, kind=…, …))")
    ask, is_async = _asking(connection, [notification], schema)
    return _one(ask) if is_async else ask()[0]


@overload
def add_many(
    connection: AsyncConnection, notifications: Sequence[Notification], *, schema: str = "semel"
) -> Awaitable[list[Added]]: ...
@overload
def add_many(
    connection: Connection, notifications: Sequence[Notification], *, schema: str = "semel"
) -> list[Added]: ...
def add_many(
    connection: Any, notifications: Sequence[Notification], *, schema: str = "semel"
) -> list[Added] | Awaitable[list[Added]]:
    """Add notifications in order. It takes as many statements as one notification (on SQLite for each 500)."""
    batch = notifications if isinstance(notifications, Notification) else list(notifications)
    check_batch(batch, "outbox.add_many(connection, [Notification(key=…, kind=…, …)])")
    ask, is_async = _asking(connection, batch, schema)
    return _many(ask) if is_async else ask()


def _asking(connection: Any, batch: Sequence[Notification], schema: str) -> tuple[Callable[[], Any], bool]:
    """A function that adds the batch when it is called, and whether its result must be awaited. Python warns about a
    call that is not awaited, by the name that the caller used."""
    if name_of(connection) in ASYNC_SQLALCHEMY:
        return (lambda: connection.run_sync(lambda sync: add_many(sync, batch, schema=schema))), True
    asked = caller(connection)
    conversation = wiring.adding(asked.store, batch, schema=schema, numbered=asked.numbered, library=asked.library)
    if iscoroutinefunction(asked.ask):
        return (lambda: _executed_async(conversation, asked.ask)), True
    return (lambda: _executed_sync(conversation, asked.ask)), False


def _executed_sync(conversation: Conversation, ask: Ask) -> list[Added]:
    """Execute the statements of a store's generator, and send it the rows or the error, until it returns."""
    try:
        asked = next(conversation)
        while True:
            try:
                rows: Rows = ask(*asked)
            except Exception as error:
                asked = conversation.throw(error)
            else:
                asked = conversation.send(rows)
    except StopIteration as over:
        answers: list[Added] = over.value
        return answers


async def _executed_async(conversation: Conversation, ask: Ask) -> list[Added]:
    try:
        asked = next(conversation)
        while True:
            try:
                rows: Rows = await ask(*asked)
            except Exception as error:
                asked = conversation.throw(error)
            else:
                asked = conversation.send(rows)
    except StopIteration as over:
        answers: list[Added] = over.value
        return answers


async def _one(ask: Callable[[], Awaitable[list[Added]]]) -> Added:
    (one,) = await ask()
    return one


async def _many(ask: Callable[[], Awaitable[list[Added]]]) -> list[Added]:
    return await ask()


_one.__qualname__ = "await outbox.add(connection, …)"  # shown in the warning about a missing await
_many.__qualname__ = "await outbox.add_many(connection, …)"
