"""Adds notifications on the caller's own connection, inside the caller's transaction.

One statement does it with every driver. This module builds the statement and interprets its rows; the caller runs it.
Nothing here begins or ends a transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

from semel.ledgers.postgres.outbox import notification_columns
from semel.ledgers.postgres.statements import is_schema_name
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.notification import Notification
from semel.values.outbox import Added

Conversation: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Added]]

STATEMENTS_MAX = 2  # a second one only if a notification was purged during the first
TYPES = (*["bytea[]"] * 4, "integer[]", "smallint[]", *["text[]"] * 7, *["bytea[]"] * 2)
"""Types of the arguments of semel.add_notifications after the time.

All are sent as arrays of texts. asyncpg queries the server about any other array type when a connection first uses
one, which costs three more statements, and psycopg guesses types from values."""

MISSING = ("3F000", "42883", "42P01")  # no such schema, function, table
FORBIDDEN = "42501"


def adding(notifications: Sequence[Notification], schema: str, *, numbered: bool) -> Conversation:
    """Yield statements with their values, receive their rows by `send`, and return the results.

    All notifications are encoded before the first statement: an invalid one leaves the transaction intact.
    """
    if not is_schema_name(schema):
        raise ConfigError(f"schema={schema!r}: expected the name in the ledger's URL: postgresql://…?schema=name")
    if not notifications:
        return []
    columns = [[_text(value) for value in column] for column in notification_columns(notifications)]
    sql = _call(schema, numbered)
    results: dict[int, Added] = {}
    for _ in range(STATEMENTS_MAX):
        missing = [at for at in range(len(notifications)) if at not in results]
        with _explained(schema):
            rows = yield sql, tuple([[column[at] for at in missing] for column in columns])
        for ordinal, status, state in rows:
            at = missing[ordinal - 1]
            results[at] = Added(notifications[at].id.hex(), status, state)
        if len(results) == len(notifications):
            return [results[at] for at in range(len(notifications))]
        # A known one was purged before it could be read: now it is new.
    raise LedgerUnavailable("PostgreSQL: the same notifications were purged concurrently: roll back and try again")


@cache  # as many as there are schemas in use
def _call(schema: str, numbered: bool) -> str:
    marks = [f"{f'${at}' if numbered else '%s'}::text[]::{kind}" for at, kind in enumerate(TYPES, 1)]
    return f'select ordinal, status, state from "{schema}".add_notifications(null, {", ".join(marks)})'


def _text(value: bytes | str | int | None) -> str | None:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else None if value is None else str(value)


@contextmanager
def _explained(schema: str) -> Iterator[None]:
    """Explain a missing outbox or privilege as a ConfigError. Every other error of the driver is left to the caller.

    Only the caller can repeat the whole transaction after a serialization failure or a deadlock."""
    try:
        yield
    except Exception as error:
        # The attribute of asyncpg and psycopg; SQLAlchemy wraps their errors.
        state = getattr(getattr(error, "orig", None) or error, "sqlstate", None)
        if state in MISSING:
            raise ConfigError(
                f'PostgreSQL: there is no outbox in the schema "{schema}" of this database: run `semel migrate`, '
                "or pass the schema of the ledger's URL: outbox.add(…, schema=…)"
            ) from error
        if state == FORBIDDEN:
            raise ConfigError(
                f'PostgreSQL: this user may not add to the outbox: grant usage on schema "{schema}", select and insert '
                f'on "{schema}".notification and "{schema}".dispatch, and usage on sequence "{schema}".token'
            ) from error
        raise
