"""The types of `ctx.tx`, by ledger: `ctx: Context[SqliteTx]`. Bare `Context` leaves `ctx.tx` untyped."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol


class SqliteTx(Protocol):
    """On SQLite. Nothing is awaited."""

    def execute(self, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run one or more statements; returns all rows."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of bindings."""


class PostgresTx(Protocol):
    """On PostgreSQL, as a connection of asyncpg. Everything is awaited."""

    def execute(self, query: str, *args: Any) -> Coroutine[Any, Any, str]: ...
    def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> Coroutine[Any, Any, None]: ...
    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[Any]]: ...
    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Any]: ...
    def fetchval(self, query: str, *args: Any, column: int = 0) -> Coroutine[Any, Any, Any]: ...
    def transaction(self) -> AbstractAsyncContextManager[None]: ...
