"""Pools of connections: opened on demand, bounded in number, replaced after errors.

Work runs in a task of the pool. If the caller is cancelled, the work still runs to its end, so that no connection is
returned in the middle of a statement.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.ledgers.postgres.url import Options
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError

T = TypeVar("T")

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

TRIES = 20
PAUSE_S = 0.01  # longest pause after the first try; it grows with each try
CLOSE_S = 2.0  # longest wait for a clean close

# The server notices a client that vanished within half a minute, not after two hours: the client may hold locks.
PLAIN_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# For the ledger's own statements, which only look up keys: a plan made while the table was small must not read all of
# it later. Each connection plans a statement once.
LOOKUP_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# A process that is suspended, or loses its network, during a commit keeps its rows locked. A statement that meets such
# rows gives up, with the other keys of its batch, before the deadline of the batch.
LEDGER_SETTINGS = {**PLAIN_SETTINGS, **LOOKUP_SETTINGS, "lock_timeout": "2000"}


def driver() -> Any:
    """Import asyncpg, which is installed only with this ledger."""
    try:
        import asyncpg
    except ImportError as error:
        raise ConfigError("a postgresql:// ledger needs asyncpg: pip install 'semel[postgres]'") from error
    return asyncpg


class OwnerCheck:
    """The event loop and the process that own a ledger: those of its first use, until it is closed."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def check(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._pid = loop, os.getpid()
        elif self._pid != os.getpid():
            raise LedgerUnavailable(
                f"{self._where}: this process was forked from one that has the ledger open, and connections cannot be "
                "used after a fork: close the app before forking, or create it in the child"
            )
        elif self._loop is not loop:
            raise LedgerUnavailable(
                f"{self._where}: the ledger is in use on another event loop: create one ledger per loop, or close it "
                "there first"
            )

    @property
    def is_own(self) -> bool:
        """True if this loop and process own the ledger, or if it was not used yet."""
        return self._loop is None or (self._pid == os.getpid() and self._loop is asyncio.get_running_loop())

    def leave(self) -> None:
        self._loop = None


