"""The embedded ledger: batches go to the writer thread, and results come back after the commit.

Queries run in two other threads, which never wait for the write lock. One thread serves operators, whose queries may
take long. The other serves workers that wait for inbox items and must not queue behind operators.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import apsw
from msgspec.structs import replace

from semel.ledgers.sqlite import catalog, dead_letters, doctor, inbox
from semel.ledgers.sqlite import claims as store
from semel.ledgers.sqlite.database import (
    SCHEMA_VERSION,
    Clock,
    DatabaseFiles,
    ahead_of_wall_ms,
    closed_clock,
    file_identity,
    known_clock,
    open_clock,
    open_database,
    open_reader,
    schema_version,
    wall_clock,
)
from semel.ledgers.sqlite.outbox import SqliteOutbox
from semel.ledgers.sqlite.transaction import SqliteTransaction
from semel.ledgers.sqlite.writer import READING, Session, Writer
from semel.ports import DataLoss, Entry, EntryQuery, Fact, Traits
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Postponed, Taken
from semel.values.key import parse_digest

SYNCHRONOUS = ("full", "normal", "extra")


def traits_of(synchronous: str) -> Traits:
    """Return what SQLite may lose with this setting.

    `normal` leaves the newest commits to the operating system, which survives a crash of the process but not a power
    loss. SQLite runs inside the ledger's process, so it is never killed alone."""
    if synchronous != "normal":
        return Traits(name="SQLite", durable=True, transactional=True)
    return Traits(
        name="SQLite",
        durable=True,
        transactional=True,
        caveat="synchronous=normal may lose the newest answers on power loss",
        loses=DataLoss(power_loss="the newest answers, some seconds of them", tokens_go_back=True),
    )


def profiles() -> list[Traits]:
    """Return the traits of every configuration of the SQLite ledger."""
    return [traits_of("full"), replace(traits_of("normal"), name="SQLite, synchronous=normal")]


NOT_CREATED = "not created yet: the first process that writes creates the file"


