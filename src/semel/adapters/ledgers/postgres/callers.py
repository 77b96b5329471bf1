"""Adding notifications on somebody else's connection, inside a transaction of theirs.

What is asked is one statement, whatever the driver: this module says it and reads the answer, and whoever has the
connection runs it. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

from semel.adapters.ledgers.postgres.outbox.adding import columns_of
from semel.adapters.ledgers.postgres.statements import is_schema_name
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.notification import Notification
from semel.values.outbox import Added

Conversation: TypeAlias = Generator[tuple[str, tuple[Any, ...]], Sequence[Any], list[Added]]

ASKED = 2  # statements, at most
TYPES = (*["bytea[]"] * 4, "integer[]", "smallint[]", *["text[]"] * 7, *["bytea[]"] * 2)
"""Of semel.add_1's arguments after the time. All are sent as texts: asyncpg asks the server about any other array when
a connection first sees one, which is three statements more, and psycopg guesses types from values."""

NOT_THERE = ("3F000", "42883", "42P01")  # no such schema, function, table
FORBIDDEN = "42501"


def adding(notifications: Sequence[Notification], schema: str, *, numbered: bool) -> Conversation:
    """Yields statements with their values, is sent their rows, and returns the answers.

    All notifications are written out before anything is asked: a mistake in one of them leaves the transaction whole.
    """
    if not is_schema_name(schema):
        raise ConfigError(f"schema={schema!r}: expected the name in the ledger's URL: postgresql://…?schema=name")
    if not notifications:
        return []
    columns, sql = [[_text(value) for value in column] for column in columns_of(notifications)], _call(schema, numbered)
    answers: dict[int, Added] = {}
    for _ in range(ASKED):
        missing = [at for at in range(len(notifications)) if at not in answers]
        with _explained(schema):
            rows = yield sql, tuple([[column[at] for at in missing] for column in columns])
        for number, status, state in rows:
            at = missing[number - 1]
            answers[at] = Added(notifications[at].id.hex(), status, state)
        if len(answers) == len(notifications):
            return [answers[at] for at in range(len(notifications))]
        # One was there, and was purged before it could be looked at: by now it is a new one.
    raise LedgerUnavailable("PostgreSQL: others removed the same notifications meanwhile: roll back, and try again")


@cache  # as many as there are schemas in use
def _call(schema: str, numbered: bool) -> str:
    marks = [f"{f'${at}' if numbered else '%s'}::text[]::{kind}" for at, kind in enumerate(TYPES, 1)]
    return f'select at, status, state from "{schema}".add_1(null, {", ".join(marks)})'


def _text(value: bytes | str | int | None) -> str | None:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else None if value is None else str(value)


@contextmanager
def _explained(schema: str) -> Iterator[None]:
    """What somebody has to set up is told. All else is the driver's own error, and the caller's to handle: whoever is
    told to try again (serialization, deadlock) has to repeat the whole transaction, and only the caller can."""
    try:
        yield
    except Exception as error:
        state = _sqlstate(error)
        if state in NOT_THERE:
            raise ConfigError(
                f'PostgreSQL: there is no outbox in the schema "{schema}" of this database: run `semel migrate` for '
                "it, or name the schema of the ledger's URL: outbox.add(…, schema=…)"
            ) from error
        if state == FORBIDDEN:
            raise ConfigError(
                f'PostgreSQL: this user may not add to the outbox: grant usage on schema "{schema}", select and insert '
                f'on "{schema}".notification and "{schema}".dispatch, and usage on sequence "{schema}".token'
            ) from error
        raise


def _sqlstate(error: Exception) -> str:
    """As asyncpg and psycopg have it; SQLAlchemy keeps their error in its own."""
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None) or ""
