"""The PostgreSQL ledger: every method runs a few statements on a connection of a pool.

Claims, the catalog, the inbox and dead letters are modules beside this one, as functions of a connection. `now` is
None for the server's own clock; `schema` is the one of `statements(schema)`.

Work that meets a deadlock or a serialization failure is repeated (`with_retries`, `insist`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from semel.ledgers.postgres import catalog, dead_letters, doctor, inbox, migrations
from semel.ledgers.postgres import claims as key_claims
from semel.ledgers.postgres.outbox import PostgresOutbox
from semel.ledgers.postgres.pool import LEDGER_SETTINGS, PLAIN_SETTINGS, OwnerCheck, Pool, driver, with_retries
from semel.ledgers.postgres.rows import columns_of
from semel.ledgers.postgres.statements import statements
from semel.ledgers.postgres.transaction import Groups, PostgresTransaction, Session
from semel.ledgers.postgres.url import Options, parse
from semel.ports import DataLoss, Entry, EntryQuery, Fact, Traits
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Postponed, Taken
from semel.values.key import parse_digest, split_digests

if TYPE_CHECKING:
    from semel.ledgers.postgres.pool import Connection

# The guarantees of the ledger, by the configuration of its server.

SYNCHRONOUS = Traits(
    name="PostgreSQL, synchronous replica",
    durable=True,
    transactional=True,
    async_handle=True,
    loses=DataLoss(failover=""),
)
ALONE = Traits(
    name="PostgreSQL",
    durable=True,
    transactional=True,
    async_handle=True,
    loses=DataLoss(
        failover="the newest commits, when the replica that takes over is an asynchronous one",
        tokens_go_back=True,
    ),
)
FORGETFUL = Traits(
    name="PostgreSQL, synchronous_commit=off",
    durable=True,
    transactional=True,
    async_handle=True,
    caveat="synchronous_commit=off may lose the newest answers when the server crashes",
    loses=DataLoss(
        store_killed="the commits of the last moments (three times wal_writer_delay)",
        power_loss="the commits of the last moments (three times wal_writer_delay)",
        failover="the newest commits, when the replica that takes over is an asynchronous one",
        tokens_go_back=True,
    ),
)


def profiles() -> list[Traits]:
    """Return the traits of every server configuration that changes the guarantees."""
    return [ALONE, SYNCHRONOUS, FORGETFUL]


EXAMINED_PER_KEY = 10  # rows examined for each key that a purge may delete: rows that are not due are skipped
START = -1  # before every token; 0 is the token of a released lease


async def purge(connection: Connection, limit: int, now: int | None, schema: str) -> int:
    """Delete keys whose retention is over. Live leases, suspect leases and undecided dead letters stay.

    Rows are in order of grants, so the oldest are due first. Handlers may have different retentions: the purge resumes
    where it stopped, examines a bounded number of rows at a time, and starts over at the end.
    """
    sql = statements(schema)
    examined_max = limit * EXAMINED_PER_KEY
    async with connection.transaction(isolation="read_committed"):
        position, subject = await connection.fetchrow(sql["lock_purge_position"]) or (START, b"")
        row = await connection.fetchrow(sql["purge_keys"], position, examined_max, limit, now)
        assert row is not None
        examined, last_examined, deleted, last_chosen, chosen = row
        if deleted < limit:
            deleted += await _purge_dead_letters(connection, limit - deleted, now, sql)
        subjects, last_subject = await connection.fetchrow(sql["purge_subjects"], subject, limit, now) or (0, None)
        position = last_chosen if chosen == limit else last_examined if examined == examined_max else START
        await connection.execute(sql["set_purge_position"], position, last_subject if subjects == limit else b"")
    return int(deleted)


async def _purge_dead_letters(connection: Connection, limit: int, now: int | None, sql: dict[str, str]) -> int:
    """Delete dead letters past their retention, with their decisions and their keys in the inbox."""
    rows = await connection.fetch(sql["purge_dead_letters"], limit, now)
    if rows:
        await connection.execute(sql["purge_decisions"], [id for id, _, _ in rows])
        keys = [(key, id) for id, digest, aliases in rows for key in (digest, *split_digests(aliases))]
        await connection.execute(sql["purge_inbox_keys"], *columns_of(keys))
    return len(rows)


T = TypeVar("T")

READERS = 2  # connections for operators' queries, which may take long
COMMIT_CHECK_PAUSES_S = (0.1, 0.5, 1.0, 2.0)  # a failover takes a moment
WAITERS = 2  # connections of callers that wait for the end of a transaction


class PostgresLedger:
    """Ledger in PostgreSQL 14 or later. Several processes may share it; an object belongs to one event loop."""

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
        self._owner = OwnerCheck(options.where)
        self._pool = Pool(options, self._owner, options.pool, LEDGER_SETTINGS, self._check)
        self._readers = Pool(options, self._owner, READERS, PLAIN_SETTINGS, self._check)
        self._waiters = Pool(options, self._owner, WAITERS, PLAIN_SETTINGS)
        self._handlers = Pool(
            options, self._owner, options.transactions, PLAIN_SETTINGS, self._check, is_for_handlers=True
        )
        self._migrators = Pool(options, self._owner, 1, PLAIN_SETTINGS)  # the schema may not exist yet
        self._groups = Groups(self._handlers, self._now, self._is_committed, observe)
        self.outbox = PostgresOutbox(self._write, self._pool, self._readers, self._now, self._schema)

    @classmethod
    def from_url(
        cls, url: str, *, clock: Callable[[], int] | None = None, observe: Callable[[str], None] | None = None
    ) -> PostgresLedger:
        """Parse `postgresql://user:password@host:5432/database?pool=10&schema=semel`. Nothing is opened yet."""
        options = parse(url)
        driver()
        return cls(options, clock, observe)

    def __repr__(self) -> str:
        return f"PostgresLedger({self._options.where!r})"

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if not claims:
            await self._pool.run(lambda c: key_claims.spend_token(c, self._schema))
            return []
        return await self._write(lambda c: key_claims.claim(c, claims, self._now(), self._schema))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        if not settlements:
            return []
        return await self._write(with_retries(lambda c: key_claims.settle(c, settlements, self._now(), self._schema)))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        if not leases:
            return []
        return await self._pool.run(with_retries(lambda c: key_claims.renew(c, leases, self._now(), self._schema)))

    async def purge(self, limit: int) -> int:
        deleted = await self._pool.run(with_retries(lambda c: purge(c, limit, self._now(), self._schema)))
        await self._pool.run(with_retries(lambda c: catalog.mark_unsettled_keys(c, self._now(), self._schema)))
        return deleted

    async def close(self) -> None:
        if self._owner.is_own:
            await self._groups.close()
        for pool in (self._pool, self._readers, self._waiters, self._handlers, self._migrators):
            await pool.close()
        self._owner.leave()

    # ------------------------------------------------------------------------------------------------ transactions

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[PostgresTransaction]:
        """Open a savepoint in a transaction that several handlers may share, for a handler's writes and its settle."""
        self._owner.check()
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
            await session.roll_back()  # the next claim finds the lease unchanged
            raise
        if transaction.settled is None:
            await session.roll_back()
            transaction.check_deadlock()
            return
        session.end(keep=True)
        # The commit is under way from here: its result is awaited even if the caller is cancelled.
        await asyncio.shield(session.answer)

    async def _opened(self, session: Session) -> PostgresTransaction:
        wait_s = max(self._options.pool_wait, session.lease.claim.lease_ms / 1000)
        try:
            return await asyncio.wait_for(asyncio.shield(session.opened), wait_s)
        except TimeoutError:
            raise LedgerUnavailable(
                f"{self._options.where}: no connection for a transaction within {wait_s:g} s: "
                "raise transactions= in the ledger's URL, or find the handlers that keep them open"
            ) from None

    async def wait(self, claim: Claim, timeout_s: float) -> None:
        """Return when no handler's transaction holds this key, or when the time is over."""
        await key_claims.wait_until_free(self._waiters, claim, timeout_s)

    async def _is_committed(self, settlement: Settlement) -> bool:
        """Check on another connection whether a settlement was committed."""
        for pause_s in COMMIT_CHECK_PAUSES_S:
            with suppress(LedgerUnavailable):
                return await self._pool.run(lambda c: key_claims.settled_after_commit(c, settlement, self._schema))
            await asyncio.sleep(pause_s)
        raise LedgerUnavailable(
            f"{self._options.where}: the connection was lost during a commit, and its result is unknown: the next "
            "claim of the key resolves it"
        )

    # --------------------------------------------------------------------------------------------------- migrations

    async def pending(self) -> list[str]:
        return await self._migrators.run(lambda c: migrations.pending(c, self._schema, self._options.where))

    async def migrate(self) -> list[str]:
        return await self._migrators.run(lambda c: migrations.migrate(c, self._schema, self._options.where))

    async def diagnose(self) -> list[Fact]:
        try:
            return await self._migrators.run(lambda c: doctor.facts(c, self._options))
        except LedgerUnavailable as error:
            return [Fact("server", self._options.where), Fact("readable", str(error), "error")]

    # -------------------------------------------------------------------------------------------------------- inbox

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        if not all(arrival.claims for arrival in arrivals):
            raise ValueError("an arrival without claims has no handler: it would be lost in the inbox")
        return await self._write(lambda c: inbox.accept(c, arrivals, self._now(), self._schema)) if arrivals else []

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        lanes = {lane: limit for lane, limit in wanted.items() if limit > 0}
        if not lanes:
            return []
        if self._none_due and not await self._pool.run(
            lambda c: inbox.is_due(c, lanes, self._now(), self._schema)  # cheaper than a take
        ):
            return []
        pending = asyncio.ensure_future(
            self._write(lambda c: inbox.take(c, lanes, lease_ms, self._now(), self._schema))
        )
        try:
            taken = await asyncio.shield(pending)
        except asyncio.CancelledError:
            with suppress(LedgerUnavailable):  # the caller is gone: release now, not when leases expire
                await self.finish([Postponed(item, 0) for item in await pending])
            raise
        self._none_due = not taken
        return taken

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        return await self._write(lambda c: inbox.finish(c, endings, self._now(), self._schema)) if endings else []

    async def depths(self) -> list[Depth]:
        return await self._readers.run(lambda c: inbox.depths(c, self._now(), self._schema))

    # ------------------------------------------------------------------------------------- dead letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        digest = parse_digest(key)
        return await self._write(
            lambda c: dead_letters.replay(c, digest, reason, by, self._now(), self._schema, force=force)
        )

    async def discard(self, key: str, reason: str, by: str) -> bool:
        digest = parse_digest(key)
        return await self._write(lambda c: dead_letters.discard(c, digest, reason, by, self._now(), self._schema))

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        await self._write(lambda c: dead_letters.keep(c, settlements, self._now(), self._schema))

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        await self._write(lambda c: dead_letters.withdraw(c, leases, self._schema))

    async def entries(self, query: EntryQuery) -> list[Entry]:
        return await self._readers.run(lambda c: catalog.entries(c, query, self._schema))

    async def history(self, key: str) -> list[Entry]:
        digest = parse_digest(key)
        return await self._readers.run(lambda c: catalog.history(c, digest, self._schema))

    async def counts(self) -> dict[str, int]:
        return await self._readers.run(lambda c: catalog.counts(c, self._schema))

    # ------------------------------------------------------------------------------------------------------ private

    async def _write(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Run one statement or one transaction. Crash tests observe the points before and after it."""
        observe = self._observe
        if observe is None:
            return await self._pool.run(work)

        async def observed(connection: Connection) -> T:
            observe("before_commit")
            result = await work(connection)
            observe("after_commit")
            return result

        return await self._pool.run(observed)

    async def _check(self, connection: Connection) -> None:
        await migrations.check(connection, self._schema, self._options.where)

    def _now(self) -> int | None:
        """Return the time of a test clock; None for the server's own clock."""
        return None if self._clock is None else self._clock()
