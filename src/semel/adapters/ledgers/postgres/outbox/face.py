"""The outbox's face: every method is a short conversation on a connection of the ledger's pools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from semel.adapters.ledgers.postgres.outbox import adding, crossing, people, recording, taking
from semel.adapters.ledgers.postgres.pool import Pool
from semel.adapters.ledgers.postgres.repeating import repeated
from semel.values.errors import LedgerUnavailable
from semel.values.notification import ADD, Notification, check_batch
from semel.values.outbox import (
    Added,
    Backlog,
    Crossing,
    Decision,
    Dispatch,
    Gate,
    Lane,
    Record,
    Shown,
    Sought,
    Status,
    Witness,
)
from semel.values.sending import State

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")


class Write(Protocol):
    """How the ledger runs what is all or nothing."""

    def __call__(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> Awaitable[T]: ...


class PostgresOutbox:
    """The outbox of a ledger's database. All processes that know the ledger may use it at once."""

    def __init__(self, write: Write, pool: Pool, readers: Pool, now: Callable[[], int | None], schema: str) -> None:
        self._write = write
        self._pool = pool
        self._readers = readers  # for people, whose questions may take long
        self._now = now
        self._schema = schema

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        check_batch(notifications, ADD)
        if not notifications:
            return []
        return await self._asked(lambda c: adding.add(c, notifications, self._now(), self._schema))

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        asked = asyncio.ensure_future(self._asked(lambda c: taking.take(c, lanes, lease_ms, self._now(), self._schema)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            with suppress(LedgerUnavailable):  # whoever asked has gone: no lease has to lapse for that
                await self._give_back(await asked)
            raise

    async def cross(self, crossings: Sequence[Crossing]) -> list[Gate]:
        if not crossings:
            return []
        return await self._asked(lambda c: crossing.cross(c, crossings, self._now(), self._schema))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        if not records:
            return []
        return await self._asked(lambda c: recording.record(c, records, self._now(), self._schema))

    async def witness(self, witnesses: Sequence[Witness]) -> list[State | None]:
        if not witnesses:
            return []
        return await self._asked(lambda c: recording.witness(c, witnesses, self._now(), self._schema))

    # ------------------------------------------------------------------------------------------------------- people

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        return await self._pool.run(lambda c: people.status(c, tenant, recipient, kind, key, self._schema))

    async def find(self, sought: Sought) -> list[Shown]:
        return await self._readers.run(lambda c: people.find(c, sought, self._schema))

    async def show(self, id: bytes) -> Shown | None:
        return await self._readers.run(lambda c: people.show(c, id, self._schema))

    async def decide(self, decision: Decision) -> State | None:
        return await self._asked(lambda c: people.decide(c, decision, self._now(), self._schema))

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        return await self._asked(lambda c: people.erase(c, tenant, recipient, reason, by, self._now(), self._schema))

    async def backlog(self) -> list[Backlog]:
        return await self._readers.run(lambda c: people.backlog(c, self._schema))

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        return await self._asked(lambda c: people.purge(c, content_ms, identity_ms, limit, self._now(), self._schema))

    # ---------------------------------------------------------------------------------------------------- its parts

    async def _asked(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """All of it or nothing: where it met a deadlock, it is asked again."""
        return await self._write(repeated(work))

    async def _give_back(self, dispatches: Sequence[Dispatch]) -> None:
        """As they were. What another relay has left behind stays taken: that it vanished must not be forgotten."""
        await self.record([Record(one, one.standing, "released") for one in dispatches if not one.vanished])
