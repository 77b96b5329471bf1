"""Connections: opened when they are needed, a bounded number at a time, replaced when they die.

Whatever a caller asks for runs as a task of the pool's own. A caller that is cancelled leaves, and its statement goes
on to its end, so that no connection is given back in the middle of something.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres.options import Options
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

T = TypeVar("T")

CLOSE_S = 2.0  # a goodbye need not be answered

# A client that has gone without a word is noticed in half a minute, not in two hours: it may hold locks.
PLAIN_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# For the ledger's own statements. They look up keys, and nothing else: a plan that was made while the table was small
# must not read all of it later. Plans are made once for each connection.
LOOKS_UP = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
# Whoever stops in the middle of a commit (a process that is suspended, a network that is cut) keeps its rows locked: a
# statement that meets them gives up, with the other keys of its batch, before the deadline of all of them is over.
LEDGER_SETTINGS = {**PLAIN_SETTINGS, **LOOKS_UP, "lock_timeout": "2000"}

FORKED = (
    "{where}: this process was forked from one that has the ledger open, and connections cannot be carried over a "
    "fork: close the app before forking, or make it in the child"
)
OTHER_LOOP = "{where}: the ledger is in use on another event loop: give each loop its own, or close it there first"
CLOSED = "{where}: the ledger was closed"


def driver() -> Any:
    """asyncpg, which only who uses this ledger needs to have."""
    try:
        import asyncpg
    except ImportError as error:
        raise ConfigError("a postgresql:// ledger needs asyncpg: pip install 'semel[postgres]'") from error
    return asyncpg


class Home:
    """The event loop and the process that a ledger lives in: those of its first use, until it is closed."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def check(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._pid = loop, os.getpid()
        elif self._pid != os.getpid():
            raise LedgerUnavailable(FORKED.format(where=self._where))
        elif self._loop is not loop:
            raise LedgerUnavailable(OTHER_LOOP.format(where=self._where))

    @property
    def is_here(self) -> bool:
        """Whether this is where it lives, or nowhere yet."""
        return self._loop is None or (self._pid == os.getpid() and self._loop is asyncio.get_running_loop())

    def leave(self) -> None:
        self._loop = None


