"""Transactions of handlers: the handle `ctx.tx`, and the groups of transactions that share a commit."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.ledgers.postgres import outbox
from semel.ledgers.postgres.claims import advisory_lock, hold_after, settle_held
from semel.ledgers.postgres.pool import LOOKUP_SETTINGS, Pool, driver, faults, first_line, is_refusal, unavailable
from semel.ledgers.postgres.url import Options
from semel.values.claim import Lease, Settlement
from semel.values.errors import LedgerUnavailable, SemelError, TransactionOver
from semel.values.notification import Notification
from semel.values.outbox import Added

if TYPE_CHECKING:
    from asyncpg import Record

    from semel.ledgers.postgres.pool import Connection

T = TypeVar("T")

OVER = "ctx.tx was used after its transaction ended"
ENDS_IT = "a handler does not end or begin its transaction ({word}): it commits when the handler returns"
NOT_ITS_OWN = "savepoint names that begin with semel_ are reserved: use ctx.tx.transaction()"
FAILED = (
    "a statement of the handler failed, and PostgreSQL rolls back the whole transaction after that: "
    "use `async with ctx.tx.transaction():` around statements that may fail"
)

NOT_AWAITED = "a statement of ctx.tx was not awaited and never ran: write `await ctx.tx.execute(…)`"

_ENDING = frozenset(("begin", "start", "commit", "end", "rollback", "abort", "prepare"))
_LEXEME = re.compile(
    r"""--[^\n]*|/\*|[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|;|\w+""", re.DOTALL
)


class Handle:
    """Runs SQL on the handler's own tables: `execute`, `executemany`, `fetch`, `fetchrow`, `fetchval`, as in asyncpg.

    `transaction()` is a savepoint: an error inside it does not affect the rest. The handle is closed when the handler's
    time is over, so that a handler that continues cannot write into the transaction of another handler.
    """

    deadlocked = False
    """A statement failed because of a deadlock or a serialization failure, and no savepoint has undone that."""
    only_reads = False
    """A statement was refused because the server is not a primary (any more)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open = True
        self._savepoints = 0
        self._running: asyncio.Task[Any] | None = None
        self._not_started: list[Coroutine[Any, Any, Any]] = []

    def execute(self, query: str, *args: Any) -> Coroutine[Any, Any, str]:
        return self._track(self._run(query, lambda: self._connection.execute(query, *args)))

    def executemany(self, query: str, args: Iterable[Sequence[Any]]) -> Coroutine[Any, Any, None]:
        return self._track(self._run(query, lambda: self._connection.executemany(query, args)))

    def fetch(self, query: str, *args: Any) -> Coroutine[Any, Any, list[Record]]:
        return self._track(self._run(query, lambda: self._connection.fetch(query, *args)))

    def fetchrow(self, query: str, *args: Any) -> Coroutine[Any, Any, Record | None]:
        return self._track(self._run(query, lambda: self._connection.fetchrow(query, *args)))

    def fetchval(self, query: str, *args: Any, column: int = 0) -> Coroutine[Any, Any, Any]:
        return self._track(self._run(query, lambda: self._connection.fetchval(query, *args, column=column)))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Open a savepoint of the handler. It is rolled back alone if its block raises."""
        self._savepoints += 1
        name = f"semel_own_{self._savepoints}"
        await self._run("", lambda: self._connection.execute(f"savepoint {name}"))
        try:
            yield
        except BaseException:
            if self._open:
                await self._run("", lambda: self._connection.execute(f"rollback to {name}; release {name}"))
                self.deadlocked = False
            raise
        await self._run("", lambda: self._connection.execute(f"release {name}"))

    async def end_writes(self) -> None:
        """Close the handle before a settlement. Raises if it is closed already, or if a statement was not awaited: the
        effect of such a statement must not be recorded as done."""
        self._check_open()
        unawaited = [*filter(_is_not_started, self._not_started)]
        for statement in unawaited:
            statement.close()
        if unawaited:
            raise TransactionOver(NOT_AWAITED)
        await self.close()

    def refuse(self) -> None:
        """Refuse further statements. A statement that is still running is left to `close`."""
        self._open = False

    async def close(self) -> None:
        """Refuse further statements. A statement that is still running is cancelled."""
        self._open = False
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(BaseException):
                await running

    def _track(self, statement: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        self._not_started = [*filter(_is_not_started, self._not_started), statement]
        return statement

    async def _run(self, query: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        if query:
            check_statements(query)
        if self._running is not None:
            raise TransactionOver("two statements at once: a transaction runs one statement after the other")
        asyncpg = driver()
        running: asyncio.Task[T] = asyncio.create_task(begin())
        self._running = running
        try:
            return await running
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
            self.deadlocked = True
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

    def _check_open(self) -> None:
        if not self._open:
            raise TransactionOver(OVER)


def _is_not_started(statement: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(statement) == inspect.CORO_CREATED


def check_statements(text: str) -> None:
    """Refuse statements that would end the ledger's transaction, before they run."""
    for words in _statements(text):
        first, second = (*words, "", "")[:2]
        if first in ("savepoint", "release") or (first == "rollback" and "to" in words[1:3]):
            if any(word.strip('"').startswith("semel_") for word in words):
                raise TransactionOver(NOT_ITS_OWN)
        elif first in _ENDING and (first != "prepare" or second == "transaction"):
            raise TransactionOver(ENDS_IT.format(word=first.upper()))


def _statements(text: str) -> list[list[str]]:
    """Return the first words of each statement, in lower case. Quoted text, comments and bodies are skipped."""
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
    """Return the position after a comment. Comments nest."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)


# ------------------------------------------------------------------------------------------------ groups of sessions

GROUP_S = 0.05  # time in which a transaction accepts further sessions: others wait for the rows that it has locked
SAVEPOINT = "semel_session"
RESET = "reset session authorization; reset all"
CLEAN = "select pg_advisory_unlock_all(); close all; unlisten *; discard temp"
CHECK = "savepoint semel_check; set constraints all immediate; rollback to semel_check; release semel_check"
READY = f"{CHECK}; {RESET}"  # settings of a handler, for example its role, must not affect the ledger
ALONE_S = 30.0  # time in which handlers do not share commits after a deadlock
STORES_OWN = ("08", "40", "53", "55", "57", "58", "XX")  # classes of SQLSTATE that are not the handler's fault
SET_LOOKUP = "; ".join(f"set local {name} = {value}" for name, value in LOOKUP_SETTINGS.items())
DEADLOCK = "the handler and another transaction waited for each other; it was rolled back, and may run again"
NOT_COMMITTABLE = "the handler's writes cannot be committed"
ENDED_ITSELF = "the handler ended its transaction itself; it commits when the handler returns"


def own_search_path(schema: str) -> str:
    """Return a statement that removes the ledger's schema from a handler's search path.

    A role named `semel` finds the schema `semel` through "$user". The handler's `create table orders` would then create
    the table in the ledger's schema, and its own table `notification` would be the ledger's."""
    return (
        "select set_config('search_path', coalesce((select string_agg(quote_ident(s), ', ' order by at) "
        f"from unnest(current_schemas(false)) with ordinality p(s, at) where s <> '{schema}'), ''), true) "
        f"where '{schema}' = any (current_schemas(false))"
    )


class PostgresTransaction:
    """One savepoint of a group's transaction."""

    def __init__(self, connection: Connection, lease: Lease, options: Options, end: Callable[[], None]) -> None:
        """`end` makes the group roll back to the savepoint and continue with other sessions."""
        self.handle = Handle(connection)
        self.settled: Settlement | None = None
        self._connection = connection
        self._lease = lease
        self._options = options
        self._end = end
        self._writes_ended = False

    async def notify(self, notifications: Sequence[Notification]) -> list[Added]:
        """Add notifications beside the handler's writes. The handler cannot write after it."""
        await self._end_writes()

        async def add() -> list[Added]:
            await self._connection.execute(RESET)
            return await outbox.add(self._connection, notifications, None, self._options.schema)

        return await self._run_own(add)

    async def settle(self, settlement: Settlement) -> bool:
        """Lock the lease for the settlement beside the handler's writes. The handler cannot write after it.

        First check whether the handler's writes can be committed (deferred constraints), so that this session fails
        alone and not with its group. The locked rows are written just before the commit, all at once: a claim waits
        for a row that is being updated, but not for one that is only locked."""
        if settlement.lease != self._lease:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        await self._end_writes()
        schema = self._options.schema
        held = await self._run_own(lambda: hold_after(READY, self._connection, self._lease, schema))
        if held:
            self.settled = settlement
        return held

    def abandon(self) -> None:
        if not self._writes_ended:
            self.handle.refuse()
            self._end()

    async def _end_writes(self) -> None:
        if not self._writes_ended:
            await self.handle.end_writes()
            self._writes_ended = True

    async def _run_own(self, statement: Callable[[], Awaitable[T]]) -> T:
        """Run a statement of the ledger on the handler's connection. The error shows whether the handler caused it."""
        if not self._connection.is_in_transaction():
            raise TransactionOver(ENDED_ITSELF)
        asyncpg = driver()
        try:
            async with asyncio.timeout(self._options.timeout):
                return await statement()
        except asyncpg.InFailedSQLTransactionError:
            self.check_deadlock()
            raise TransactionOver(FAILED) from None
        except faults() as error:
            if isinstance(error, asyncpg.PostgresError) and error.sqlstate[:2] not in STORES_OWN:
                raise TransactionOver(f"{NOT_COMMITTABLE}: {first_line(error)}") from None
            raise unavailable(self._options, error) from error

    def check_deadlock(self) -> None:
        """Raise LedgerUnavailable if a deadlock or a read-only server stopped the handler: that is no attempt."""
        if self.handle.deadlocked:
            raise LedgerUnavailable(f"{self._options.where}: {DEADLOCK}")
        if self.handle.only_reads:
            raise unavailable(self._options, driver().ReadOnlySQLTransactionError(""))


class Session:
    """The transaction of one handler in a group: opened, ended by the handler, answered after the commit."""

    def __init__(self, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        self.lease = lease
        self.opened: asyncio.Future[PostgresTransaction] = loop.create_future()
        self.ended: asyncio.Future[bool] = loop.create_future()  # True: keep what was written
        self.answer: asyncio.Future[None] = loop.create_future()
        self.answer.add_done_callback(_retrieve_error)
        self.opened.add_done_callback(_retrieve_error)

    @property
    def given_up(self) -> bool:
        return self.ended.done() or self.opened.cancelled()

    def end(self, keep: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(keep)

    async def roll_back(self) -> None:
        """End the session without a commit, and wait for the rollback. Its result does not matter to the caller."""
        self.end(keep=False)
        with suppress(Exception):
            await asyncio.shield(self.answer)

    def fail(self, error: BaseException) -> None:
        for future in (self.opened, self.answer):
            if not future.done():
                future.set_exception(error)


class Groups:
    """Runs sessions in groups, with one task per connection of the pool.

    A task opens a transaction, runs the waiting sessions one after the other, each in its own savepoint, and commits
    once for all of them, within bounds of number and time. A session that fails is rolled back alone. A commit that
    fails fails its whole group; if its reply is lost, each session checks whether its own settlement was committed.

    Between two sessions the settings of the connection are reset, so that one handler's do not affect another. Objects
    that outlive a transaction (advisory locks of the session, cursors, temporary tables) are removed after the commit.

    Handlers that never deadlock alone may do so in groups, where a session keeps its rows locked until the last one has
    ended. A deadlock is therefore no failed attempt, and for a while after it handlers commit one by one.
    """

    def __init__(
        self,
        pool: Pool,
        now: Callable[[], int | None],
        resolve: Callable[[Settlement], Awaitable[bool]],
        observe: Callable[[str], None] | None,
    ) -> None:
        self._pool = pool
        self._now = now
        self._resolve = resolve
        self._observe = observe
        self._waiting: deque[Session] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone_until = 0.0

    def join(self, session: Session) -> None:
        """Add a session to the queue."""
        self._waiting.append(session)
        if len(self._tasks) < self._pool.size:
            task = asyncio.create_task(self._run_groups())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)  # also if the task was cancelled before it began

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks, timeout=self._pool.options.timeout)
            for task in list(self._tasks):
                task.cancel()
        while (session := self._next()) is not None:
            session.fail(LedgerUnavailable(f"{self._pool.options.where}: the ledger was closed"))

    async def _run_groups(self) -> None:
        try:
            while (session := self._next()) is not None:
                await self._run_on_connection(session)
        finally:  # at once: a session that joins now must not rely on this task
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)

    async def _run_on_connection(self, session: Session) -> None:
        """Run one group. Only the cancellation of the task raises."""
        try:
            connection = await self._pool.take()
        except BaseException as error:
            session.fail(error if isinstance(error, SemelError) else LedgerUnavailable("the ledger was closed"))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        generation, broken = self._pool.generation, True
        try:
            await self._run_group(connection, session)
            if all(waiting.given_up for waiting in self._waiting):  # else the next group runs it
                await self._execute(connection, CLEAN)
            broken = False
        except Exception:
            return  # all its sessions have the error
        finally:
            self._pool.give_back(connection, broken=broken, generation=generation)

    def _next(self) -> Session | None:
        while self._waiting:
            session = self._waiting.popleft()
            if not session.given_up:
                return session
        return None

    # ------------------------------------------------------------------------------------------------- one group

    async def _run_group(self, connection: Connection, first: Session) -> None:
        """Raise if the connection must not be used again; all its sessions have the error by then."""
        kept: list[tuple[Session, Settlement]] = []
        session: Session | None = first
        begun = time.monotonic()
        number = 0
        before = f"{RESET}; begin isolation level read committed; {CLEAN}"
        try:
            while session is not None:
                number += 1
                settlement = await self._run_session(connection, session, before)
                before = f"release savepoint {SAVEPOINT}; {RESET}"
                if settlement is not None:
                    kept.append((session, settlement))
                now = time.monotonic()
                has_room = number < self._pool.options.group and now - begun < GROUP_S and now >= self._alone_until
                session = self._next() if has_room else None
            await self._commit(connection, kept, before)
        except BaseException as error:
            if session is not None:
                session.fail(self._error_for(error))
            for member, _ in kept:
                member.fail(self._error_for(error, shared=session is not None))
            raise

    async def _run_session(self, connection: Connection, session: Session, before: str) -> Settlement | None:
        """Run the statements in `before`, then one handler. Returns its settlement, or None if it was rolled back.

        The next session releases its savepoint."""
        path = own_search_path(self._pool.options.schema)
        lock = f"select pg_try_advisory_xact_lock({advisory_lock(session.lease.claim.digest)})"
        await self._execute(connection, f"{before}; savepoint {SAVEPOINT}; {path}; {lock}")
        if session.given_up:
            return None
        transaction = PostgresTransaction(
            connection, session.lease, self._pool.options, end=lambda: session.end(keep=False)
        )
        session.opened.set_result(transaction)
        keep = await session.ended
        await transaction.handle.close()
        if transaction.handle.deadlocked:
            self._alone_until = time.monotonic() + ALONE_S
        if transaction.handle.only_reads:
            transaction.check_deadlock()  # this connection does not reach a primary: it is not used again
        if not connection.is_in_transaction():
            raise TransactionOver(ENDED_ITSELF)
        if keep and transaction.settled is not None:
            return transaction.settled
        await self._execute(connection, f"rollback to savepoint {SAVEPOINT}")
        if not session.answer.done():
            session.answer.set_result(None)
        return None

    async def _commit(self, connection: Connection, kept: list[tuple[Session, Settlement]], before: str) -> None:
        if kept:
            await self._execute(connection, f"{before}; {SET_LOOKUP}")
            settlements = [settlement for _, settlement in kept]
            async with asyncio.timeout(self._pool.options.timeout):
                held = await settle_held(connection, settlements, self._now(), self._pool.options.schema)
            if not held:
                raise LedgerUnavailable(f"{self._pool.options.where}: a lease changed although its row was locked")
        if self._observe is not None:
            self._observe("before_commit")
        try:
            tag = await self._execute(connection, "commit")
            if tag != "COMMIT":
                raise LedgerUnavailable("the transaction was rolled back")
        except LedgerUnavailable:
            raise
        except Exception as error:
            if is_refusal(error) and not connection.is_closed():
                raise  # for example a deferred constraint: nothing was committed
            await asyncio.gather(*[self._resolve_lost(member, settlement, error) for member, settlement in kept])
            raise
        if self._observe is not None:
            self._observe("after_commit")
        for member, _ in kept:
            if not member.answer.done():
                member.answer.set_result(None)

    async def _execute(self, connection: Connection, sql: str) -> str:
        """Run statements of the ledger with a time limit. A handler's statements on this connection have none."""
        return await connection.execute(sql, timeout=self._pool.options.timeout)

    async def _resolve_lost(self, session: Session, settlement: Settlement, error: BaseException) -> None:
        """Find out whether a commit whose reply was lost took effect."""
        try:
            committed = await self._resolve(settlement)
        except LedgerUnavailable as unknown:
            session.fail(unknown)
            return
        if committed:
            session.answer.set_result(None)
        else:
            session.fail(self._error_for(error))

    def _error_for(self, error: BaseException, shared: bool = False) -> BaseException:
        """Return the error for a session. `shared`: another session of its group caused it."""
        where = self._pool.options.where
        if isinstance(error, TransactionOver) and shared:
            return LedgerUnavailable(f"{where}: another handler ended the transaction that they shared")
        if isinstance(error, SemelError):
            return error
        if isinstance(error, faults()):
            return LedgerUnavailable(f"{unavailable(self._pool.options, error)}: the transaction was rolled back")
        if isinstance(error, Exception):
            return error  # a bug of Semel
        return LedgerUnavailable(f"{where}: the ledger was closed and the transaction was rolled back")


def _retrieve_error(future: asyncio.Future[Any]) -> None:
    """Mark the error of a future as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()
