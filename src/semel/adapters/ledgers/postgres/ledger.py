"""The ledger's face: every method is a short conversation on a connection of the pool.

What people read, the inbox and the letters are modules beside this one, as functions of a connection. `now` is None for
the server's own clock; `schema` is the one of `statements(schema)`.

Whatever meets a deadlock or a serialization failure is run again (`repeated`, `insist`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres import (
    catalog,
    claiming,
    diagnosis,
    inbox,
    keeping,
    letterbox,
    letters,
    migrations,
    renewing,
    settling,
)
from semel.adapters.ledgers.postgres.groups import Groups, PostgresTransaction, Session
from semel.adapters.ledgers.postgres.options import Options, parse
from semel.adapters.ledgers.postgres.outbox import PostgresOutbox
from semel.adapters.ledgers.postgres.pool import LEDGER_SETTINGS, PLAIN_SETTINGS, Home, Pool, driver
from semel.adapters.ledgers.postgres.promises import ALONE
from semel.adapters.ledgers.postgres.repeating import repeated
from semel.adapters.ledgers.postgres.waiting import held_until
from semel.ports import Asked, Entry
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Postponed, Taken

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")

READERS = 2  # connections for people's questions, which may take long
LOOK_AGAIN_S = (0.1, 0.5, 1.0, 2.0)
WAITERS = 2  # connections for whoever waits for a transaction to end


class PostgresLedger:
    """PostgreSQL 14 or later. All processes that know the URL may use it at once; an object belongs to one loop."""

    def __init__(
        self,
        options: Options,
        clock: Callable[[], int] | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.traits = ALONE
        self._options = options
        self._schema = options.schema
        self._clock = clock
        self._observe = observe
        self._none_due = False  # the last take found nothing
        self._home = Home(options.where)
        self._pool = Pool(options, self._home, options.pool, LEDGER_SETTINGS, self._check)
        self._readers = Pool(options, self._home, READERS, PLAIN_SETTINGS, self._check)
        self._waiters = Pool(options, self._home, WAITERS, PLAIN_SETTINGS)
        self._open = Pool(options, self._home, options.transactions, PLAIN_SETTINGS, self._check, is_for_handlers=True)
        self._makers = Pool(options, self._home, 1, PLAIN_SETTINGS)  # of the schema: it need not be there yet
        self._groups = Groups(self._open, self._now, self._stands, observe)
        self.outbox = PostgresOutbox(self._write, self._pool, self._readers, self._now, self._schema)

    @classmethod
    def from_url(
        cls, url: str, *, clock: Callable[[], int] | None = None, observe: Callable[[str], None] | None = None
    ) -> PostgresLedger:
        """`postgresql://user:password@host:5432/database?pool=10&schema=semel`. Nothing is opened yet."""
        options = parse(url)
        driver()
        return cls(options, clock, observe)

    def __repr__(self) -> str:
        return f"PostgresLedger({self._options.where!r})"

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if not claims:
            await self._pool.run(lambda c: claiming.spend_token(c, self._schema))
            return []
        return await self._pool.run(self._announced(lambda c: claiming.claim(c, claims, self._now(), self._schema)))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        if not settlements:
            return []
        work = self._announced(lambda c: settling.settle(c, settlements, self._now(), self._schema))
        return await self._pool.run(repeated(work))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        if not leases:
            return []
        return await self._pool.run(repeated(lambda c: renewing.renew(c, leases, self._now(), self._schema)))

    async def purge(self, limit: int) -> int:
        forgotten = await self._pool.run(repeated(lambda c: keeping.purge(c, limit, self._now(), self._schema)))
        await self._pool.run(repeated(lambda c: catalog.sweep(c, self._now(), self._schema)))
        return forgotten

    async def close(self) -> None:
        if self._home.is_here:
            await self._groups.close()
        for pool in (self._pool, self._readers, self._waiters, self._open, self._makers):
            await pool.close()
        self._home.leave()

    # ------------------------------------------------------------------------------------------------ transactions

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[PostgresTransaction]:
        """A savepoint in a transaction that several handlers may share: its writes and its settle."""
        self._home.check()
        session = Session(lease)
        self._groups.join(session)
        try:
            transaction = await self._opened(session)
        except BaseException:
            session.end(keep=False)
            raise
        try:
            yield transaction
        except BaseException:
            session.end(keep=False)
            await _heard(session)  # whoever asks next finds the lease as it was
            raise
        if transaction.settled is None:
            session.end(keep=False)
            await _heard(session)  # nothing was to be kept: a connection that died over it changes nothing
            transaction.check_way()
            return
        session.end(keep=True)
        # Once the end is said, the commit is on its way: its answer is awaited whatever happens to the caller.
        await asyncio.shield(session.answer)

    async def _opened(self, session: Session) -> PostgresTransaction:
        wait_s = max(self._options.pool_wait, session.lease.claim.lease_ms / 1000)
        try:
            return await asyncio.wait_for(asyncio.shield(session.opened), wait_s)
        except TimeoutError:
            raise LedgerUnavailable(
                f"{self._options.where}: no connection for a transaction within {wait_s:g} s: "
                "raise transactions= in the ledger's URL, or find the handlers that hold them"
            ) from None

    async def wait(self, claim: Claim, timeout_s: float) -> None:
        """Return when no handler's transaction holds this key, or when the time is over."""
        await held_until(self._waiters, claim, timeout_s)

    async def _stands(self, settlement: Settlement) -> bool:
        """Whether a settlement was committed. Asked on another connection than the one that died, and more than once:
        a server that falls over takes a moment to stand up."""
        for pause_s in LOOK_AGAIN_S:
            with suppress(LedgerUnavailable):
                return await self._pool.run(lambda c: settling.settled_at_last(c, settlement, self._schema))
            await asyncio.sleep(pause_s)
        raise LedgerUnavailable(
            f"{self._options.where}: it fell silent during a commit, so that nobody knows now whether that was done: "
            "the next claim of the key tells"
        )

    # ---------------------------------------------------------------------------------------------------- migrating

    async def pending(self) -> list[str]:
        return await self._makers.run(lambda c: migrations.pending(c, self._schema, self._options.where))

    async def migrate(self) -> list[str]:
        return await self._makers.run(lambda c: migrations.migrate(c, self._schema, self._options.where))

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the store, for `semel doctor`. A value that begins with "error: " or "warning: " is one."""
        try:
            return await self._makers.run(lambda c: diagnosis.facts(c, self._options))
        except LedgerUnavailable as error:
            return [("server", self._options.where), ("readable", f"error: {error}")]

    # -------------------------------------------------------------------------------------------------------- inbox

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        if not all(arrival.claims for arrival in arrivals):
            raise ValueError("an arrival without claims is for nobody: it would be lost in the inbox")
        return await self._write(lambda c: inbox.accept(c, arrivals, self._now(), self._schema)) if arrivals else []

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        lanes = {lane: room for lane, room in wanted.items() if room > 0}
        if not lanes or (self._none_due and not await self._is_due(lanes)):
            return []
        asked = asyncio.ensure_future(self._write(lambda c: inbox.take(c, lanes, lease_ms, self._now(), self._schema)))
        try:
            taken = await asyncio.shield(asked)
        except asyncio.CancelledError:
            with suppress(LedgerUnavailable):  # whoever asked has gone: no lease has to lapse for that
                await self.finish([Postponed(one, 0) for one in await asked])
            raise
        self._none_due = not taken
        return taken

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        return await self._write(lambda c: inbox.finish(c, endings, self._now(), self._schema)) if endings else []

    async def depths(self) -> list[Depth]:
        return await self._readers.run(lambda c: inbox.depths(c, self._now(), self._schema))

    async def _is_due(self, lanes: Mapping[str, int]) -> bool:
        return await self._pool.run(lambda c: inbox.is_due(c, lanes, self._now(), self._schema))

    # ------------------------------------------------------------------------------------------ letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        k = catalog.key_of(key)
        return await self._write(lambda c: letters.replay(c, k, reason, by, self._now(), self._schema, force=force))

    async def discard(self, key: str, reason: str, by: str) -> bool:
        k = catalog.key_of(key)
        return await self._write(lambda c: letters.discard(c, k, reason, by, self._now(), self._schema))

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        await self._write(lambda c: letterbox.keep(c, settlements, self._now(), self._schema))

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        await self._write(lambda c: letterbox.withdraw(c, leases, self._schema))

    async def entries(
        self,
        state: str | None = None,
        limit: int = 100,
        *,
        handler: str = "",
        tenant: str | None = None,
        reason: str = "",
        since_ms: int = 0,
        until_ms: int | None = None,
    ) -> list[Entry]:
        asked = Asked(
            state=state,
            limit=limit,
            handler=handler,
            tenant=tenant,
            reason=reason,
            since_ms=since_ms,
            until_ms=until_ms,
        )
        return await self._readers.run(lambda c: catalog.entries(c, asked, self._schema))

    async def history(self, key: str) -> list[Entry]:
        k = catalog.key_of(key)
        return await self._readers.run(lambda c: catalog.history(c, k, self._schema))

    async def counts(self) -> dict[str, int]:
        return await self._readers.run(lambda c: catalog.counts(c, self._schema))

    # ---------------------------------------------------------------------------------------------------- its parts

    async def _write(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """One statement, or a transaction of its own: all of it, or nothing. It repeats itself where it has to."""
        return await self._pool.run(self._announced(work))

    def _announced(
        self, work: Callable[[Connection], Coroutine[Any, Any, T]]
    ) -> Callable[[Connection], Coroutine[Any, Any, T]]:
        """The crash tests kill the process before and after what is written."""
        observe = self._observe
        if observe is None:
            return work

        async def announced(connection: Connection) -> T:
            observe("before_commit")
            answer = await work(connection)
            observe("after_commit")
            return answer

        return announced

    async def _check(self, connection: Connection) -> None:
        await migrations.check(connection, self._schema, self._options.where)

    def _now(self) -> int | None:
        """None: the server's own clock."""
        return None if self._clock is None else self._clock()


async def _heard(session: Session) -> None:
    """Wait until what was not kept is undone; how that went changes nothing for who asked."""
    with suppress(Exception):
        await asyncio.shield(session.answer)
