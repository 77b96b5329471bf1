"""Connections of others: which store is behind them, how they are asked, and whether they are in a transaction.

None of their drivers is imported here, and none needs to be installed: a connection is known by its class, and whoever
hands it over has the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from semel.values.errors import ConfigError
from semel.values.outbox import Added

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


class Caller(Struct, frozen=True):
    """A connection with somebody else's transaction on it."""

    store: Literal["postgresql", "sqlite"]
    ask: Ask
    numbered: bool = False  # it writes $1, and not %s
    library: str = ""  # the version of its SQLite, where that is not apsw's


def name_of(connection: object) -> str:
    """`sqlalchemy.Session`, of whatever was made of it; else the class's own name."""
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__]
    return next((name for name in names if name in CALLERS or name in ASYNC_SQLALCHEMY), names[0])


def caller(connection: Any) -> Caller:
    """How a connection is asked. Raises ConfigError where it is of no known kind, or in no transaction."""
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


def _asyncpg(connection: Any) -> Caller:
    _in_transaction(connection.is_in_transaction(), "async with connection.transaction():")

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        rows: Rows = await connection.fetch(sql, *values)
        return rows

    return Caller("postgresql", ask, numbered=True)


def _psycopg(connection: Any) -> Caller:
    _psycopg_begins(connection, "with connection.transaction():")

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        with connection.cursor(row_factory=_plain) as cursor:
            rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return Caller("postgresql", ask, numbered=_writes_numbers(connection))


def _psycopg_async(connection: Any) -> Caller:
    _psycopg_begins(connection, "async with connection.transaction():")

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        async with connection.cursor(row_factory=_plain) as cursor:
            rows: Rows = await (await cursor.execute(sql, values)).fetchall()
        return rows

    return Caller("postgresql", ask, numbered=_writes_numbers(connection))


def _psycopg_begins(connection: Any, how: str) -> None:
    """Without autocommit it begins a transaction itself, before the first statement."""
    _in_transaction(not connection.autocommit or connection.info.transaction_status != IDLE, how)


def _plain(cursor: object) -> type[tuple[Any, ...]]:
    """A row is a tuple here, whatever the caller wants of other statements."""
    return tuple


def _writes_numbers(connection: Any) -> bool:
    """The caller has chosen cursors that write $1."""
    return any(kind.__name__ == "RawCursorMixin" for kind in connection.cursor_factory.__mro__)


# ---------------------------------------------------------------------------------------------------------- SQLite


def _apsw(connection: Any) -> Caller:
    _in_transaction(connection.in_transaction, "with connection:")

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        cursor = connection.cursor()
        cursor.row_trace = _as_it_is
        rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return Caller("sqlite", ask)


def _as_it_is(cursor: object, row: Any) -> Any:
    return row


def _sqlite3(connection: Any) -> Caller:
    _in_transaction(_sqlite3_begins(connection), 'connection.execute("begin immediate")')

    def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        cursor = connection.cursor()
        cursor.row_factory = None
        rows: Rows = cursor.execute(sql, values).fetchall()
        return rows

    return Caller("sqlite", ask, library=_standard_library())


def _aiosqlite(connection: Any) -> Caller:
    _in_transaction(_sqlite3_begins(connection), 'await connection.execute("begin immediate")')

    async def ask(sql: str, values: tuple[Any, ...]) -> Rows:
        async with connection.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(sql, values)
            rows: Rows = await cursor.fetchall()
        return rows

    return Caller("sqlite", ask, library=_standard_library())


def _sqlite3_begins(connection: Any) -> bool:
    """In a transaction, or one that begins by itself before the first write: `isolation_level` (as it always was),
    or `autocommit = False` (from Python 3.12 on)."""
    autocommit = getattr(connection, "autocommit", -1)
    implied = connection.isolation_level is not None if autocommit not in (True, False) else not autocommit
    return bool(connection.in_transaction) or implied


def _standard_library() -> str:
    import sqlite3

    return sqlite3.sqlite_version


# ------------------------------------------------------------------------------------------------------ SQLAlchemy

ASYNC_SQLALCHEMY = ("sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection")
"""They run what is sync inside their own: `run_sync`."""

BEGIN_SQLALCHEMY = 'no isolation_level="AUTOCOMMIT", and: with session.begin():'


def _session(session: Any) -> Caller:
    """Its own connection, in its own transaction."""
    return _sqlalchemy(session.connection())


def _sqlalchemy(connection: Any) -> Caller:
    """A connection begins a transaction with its first statement, if it is allowed to."""
    dialect, driver = connection.dialect, connection.connection.driver_connection
    name = name_of(driver)
    if name == "asyncpg.Connection":
        begun = not connection.connection.dbapi_connection.autocommit or driver.is_in_transaction()
        _in_transaction(begun, BEGIN_SQLALCHEMY)
        return Caller("postgresql", _executed(connection), numbered=True)
    if name in ("psycopg.Connection", "psycopg.AsyncConnection"):
        _psycopg_begins(driver, BEGIN_SQLALCHEMY)
        return Caller("postgresql", _executed(connection), numbered=_writes_numbers(driver))
    if dialect.name == "sqlite" and dialect.driver in ("pysqlite", "aiosqlite"):
        _in_transaction(_sqlite3_begins(driver), BEGIN_SQLALCHEMY)
        return Caller("sqlite", _executed(connection), library=dialect.dbapi.sqlite_version)
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
                error.hide_parameters = True  # a message and its recipient do not belong into anybody's log
            raise
        return rows

    return ask


CALLERS: dict[str, Callable[[Any], Caller]] = {
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