class SqliteLedger:
    """SQLite in WAL mode. All processes of one machine may use the same file at once."""

    def __init__(
        self,
        path: str,
        synchronous: str = "full",
        clock: Clock | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous={synchronous!r}: expected one of {', '.join(SYNCHRONOUS)}")
        self.traits = traits_of(synchronous)
        self._path = path
        self._synchronous = synchronous
        self._clock: Clock = clock or closed_clock
        self._reads_only = False
        self._none_due = False  # the last take found nothing
        self._files = DatabaseFiles(path)
        self._writer = Writer(lambda: self._files.connect(self._open), self._files, observe)
        self._catalog = self._reader()
        self._lookout = self._reader()
        self._is_own_clock = clock is None
        self.outbox = SqliteOutbox(self._writer, self._lookout, self._catalog, lambda: self._clock(), self._ahead_ms)

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if claims:
            return await self._writer.submit(lambda connection: store.claim(connection, claims, self._clock()))
        if self._reads_only:
            await self._catalog.submit(lambda connection: None)
        else:  # only a write shows that the store accepts writes
            await self._writer.submit(lambda connection: store.touch(connection, self._clock()))
        return []

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._writer.submit(lambda connection: store.settle(connection, settlements, self._clock()))

    @property
    def held_by_handler(self) -> bool:
        """True while a handler's transaction holds the write lock: callers wait for it, not for a slow store."""
        return self._writer.in_session

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return await self._writer.submit(lambda connection: store.renew(connection, leases, self._clock()))

    async def purge(self, limit: int) -> int:
        return await self._writer.submit(lambda connection: store.purge(connection, limit, self._clock()))

    def read_only(self) -> None:
        self._reads_only = True

    async def outdated(self) -> list[str]:
        version = await asyncio.to_thread(schema_version, self._path)
        return [] if version in (None, SCHEMA_VERSION) else [f"schema version {version} to {SCHEMA_VERSION}"]

    async def upgrade(self) -> list[str]:
        steps = await self.outdated()
        if steps:
            await self._writer.submit(lambda connection: None)  # opening it for writing migrates it
        return steps

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[SqliteTransaction]:
        """Lend the writer's connection to one handler: its writes and its settle are one savepoint of the group."""

        def open(connection: apsw.Connection) -> SqliteTransaction:
            return SqliteTransaction(connection, lease, self._clock, lambda: session.end(keep=False))

        session = self._writer.put(Session(open, lease.claim.lease_ms / 1000))
        # If the block raises, its own error is reported, and the session's counts as retrieved.
        session.future.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            transaction = await session.opened
        except asyncio.CancelledError:
            session.end(keep=False)
            raise
        try:
            yield transaction
        except BaseException:
            transaction.close()
            session.end(keep=False)
            raise
        transaction.close()
        session.end(keep=transaction.settled)
        # The commit is under way from here: its result is awaited even if the caller is cancelled.
        await asyncio.shield(session.future)

    # ----------------------------------------------------------------------------------------------------- inbox

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        if not all(arrival.claims for arrival in arrivals):
            raise ValueError("an arrival without claims has no handler: it would be lost in the inbox")
        return await self._writer.submit(lambda connection: inbox.accept(connection, arrivals, self._clock()))

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        lanes = {lane: room for lane, room in wanted.items() if room > 0}
        if not lanes:
            return []
        if self._none_due and not await self._lookout.submit(
            lambda connection: inbox.is_due(connection, lanes, self._clock())
        ):
            return []
        pending = self._writer.submit(lambda connection: inbox.take(connection, lanes, lease_ms, self._clock()))
        try:
            taken = await asyncio.shield(pending)
        except asyncio.CancelledError:
            with suppress(LedgerUnavailable):  # the caller is gone: release now, not when the leases expire
                await self.finish([Postponed(item, 0) for item in await pending])
            raise
        self._none_due = not taken
        return taken

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        return await self._writer.submit(lambda connection: inbox.finish(connection, endings, self._clock()))

    async def depths(self) -> list[Depth]:
        return await self._lookout.submit(lambda connection: inbox.depths(connection, self._reader_clock(connection)()))

    # ---------------------------------------------------------------------------------- dead letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        digest = parse_digest(key)
        return await self._writer.submit(
            lambda connection: dead_letters.replay(connection, digest, reason, by, self._clock(), force=force)
        )

    async def discard(self, key: str, reason: str, by: str) -> bool:
        digest = parse_digest(key)
        return await self._writer.submit(
            lambda connection: dead_letters.discard(connection, digest, reason, by, self._clock())
        )

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        await self._writer.submit(lambda connection: dead_letters.keep(connection, settlements, self._clock()))

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        await self._writer.submit(lambda connection: dead_letters.withdraw(connection, leases))

    async def entries(self, query: EntryQuery) -> list[Entry]:
        return await self._catalog.submit(lambda connection: catalog.entries(connection, query))

    async def history(self, key: str) -> list[Entry]:
        digest = parse_digest(key)
        return await self._catalog.submit(lambda connection: catalog.history(connection, digest))

    async def counts(self) -> dict[str, int]:
        return await self._catalog.submit(catalog.counts)

    async def diagnose(self) -> list[Fact]:
        if self._reads_only and file_identity(self._path) is None:
            return [*doctor.surroundings(self._path), Fact("created", NOT_CREATED)]
        facts: list[Fact] = []
        try:
            facts += await self._catalog.submit(doctor.facts)
        except LedgerUnavailable as error:
            facts.append(Fact("readable", str(error), "error"))
        try:
            if self._reads_only:
                facts += await asyncio.to_thread(doctor.lockable, self._path, self._synchronous)
            else:
                facts += await self._writer.submit(doctor.writable)
            facts.append(doctor.clock(await self._catalog.submit(self._reader_ahead_ms)))
        except LedgerUnavailable as error:
            facts.append(Fact("writable", str(error), "error"))
        return doctor.surroundings(self._path) + facts

    # --------------------------------------------------------------------------------------------------- private

    def _reader(self) -> Writer:
        return Writer(lambda: self._files.connect(self._open_reader), self._files, begin=READING)

    def _open(self) -> apsw.Connection:
        connection = self._open_reader() if self._reads_only else open_database(self._path, self._synchronous)
        if self._clock is closed_clock:
            try:
                self._clock = self._reader_clock(connection) if self._reads_only else open_clock(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _open_reader(self) -> apsw.Connection:
        connection = open_reader(self._path, self._synchronous, migrate=not self._reads_only)
        catalog.prepare(connection)
        return connection

    def _close(self) -> None:
        for thread in (self._lookout, self._catalog, self._writer):
            thread.close()

    def _reader_clock(self, connection: apsw.Connection) -> Clock:
        """Return the clock for a query. The writer may not be open, and no process may have written since the boot."""
        return self._clock if self._clock is not closed_clock else known_clock(connection) or wall_clock

    def _reader_ahead_ms(self, connection: apsw.Connection) -> int:
        return ahead_of_wall_ms(self._reader_clock(connection)) if self._is_own_clock else 0

    def _ahead_ms(self) -> int:
        """Return how far the ledger's clock is ahead of the wall clock, which `not_after` is compared with."""
        return ahead_of_wall_ms(self._clock) if self._is_own_clock else 0