class Pool:
    """At most `size` connections with the same settings. `check` runs on each new connection."""

    def __init__(
        self,
        options: Options,
        owner: OwnerCheck,
        size: int,
        settings: Mapping[str, str],
        check: Callable[[Connection], Awaitable[None]] | None = None,
        *,
        is_for_handlers: bool = False,
    ) -> None:
        self.options = options
        self.size = size
        self._owner = owner
        self._settings = settings
        self._check = check
        self._command_s = None if is_for_handlers else options.timeout  # a handler's statement has no time limit
        self._idle: list[Connection] = []  # the most recently used one is taken first
        self._out = 0  # connections in use, or being opened
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.generation = 0  # a connection opened before a close is not reused after it

    async def run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run work on a connection to its end. Raises LedgerUnavailable for errors of the server or the network."""
        self._owner.check()
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return await asyncio.shield(task)

    async def take(self, wait_s: float | None = None) -> Connection:
        """Take a connection for exclusive use. The caller returns it with `give_back`."""
        self._owner.check()
        if self._out < self.size:
            self._out += 1
        else:
            await self._wait_for_turn(self.options.pool_wait if wait_s is None else wait_s)
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._connect()
        except BaseException:
            self._release_turn()
            raise

    def give_back(self, connection: Connection, *, broken: bool = False, generation: int | None = None) -> None:
        """Return a connection. One that is broken or inside a transaction is closed."""
        old = generation is not None and generation != self.generation
        if broken or old or connection.is_closed() or connection.is_in_transaction():
            with suppress(Exception):
                connection.terminate()
        else:
            self._idle.append(connection)
        self._release_turn()

    async def close(self) -> None:
        """Wait for running work, then close all connections."""
        self.generation += 1
        idle, self._idle = self._idle, []
        if not self._owner.is_own:  # a fork, or another loop: its connections are not ours to close
            self._out = 0
            self._waiting.clear()
            self._tasks.clear()
            return
        for task in list(self._tasks):
            with suppress(Exception):
                await asyncio.wait_for(asyncio.shield(task), self.options.timeout)
        for connection in [*idle, *self._idle]:
            try:
                await connection.close(timeout=CLOSE_S)
            except Exception:
                connection.terminate()
        self._idle = []

    # --------------------------------------------------------------------------------------------------- private

    async def _run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        connection = await self.take()
        generation = self.generation
        broken = True
        try:
            answer = await work(connection)
            broken = False
            return answer
        except SemelError:
            broken = False  # unless it is closed, or inside a transaction
            raise
        except faults() as error:
            broken = not is_refusal(error)
            raise unavailable(self.options, error) from error
        finally:
            self.give_back(connection, broken=broken, generation=generation)

    async def _connect(self) -> Connection:
        asyncpg = driver()
        options = self.options
        failures: tuple[type[Exception], ...] = (*faults(), ValueError)  # ValueError: the driver cannot parse the URL
        try:
            connection: Connection = await asyncpg.connect(
                options.dsn,
                timeout=options.connect_timeout,
                command_timeout=self._command_s,
                statement_cache_size=options.statement_cache,
                max_cached_statement_lifetime=0,
                # Without a statement cache a pooler shares the connection, and supports few settings.
                server_settings=dict(self._settings) if options.statement_cache else None,
            )
        except TimeoutError:
            raise LedgerUnavailable(
                f"{options.where}: no connection within {options.connect_timeout:g} s: check that the server is running"
            ) from None
        except failures as error:
            raise unavailable(options, error) from None  # the driver's arguments contain the password
        try:
            if self._check is not None:
                await self._check(connection)
        except BaseException as error:
            connection.terminate()
            if isinstance(error, faults()):
                raise unavailable(options, error) from error
            raise
        return connection

    async def _wait_for_turn(self, limit_s: float) -> None:
        """Wait for a free connection, or for the right to open one, in order of arrival."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(limit_s):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._release_turn()  # the turn had come, but this caller is gone
            if isinstance(error, TimeoutError):
                raise LedgerUnavailable(
                    f"{self.options.where}: all {self.size} connections were in use for {limit_s:g} s: "
                    "raise pool= or transactions= in the ledger's URL, or find the work that keeps them in use"
                ) from None
            raise

    def _release_turn(self) -> None:
        """Let the next waiting caller continue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._out -= 1

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller has it, or is gone


# ------------------------------------------------------------------------------------------------ errors and retries


class Changed(LedgerUnavailable):
    """The rows changed between the decision and the write. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL: concurrent writers kept changing the same keys: try again")


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Retry `work` after deadlocks, serialization failures and concurrent changes.

    `work` must be one transaction: a deadlock rolls it back as a whole, and lets the other session continue."""
    asyncpg = driver()
    again = (Changed, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
    for attempt in range(1, TRIES):
        try:
            return await work()
        except again:
            await asyncio.sleep(random.uniform(0, PAUSE_S * attempt))
    return await work()


def with_retries(
    work: Callable[[Connection], Coroutine[Any, Any, T]],
) -> Callable[[Connection], Coroutine[Any, Any, T]]:
    """Return the same work with retries (see `insist`)."""

    async def run(connection: Connection) -> T:
        return await insist(lambda: work(connection))

    return run


def faults() -> tuple[type[Exception], ...]:
    """Return the errors of the server and the network. Every other error is a bug of Semel and is raised as it is."""
    asyncpg = driver()
    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def is_refusal(error: BaseException) -> bool:
    """True if the server refused a statement and the connection stays usable.

    False for a read-only server: a new connection may reach the primary."""
    asyncpg = driver()
    gone = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError)
    return isinstance(error, asyncpg.PostgresError) and not isinstance(
        error, (*gone, asyncpg.ReadOnlySQLTransactionError)
    )


def unavailable(options: Options, error: BaseException) -> LedgerUnavailable:
    """Describe an error: what happened, where, and what to do. Never shows the URL or the password."""
    asyncpg = driver()
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidPasswordError():
            problem = "it refuses this user or password: check the ledger's URL"
        case asyncpg.InvalidCatalogNameError():
            problem = "there is no such database: create it, or check the ledger's URL"
        case asyncpg.ReadOnlySQLTransactionError():
            problem = "it is read-only (a replica, or a demoted primary): connect to the primary"
        case asyncpg.TooManyConnectionsError():
            problem = "it has no free connection: lower pool= in the ledger's URL, or raise max_connections"
        case asyncpg.PostgresConnectionError() | asyncpg.InternalClientError():
            problem = "the connection was lost"  # the driver's own text does not help users
        case asyncpg.PostgresError():
            problem = f"{first_line(error)} (SQLSTATE {error.sqlstate})"
        case TimeoutError():
            problem = f"no answer within {options.timeout:g} s"
        case OSError():
            problem = f"cannot be reached: {error.strerror or first_line(error)}"
        case _:
            problem = first_line(error)
    return LedgerUnavailable(f"{options.where}: {problem}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error."""
    return str(error).partition("\n")[0] or type(error).__name__
