"""The SQL statements by name, and their execution for a whole batch.

A statement is prepared once for each batch size. There are few sizes: a batch of another size is cut into pieces, so
that every piece finds its statement in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any, TypeAlias

import apsw

SIZES = (500, 250, 100, 50, 25, 10, 5, 2, 1)

Row: TypeAlias = tuple[Any, ...]


def named_statements(*names: str) -> dict[str, str]:
    """Read SQL files. Each statement follows a line `-- name: …`; comment lines are removed."""
    text = "\n".join([files(__package__).joinpath(name).read_text() for name in names])
    statements = {}
    for part in text.split("-- name: ")[1:]:
        name, *lines = part.splitlines()
        statements[name] = "\n".join([line for line in lines if not line.startswith("--")]).strip()
    return statements


SQL = named_statements("claims.sql", "inbox.sql", "dead_letters.sql", "catalog.sql", "outbox.sql")


def rows(connection: apsw.Connection, sql: str, *bindings: Any) -> list[Row]:
    """Return all rows of one statement."""
    return connection.execute(sql, bindings).fetchall()


def select_many(connection: apsw.Connection, sql: str, keys: Sequence[Any]) -> list[Row]:
    """Run a statement whose `{keys}` become placeholders. Returns its rows."""
    if len(keys) in SIZES:
        return connection.execute(with_keys(sql, len(keys)), keys).fetchall()
    return [row for piece in _pieces(keys) for row in select_many(connection, sql, piece)]


def write_many(connection: apsw.Connection, sql: str, values: Sequence[Row]) -> list[Row]:
    """Run a statement whose `{rows}` become lists of placeholders. Returns its rows."""
    if len(values) in SIZES:
        sql = with_rows(sql, len(values[0]), len(values))
        return connection.execute(sql, tuple(chain.from_iterable(values))).fetchall()
    return [row for piece in _pieces(values) for row in write_many(connection, sql, piece)]


def _pieces(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    start = 0
    for size in SIZES:
        while len(items) - start >= size:
            yield items[start : start + size]
            start += size


@cache  # as many as there are statements and sizes
def with_keys(sql: str, count: int) -> str:
    return sql.format(keys=",".join([f"?{number}" for number in range(1, count + 1)]))


@cache
def with_rows(sql: str, width: int, count: int) -> str:
    row = f"({','.join('?' * width)})"
    return sql.format(rows=",".join([row] * count))
