"""Batched statements.

A statement is prepared once for each batch size, and there are few sizes: a batch is cut into pieces of them, so
that every size is answered from the statement cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import apsw

SIZES = (500, 250, 100, 50, 25, 10, 5, 2, 1)

Row: TypeAlias = tuple[Any, ...]


def _named(text: str) -> dict[str, str]:
    """The statements of a file, by the name above each."""
    parts = text.split("-- name: ")[1:]
    return {name: sql.strip() for name, _, sql in (part.partition("\n") for part in parts)}


FILES = ("queries.sql", "inbox.sql", "letters.sql", "catalog.sql", "outbox.sql")
SQL = _named("".join(files(__package__).joinpath(file).read_text() for file in FILES))


def rows(connection: apsw.Connection, sql: str, *bindings: Any) -> list[Row]:
    """All rows of one statement."""
    found: list[Row] = connection.execute(sql, bindings).fetchall()
    return found


def select_in(connection: apsw.Connection, sql: str, keys: Sequence[Any], others: Sequence[Any] = ()) -> Iterator[Row]:
    """Rows of `sql`, whose `{keys}` (and `{others}`, as many) become lists of placeholders."""
    start = 0
    for piece in pieces(keys):
        beside = others[start : start + len(piece)]
        start += len(piece)
        yield from connection.execute(_with_keys(sql, len(piece)), (*piece, *beside))


def run_in(connection: apsw.Connection, sql: str, keys: Sequence[Any], others: Sequence[Any] = ()) -> None:
    """As `select_in`, for statements that return nothing."""
    for _ in select_in(connection, sql, keys, others):
        pass


def insert_many(connection: apsw.Connection, sql: str, rows: Sequence[Row]) -> list[Row]:
    """Write rows by few multi-VALUES statements; `{rows}` becomes the value lists. Returns what they return."""
    returned: list[Row] = []
    for piece in pieces(rows):
        values = [value for row in piece for value in row]
        returned += connection.execute(_with_rows(sql, len(piece[0]), len(piece)), values)
    return returned


def pieces(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Cut a batch into pieces of the prepared sizes."""
    if len(items) in SIZES:
        yield items
        return
    start = 0
    for size in SIZES:
        while len(items) - start >= size:
            yield items[start : start + size]
            start += size


@cache  # as many as there are statements and sizes
def _with_keys(sql: str, count: int) -> str:
    marks = ",".join("?" * count)
    return sql.format(keys=marks, others=marks)


@cache
def _with_rows(sql: str, width: int, count: int) -> str:
    row = f"({','.join('?' * width)})"
    return sql.format(rows=",".join([row] * count))
