"""Adding a notification in a transaction of your own: it is sent once that commits, and never if it rolls back.

    with psycopg.connect(…) as connection:
        connection.execute("update orders set shipped = now() where id = 4711")
        outbox.add(connection, Notification(key="order-4711-shipped", kind="shipping", …))

The connection is to the ledger's own database. It is asked at most two statements; nothing is begun, committed or
rolled back here. `await` it where the connection is async:

    async with connection.transaction():
        await outbox.add(connection, Notification(…))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol, overload

from semel import wiring
from semel.callers import ASYNC_SQLALCHEMY, Ask, Conversation, Rows, caller, name_of
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification, check_batch
from semel.values.outbox import Added

__all__ = ["Added", "AsyncConnection", "Connection", "Guard", "Notification", "add", "add_many"]


class Connection(Protocol):
    """Of psycopg, apsw, sqlite3 or SQLAlchemy, or a session of the last. To a type checker: what is closed at once."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """Of asyncpg, psycopg, aiosqlite or SQLAlchemy, or an async session. To a type checker: its close is awaited."""

    def close(self) -> Awaitable[None]: ...


@overload
def add(connection: AsyncConnection, notification: Notification, *, schema: str = "semel") -> Awaitable[Added]: ...
@overload
def add(connection: Connection, notification: Notification, *, schema: str = "semel") -> Added: ...
def add(connection: Any, notification: Notification, *, schema: str = "semel") -> Added | Awaitable[Added]:
    """Add one notification, in the transaction that the connection is in.

    "added": it is new. "known": the same call was made before. "conflict": it was made before and said something else,
    which stays. `schema` is PostgreSQL's, as in the ledger's URL. Raises ConfigError where the connection is in no
    transaction or to no outbox. Errors of the driver are raised as they are: roll back, and repeat the whole
    transaction where it says so."""
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
    """Add notifications in order, as if one after the other: in as many statements as one (SQLite: for each 500)."""
    batch = notifications if isinstance(notifications, Notification) else list(notifications)
    check_batch(batch, "outbox.add_many(connection, [Notification(key=…, kind=…, …)])")
    ask, is_async = _asking(connection, batch, schema)
    return _many(ask) if is_async else ask()


def _asking(connection: Any, batch: Sequence[Notification], schema: str) -> tuple[Callable[[], Any], bool]:
    """What asks the connection when it is called, and whether that is to be awaited. A call that nobody awaits is then
    told by Python once, under the name that it has for the caller."""
    if name_of(connection) in ASYNC_SQLALCHEMY:
        return (lambda: connection.run_sync(lambda sync: add_many(sync, batch, schema=schema))), True
    asked = caller(connection)
    conversation = wiring.adding(asked.store, batch, schema=schema, numbered=asked.numbered, library=asked.library)
    if iscoroutinefunction(asked.ask):
        return (lambda: _awaited(conversation, asked.ask)), True
    return (lambda: _said(conversation, asked.ask)), False


def _said(conversation: Conversation, ask: Ask) -> list[Added]:
    """Ask what the store wants to know, tell it what was answered, or what went wrong, until it knows."""
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


async def _awaited(conversation: Conversation, ask: Ask) -> list[Added]:
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


_one.__qualname__ = "await outbox.add(connection, …)"  # who forgets to await is told what to write
_many.__qualname__ = "await outbox.add_many(connection, …)"