class Pool:
    """At most `size` connections of one kind. `check` looks at each new one before it is used."""

    def __init__(
        self,
        options: Options,
        home: Home,
        size: int,
        settings: Mapping[str, str],
        check: Callable[[Connection], Awaitable[None]] | None = None,
        *,
        is_for_handlers: bool = False,
    ) -> None:
        self.options = options
        self.size = size
        self._home = home
        self._settings = settings
        self._check = check
        self._command_s = None if is_for_handlers else options.timeout  # a handler's statement takes what it takes
        self._idle: list[Connection] = []  # the one used last is taken first
        self._out = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._generation = 0  # what was opened before a close is not put back after it

    async def run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Do this on a connection, to its end, and answer. Raises LedgerUnavailable for whatever the server does."""
        self._home.check()
        task = asyncio.create_task(self._run(work))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return await asyncio.shield(task)

    async def take(self, wait_s: float | None = None) -> Connection:
        """A connection for the caller alone, who gives it back."""
        self._home.check()
        if self._out < self.size:
            self._out += 1
        else:
            await self._turn(self.options.pool_wait if wait_s is None else wait_s)
        try:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
            return await self._open()
        except BaseException:
            self._pass_on()
            raise

    def give_back(self, connection: Connection, *, broken: bool = False, generation: int | None = None) -> None:
        """Broken, or in the middle of something: it is not used again."""
        old = generation is not None and generation != self._generation
        if broken or old or connection.is_closed() or connection.is_in_transaction():
            with suppress(Exception):
                connection.terminate()
        else:
            self._idle.append(connection)
        self._pass_on()

    async def close(self) -> None:
        """What is under way is waited for; then all connections are closed."""
        self._generation += 1
        idle, self._idle = self._idle, []
        if not self._home.is_here:  # a fork, or another loop: nothing there is ours to say goodbye to
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

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def open(self) -> int:
        return self._out + len(self._idle)

    # ------------------------------------------------------------------------------------------------- its parts

    async def _run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        connection = await self.take()
        generation = self._generation
        broken = True
        try:
            answer = await work(connection)
            broken = False
            return answer
        except SemelError:
            broken = False  # unless it is closed, or inside a transaction
            raise
        except faults() as error:
            broken = not is_said_by_server(error)
            raise unavailable(self.options, error) from error
        finally:
            self.give_back(connection, broken=broken, generation=generation)

    async def _open(self) -> Connection:
        asyncpg = driver()
        options = self.options
        failures: tuple[type[Exception], ...] = (*faults(), ValueError)  # of a URL that the driver cannot read
        try:
            connection: Connection = await asyncpg.connect(
                options.dsn,
                timeout=options.connect_timeout,
                command_timeout=self._command_s,
                statement_cache_size=options.statement_cache,
                max_cached_statement_lifetime=0,
                # Without a cache of statements it is not ours alone: a pooler shares it, and knows few settings.
                server_settings=dict(self._settings) if options.statement_cache else None,
            )
        except TimeoutError:
            raise LedgerUnavailable(
                f"{options.where}: no connection within {options.connect_timeout:g} s: see that it runs there"
            ) from None
        except failures as error:
            raise unavailable(options, error) from None  # what the driver was given holds the password
        try:
            if self._check is not None:
                await self._check(connection)
        except faults() as error:
            connection.terminate()
            raise unavailable(options, error) from error
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _turn(self, limit_s: float) -> None:
        """Wait for somebody to pass on a connection, or the right to open one. First come, first served."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(limit_s):
                await turn
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._pass_on()  # it had come, and nobody is here to take it
            if isinstance(error, TimeoutError):
                raise LedgerUnavailable(
                    f"{self.options.where}: all {self.size} connections were in use for {limit_s:g} s: "
                    "raise pool= or transactions= in the ledger's URL, or find what holds them"
                ) from None
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._out -= 1

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, or has gone


def faults() -> tuple[type[Exception], ...]:
    """What can go wrong with a server or on the way to it. The rest are faults of ours, and told as such."""
    asyncpg = driver()
    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def is_said_by_server(error: BaseException) -> bool:
    """The server refused a statement, in so many words: the connection is as good as before. Not so where the server
    only reads: a new one may lead to the primary."""
    asyncpg = driver()
    gone = (asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError)
    return isinstance(error, asyncpg.PostgresError) and not isinstance(
        error, (*gone, asyncpg.ReadOnlySQLTransactionError)
    )


def unavailable(options: Options, error: BaseException) -> LedgerUnavailable:
    """What happened, where, and what to do; never what the connection was opened with."""
    asyncpg = driver()
    match error:
        case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidPasswordError():
            told = "it refuses this user or password: check the ledger's URL"
        case asyncpg.InvalidCatalogNameError():
            told = "there is no such database: create it, or check the ledger's URL"
        case asyncpg.ReadOnlySQLTransactionError():
            told = "it only reads (a replica, or a primary that was demoted): connect to the primary"
        case asyncpg.TooManyConnectionsError():
            told = "it has no connection left: lower pool= in the ledger's URL, or raise max_connections"
        case asyncpg.PostgresConnectionError() | asyncpg.InternalClientError():
            told = "the connection was lost"  # the driver's own words are for its authors
        case asyncpg.PostgresError():
            told = f"{sentence(error)} (SQLSTATE {error.sqlstate})"
        case TimeoutError():
            told = f"no answer within {options.timeout:g} s"
        case OSError():
            told = f"cannot be reached: {error.strerror or sentence(error)}"
        case _:
            told = sentence(error)
    return LedgerUnavailable(f"{options.where}: {told}")


def sentence(error: BaseException) -> str:
    """Its first line."""
    return str(error).partition("\n")[0] or type(error).__name__
