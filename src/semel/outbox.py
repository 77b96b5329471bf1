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

from collections.abc import Awaitable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import Any, Protocol, overload

from semel import wiring
from semel.callers import ASYNC_SQLALCHEMY, Ask, Conversation, Rows, caller, name_of
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification
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
    added = add_many(connection, [notification], schema=schema)
    return _only(added) if isawaitable(added) else added[0]


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
    batch = list(notifications)
    if not all(isinstance(one, Notification) for one in batch):
        raise ConfigError("expected a Notification: outbox.add(connection, Notification(key=…, kind=…, …))")
    if name_of(connection) in ASYNC_SQLALCHEMY:
        inside: Awaitable[list[Added]] = connection.run_sync(lambda sync: add_many(sync, batch, schema=schema))
        return inside
    asked = caller(connection)
    conversation = wiring.adding(asked.store, batch, schema=schema, numbered=asked.numbered, library=asked.library)
    return _awaited(conversation, asked.ask) if iscoroutinefunction(asked.ask) else _said(conversation, asked.ask)


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


async def _only(added: Awaitable[list[Added]]) -> Added:
    (one,) = await added
    return one
