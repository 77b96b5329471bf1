"""Handlers' transactions, several in one commit.

A lane is one connection. It opens a transaction, runs the sessions that wait one after the other, each in a savepoint
of its own, and commits once for all of them: as many as wait, within bounds of number and time. A session that fails is
undone alone. A commit that fails fails its whole group; when its answer is lost, each session looks whether its own
settlement stands.

A session's settle looks first whether what the handler wrote could be committed (deferred constraints), so that it
fails alone and not with its group. Then it locks the rows of its lease: from then on nobody else can take it. They are
written just before the commit, all at once, because whoever claims a key waits for a row that is being updated, and not
for one that is locked.

Between two sessions the connection's settings are set back, so that one handler's are not another's. What outlives a
transaction (advisory locks of the session, cursors, temporary tables) ends after the commit.

Handlers that never wait for each other alone may do so in groups, where one holds its rows until the last has ended: a
deadlock is nobody's failure, and for a while after it handlers commit one by one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres import settling
from semel.adapters.ledgers.postgres.handle import FAILED, Handle
from semel.adapters.ledgers.postgres.options import Options
from semel.adapters.ledgers.postgres.outbox import adding
from semel.adapters.ledgers.postgres.pool import (
    LOOKS_UP,
    Pool,
    driver,
    faults,
    is_said_by_server,
    sentence,
    unavailable,
)
from semel.adapters.ledgers.postgres.waiting import lock_of
from semel.values.claim import Lease, Settlement
from semel.values.errors import LedgerUnavailable, SemelError, TransactionOver
from semel.values.notification import Notification
from semel.values.outbox import Added

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")

GROUP_S = 0.05  # how long a transaction goes on taking sessions in: what it has locked, others wait for
SAVEPOINT = "semel_session"
RESET = "reset session authorization; reset all"
CLEAN = "select pg_advisory_unlock_all(); close all; unlisten *; discard temp"
CHECK = "savepoint semel_check; set constraints all immediate; rollback to semel_check; release semel_check"
READY = f"{CHECK}; {RESET}"  # a handler's own settings, a role say, are not those that the ledger needs
ALONE_S = 30.0  # how long handlers do not share commits after two of them stood in each other's way
STORES_OWN = ("08", "40", "53", "55", "57", "58", "XX")  # classes of SQLSTATE that say nothing about the handler
LOOKING_UP = "; ".join(f"set local {name} = {value}" for name, value in LOOKS_UP.items())
IN_THE_WAY = "the handler and another transaction waited for each other; it was undone, and may run again"
NOT_TO_KEEP = "what the handler wrote cannot be committed"
ENDED_ITSELF = "the handler ended its transaction itself; it commits when the handler returns"


def own_search_path(schema: str) -> str:
    """A statement that takes the ledger's schema out of a handler's search path.

    A role called `semel` finds the schema `semel` through "$user". The handler's `create table orders`, or its own
    table `notification`, would then be among the ledger's tables."""
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
        self._silenced = False  # the handler has had its say

    async def notify(self, notifications: Sequence[Notification]) -> list[Added]:
        """Beside the handler's own writes. From here on the handler cannot write."""
        await self._silence()
        return await self._said(lambda: self._add(notifications))

    async def settle(self, settlement: Settlement) -> bool:
        """Hold the lease for the settlement beside the handler's writes. From here on the handler cannot write."""
        if settlement.lease != self._lease:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        await self._silence()
        connection, schema = self._connection, self._options.schema
        kept = await self._said(lambda: settling.hold_after(READY, connection, self._lease, schema))
        if kept:
            self.settled = settlement
        return kept

    def abandon(self) -> None:
        if not self._silenced:
            self.handle.refuse()
            self._end()

    async def _silence(self) -> None:
        if not self._silenced:
            await self.handle.silence()
            self._silenced = True

    async def _add(self, notifications: Sequence[Notification]) -> list[Added]:
        await self._connection.execute(RESET)
        return await adding.add(self._connection, notifications, None, self._options.schema)

    async def _said(self, statement: Callable[[], Awaitable[T]]) -> T:
        """A statement of ours on the handler's connection, told in words that say whose fault it is."""
        if not self._connection.is_in_transaction():
            raise TransactionOver(ENDED_ITSELF)
        asyncpg = driver()
        try:
            async with asyncio.timeout(self._options.timeout):
                return await statement()
        except asyncpg.InFailedSQLTransactionError:
            self.check_way()
            raise TransactionOver(FAILED) from None
        except faults() as error:
            if isinstance(error, asyncpg.PostgresError) and error.sqlstate[:2] not in STORES_OWN:
                raise TransactionOver(f"{NOT_TO_KEEP}: {sentence(error)}") from None
            raise unavailable(self._options, error) from error

    def check_way(self) -> None:
        """Raises when the handler failed through nobody's fault: as if it had not been tried."""
        if self.handle.was_in_the_way:
            raise LedgerUnavailable(f"{self._options.where}: {IN_THE_WAY}")
        if self.handle.only_reads:
            raise unavailable(self._options, driver().ReadOnlySQLTransactionError(""))


