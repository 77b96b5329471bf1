"""What a handler gets as `ctx.tx`: an asyncpg connection that belongs to it for as long as its transaction is open."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres.pool import driver
from semel.values.errors import TransactionOver

if TYPE_CHECKING:
    from asyncpg import Record

    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")

OVER = "ctx.tx was used after its transaction ended"
ENDS_IT = "a handler does not end or begin its transaction ({word}): it commits when the handler returns"
NOT_ITS_OWN = "savepoints whose names begin with semel_ are not the handler's: use ctx.tx.transaction()"
FAILED = (
    "a statement of the handler failed, and PostgreSQL keeps nothing of a transaction after that: "
    "put `async with ctx.tx.transaction():` around what may fail"
)

NOT_AWAITED = "a statement of ctx.tx was not awaited, and so it was never run: write `await ctx.tx.execute(…)`"

_ENDING = frozenset(("begin", "start", "commit", "end", "rollback", "abort", "prepare"))
_LEXEME = re.compile(
    r"""--[^\n]*|/\*|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|;|\w+""", re.DOTALL
)


class Handle:
    """Run SQL on your own tables: `execute`, `executemany`, `fetch`, `fetchrow`, `fetchval`, as in asyncpg.

    `transaction()` is a savepoint: what fails inside it does not spoil the rest. When the handler's time is over the
    handle refuses, so that a handler that goes on cannot write into a transaction that is no longer its own.
    """

    was_in_the_way = False
    """A statement was refused because two transactions waited for each other, and nothing has made up for it."""
    only_reads = False
    """A statement was refused because the server is no primary (any more)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open = True
        self._savepoints = 0
        self._running: asyncio.Task[Any] | None = None
        self._not_begun: list[Coroutine[Any, Any, Any]] = []

    def execute(self, query: str, *args: Any) -> Coroutine[Any, Any, str]:
        return self._to_be_awaited(self._run(query, lambda: self._connection.execute(query, *args)))

    def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        return self._to_be_awaited(self._run(query, lambda: self._connection.executemany(query, args)))

    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[Record]]:
        return self._to_be_awaited(self._run(query, lambda: self._connection.fetch(query, *args)))

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Record | None]:
        return self._to_be_awaited(self._run(query, lambda: self._connection.fetchrow(query, *args)))

    def fetchval(self, query: str, *args: Any, column: int = 0) -> Coroutine[Any, Any, Any]:
        return self._to_be_awaited(self._run(query, lambda: self._connection.fetchval(query, *args, column=column)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A savepoint of the handler's own: rolled back alone when its block raises."""
        self._savepoints += 1
        name = f"semel_own_{self._savepoints}"
        await self._run("", lambda: self._connection.execute(f"savepoint {name}"))
        try:
            yield
        except BaseException:
            if self._open:
                await self._run("", lambda: self._connection.execute(f"rollback to {name}; release {name}"))
                self.was_in_the_way = False
            raise
        await self._run("", lambda: self._connection.execute(f"release {name}"))

    async def silence(self) -> None:
        """The handler has had its say, and cannot write any more. Refused when the transaction is over already."""
        self._check()
        self._check_awaited()
        self._open = False
        await self._quiet()

    def refuse(self) -> None:
        """Refuse from here on. A statement that is still running is left to `close`."""
        self._open = False

    async def close(self) -> None:
        """Refuse from here on. A statement that is still running is cancelled."""
        self._open = False
        await self._quiet()

    def _to_be_awaited(self, statement: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        self._not_begun = [*filter(_is_not_begun, self._not_begun), statement]
        return statement

    def _check_awaited(self) -> None:
        """An effect that was only spoken of has not happened, and must not be recorded as done."""
        forgotten = [*filter(_is_not_begun, self._not_begun)]
        for statement in forgotten:
            statement.close()
        if forgotten:
            raise TransactionOver(NOT_AWAITED)

    async def _run(self, query: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check()
        if query:
            check_statements(query)
        if self._running is not None:
            raise TransactionOver("two statements at once: a transaction runs one after the other")
        asyncpg = driver()
        running: asyncio.Task[T] = asyncio.create_task(begin())
        self._running = running
        try:
            return await running
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            self.was_in_the_way = True
            raise
        except asyncpg.ReadOnlySQLTransactionError:
            self.only_reads = True
            raise
        except asyncio.CancelledError:
            if not self._open and running.cancelled():
                raise TransactionOver(OVER) from None
            raise
        finally:
            if running.done():
                self._running = None

    async def _quiet(self) -> None:
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.cancel()
        if running is not None:
            with suppress(BaseException):
                await running

    def _check(self) -> None:
        if not self._open:
            raise TransactionOver(OVER)


def _is_not_begun(statement: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(statement) == inspect.CORO_CREATED


def check_statements(text: str) -> None:
    """Refuse what would end the transaction behind the back of whoever opened it, before it is run."""
    for words in _statements(text):
        first, second = (*words, "", "")[:2]
        if first in ("savepoint", "release") or (first == "rollback" and "to" in words[1:3]):
            if any(word.strip('"').startswith("semel_") for word in words):
                raise TransactionOver(NOT_ITS_OWN)
        elif first in _ENDING and (first != "prepare" or second == "transaction"):
            raise TransactionOver(ENDS_IT.format(word=first.upper()))


def _statements(text: str) -> list[list[str]]:
    """The first words of each statement, in small letters. Quoted text, comments and bodies are passed over."""
    found: list[list[str]] = [[]]
    at = 0
    while (lexeme := _LEXEME.search(text, at)) is not None:
        at, word = lexeme.end(), lexeme.group()
        if word == "/*":
            at = _after_comment(text, at)
        elif word == ";":
            found.append([])
        elif not word.startswith(("--", "'", "$", "e'", "E'")) and len(found[-1]) < 4:
            found[-1].append(word.lower())
    return [words for words in found if words]


def _after_comment(text: str, at: int) -> int:
    """Comments nest."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
