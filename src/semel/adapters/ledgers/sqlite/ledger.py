"""The embedded ledger's face: batches go to the writer thread, answers come back after the commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import apsw

from semel.adapters.ledgers.sqlite import catalog, store
from semel.adapters.ledgers.sqlite.opening import Clock, file_identity, open_clock, open_database
from semel.adapters.ledgers.sqlite.transaction import SqliteTransaction
from semel.adapters.ledgers.sqlite.writer import Writer
from semel.ports import Entry, Traits
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable

SYNCHRONOUS = ("full", "normal", "extra")


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
        caveat = "synchronous=normal may forget the newest answers on power loss" if synchronous == "normal" else ""
        self.traits = Traits(name="SQLite", durable=True, transactional=True, caveat=caveat)
        self._path = path
        self._synchronous = synchronous
        self._clock = clock
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        self._writer = Writer(self._connect, self._check_file, observe)

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._writer.submit(lambda connection: store.claim(connection, claims, self._now()))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._writer.submit(lambda connection: store.settle(connection, settlements, self._now()))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return await self._writer.submit(lambda connection: store.renew(connection, leases, self._now()))

    async def purge(self, limit: int) -> int:
        return await self._writer.submit(lambda connection: store.purge(connection, limit, self._now()))

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._writer.close)

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[SqliteTransaction]:
        """The writer's own connection, for one handler: its writes and its settle are one savepoint of the group."""
        session = self._writer.open_session(
            lambda connection: SqliteTransaction(connection, lease, self._now), lease.claim.lease_ms / 1000
        )
        session.future.add_done_callback(_looked_at)  # where the block raises, that is what matters
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
        # Once the end is said, the commit is on its way: its answer is awaited whatever happens to the caller.
        await asyncio.shield(session.future)

    async def entries(self, state: str | None = None, limit: int = 100) -> list[Entry]:
        return await self._writer.submit(lambda connection: catalog.entries(connection, state, limit))

    def _connect(self) -> apsw.Connection:
        try:
            connection = open_database(self._path, self._synchronous)
            if self._clock is None:
                self._clock = open_clock(connection)
        except apsw.Error as error:
            raise LedgerUnavailable(f"SQLite: cannot open {self._path}: {error}") from error
        self._file = file_identity(self._path)
        return connection

    def _check_file(self) -> None:
        """What is written into a file that others cannot see is lost: duplicates would run again elsewhere."""
        if file_identity(self._path) != self._file:
            raise LedgerUnavailable(
                f"SQLite: {self._path} was removed or replaced while in use; close the app to use the one there now"
            )

    def _now(self) -> int:
        if self._clock is None:
            raise LedgerUnavailable("SQLite: the database is not open")
        return self._clock()


def _looked_at(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