class Session:
    """One handler's turn on a lane: opened, ended by the handler, answered after the commit."""

    def __init__(self, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        self.lease = lease
        self.opened: asyncio.Future[PostgresTransaction] = loop.create_future()
        self.ended: asyncio.Future[bool] = loop.create_future()  # True: keep what was written
        self.answer: asyncio.Future[None] = loop.create_future()
        self.answer.add_done_callback(_looked_at)
        self.opened.add_done_callback(_looked_at)

    @property
    def given_up(self) -> bool:
        return self.ended.done() or self.opened.cancelled()

    def end(self, keep: bool) -> None:
        if not self.ended.done():
            self.ended.set_result(keep)

    def fail(self, error: BaseException) -> None:
        for future in (self.opened, self.answer):
            if not future.done():
                future.set_exception(error)


class Groups:
    """Sessions that wait, and at most as many lanes as the pool has connections."""

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
        self._lanes: set[asyncio.Task[None]] = set()
        self._alone_until = 0.0

    def join(self, session: Session) -> None:
        """It is opened when its turn comes."""
        self._waiting.append(session)
        if len(self._lanes) < self._pool.size:
            lane = asyncio.create_task(self._lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._lanes.discard)  # of one that was cancelled before it began

    async def close(self) -> None:
        while self._lanes:
            await asyncio.wait(self._lanes, timeout=self._pool.options.timeout)
            for lane in list(self._lanes):
                lane.cancel()
        while (session := self._next()) is not None:
            session.fail(LedgerUnavailable(f"{self._pool.options.where}: the ledger was closed"))

    async def _lane(self) -> None:
        try:
            while (session := self._next()) is not None:
                await self._serve(session)
        finally:  # at once: whoever joins in this very moment must not take it for one that goes on
            lane = asyncio.current_task()
            assert lane is not None
            self._lanes.discard(lane)

    async def _serve(self, session: Session) -> None:
        """One group. Only a cancelled lane raises."""
        try:
            connection = await self._pool.take()
        except BaseException as error:
            session.fail(error if isinstance(error, SemelError) else LedgerUnavailable("the ledger was closed"))
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        generation, broken = self._pool.generation, True
        try:
            await self._group(connection, session)
            if all(one.given_up for one in self._waiting):  # else it is said when the next group begins
                await self._say(connection, CLEAN)
            broken = False
        except Exception:
            return  # all its sessions have been told
        finally:
            self._pool.give_back(connection, broken=broken, generation=generation)

    def _next(self) -> Session | None:
        while self._waiting:
            session = self._waiting.popleft()
            if not session.given_up:
                return session
        return None

    # ------------------------------------------------------------------------------------------------- one group

    async def _group(self, connection: Connection, first: Session) -> None:
        """Raises when the connection must not be used again; all its sessions have been told by then."""
        kept: list[tuple[Session, Settlement]] = []
        session: Session | None = first
        begun = time.monotonic()
        taken = 0
        before = f"{RESET}; begin isolation level read committed; {CLEAN}"
        try:
            while session is not None:
                taken += 1
                settlement = await self._session(connection, session, before)
                before = f"release savepoint {SAVEPOINT}; {RESET}"
                if settlement is not None:
                    kept.append((session, settlement))
                session = self._next() if self._takes_more(taken, begun) else None
            await self._commit(connection, kept, before)
        except BaseException as error:
            if session is not None:
                session.fail(self._told(error))
            for one, _ in kept:
                one.fail(self._told(error, beside=session is not None))
            raise

    def _takes_more(self, taken: int, begun: float) -> bool:
        now = time.monotonic()
        return taken < self._pool.options.group and now - begun < GROUP_S and now >= self._alone_until

    async def _session(self, connection: Connection, session: Session, before: str) -> Settlement | None:
        """One handler, after what has to be said before. What it returns is in the transaction; None: nothing of it
        is. Its savepoint is left for whoever comes next."""
        number = lock_of(session.lease.claim.digest)
        path = own_search_path(self._pool.options.schema)
        lock = f"select pg_try_advisory_xact_lock({number})"
        await self._say(connection, f"{before}; savepoint {SAVEPOINT}; {path}; {lock}")
        if session.given_up:
            return None
        transaction = PostgresTransaction(
            connection, session.lease, self._pool.options, end=lambda: session.end(keep=False)
        )
        session.opened.set_result(transaction)
        keep = await session.ended
        await transaction.handle.close()
        if transaction.handle.was_in_the_way:
            self._alone_until = time.monotonic() + ALONE_S
        if transaction.handle.only_reads:
            transaction.check_way()  # this connection leads to no primary: it is not used again
        if not connection.is_in_transaction():
            raise TransactionOver(ENDED_ITSELF)
        if keep and transaction.settled is not None:
            return transaction.settled
        await self._say(connection, f"rollback to savepoint {SAVEPOINT}")
        if not session.answer.done():
            session.answer.set_result(None)
        return None

    async def _commit(self, connection: Connection, kept: list[tuple[Session, Settlement]], before: str) -> None:
        if kept:
            await self._say(connection, f"{before}; {LOOKING_UP}")
            settlements = [settlement for _, settlement in kept]
            async with asyncio.timeout(self._pool.options.timeout):
                held = await settling.settle_held(connection, settlements, self._now(), self._pool.options.schema)
            if not held:
                raise LedgerUnavailable(f"{self._pool.options.where}: a lease changed hands though its row was locked")
        if self._observe is not None:
            self._observe("before_commit")
        try:
            said = await self._say(connection, "commit")
            if said != "COMMIT":
                raise LedgerUnavailable("the transaction was rolled back")
        except LedgerUnavailable:
            raise
        except Exception as error:
            if is_said_by_server(error) and not connection.is_closed():
                raise  # a deferred constraint, say: nothing was kept
            await asyncio.gather(*[self._look(one, settlement, error) for one, settlement in kept])
            raise
        if self._observe is not None:
            self._observe("after_commit")
        for one, _ in kept:
            if not one.answer.done():
                one.answer.set_result(None)

    async def _say(self, connection: Connection, sql: str) -> str:
        """Statements of ours, which have a time limit: handlers' statements on this connection have none."""
        return await connection.execute(sql, timeout=self._pool.options.timeout)

    async def _look(self, session: Session, settlement: Settlement, error: BaseException) -> None:
        """The commit went out and no answer came: it may have been done."""
        try:
            stands = await self._resolve(settlement)
        except LedgerUnavailable as unknown:
            session.fail(unknown)
            return
        if stands:
            session.answer.set_result(None)
        else:
            session.fail(self._told(error))

    def _told(self, error: BaseException, beside: bool = False) -> BaseException:
        """`beside`: to whom it was not the fault of."""
        where = self._pool.options.where
        if isinstance(error, TransactionOver) and beside:
            return LedgerUnavailable(f"{where}: a handler beside this one ended the transaction that they shared")
        if isinstance(error, SemelError):
            return error
        if isinstance(error, faults()):
            return LedgerUnavailable(f"{unavailable(self._pool.options, error)}: the transaction was rolled back")
        if isinstance(error, Exception):
            return error  # a fault of ours
        return LedgerUnavailable(f"{where}: the ledger was closed, and the transaction rolled back")


def _looked_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
