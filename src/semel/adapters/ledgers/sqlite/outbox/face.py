"""The outbox's face: batches go to the ledger's writer thread, and are committed in its groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from semel.adapters.ledgers.sqlite.outbox import adding, crossing, forgetting, people, recording, taking
from semel.adapters.ledgers.sqlite.statements import SQL, rows
from semel.adapters.ledgers.sqlite.writer import Writer
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
from semel.values.stored import encode


class SqliteOutbox:
    """The outbox of a ledger's file: its writes travel in the same groups as the ledger's own."""

    def __init__(
        self,
        writer: Writer,
        lookout: Writer,
        catalog: Writer,
        now: Callable[[], int],
        ahead_ms: Callable[[], int],
    ) -> None:
        """`ahead_ms`: how far `now` is ahead of the wall clock."""
        self._writer = writer
        self._lookout = lookout  # for whoever waits
        self._catalog = catalog  # for people, whose questions may take long
        self._now = now
        self._ahead_ms = ahead_ms
        self._none_due = False  # the last take found nothing

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        check_batch(notifications, ADD)
        return await self._writer.submit(lambda connection: adding.add(connection, notifications, self._now()))

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        if self._none_due and not await self._is_due(lanes):
            return []
        asked = self._writer.submit(
            lambda connection: taking.take(connection, lanes, lease_ms, self._now(), self._ahead_ms())
        )
        try:
            taken = await asyncio.shield(asked)
        except asyncio.CancelledError:
            with suppress(LedgerUnavailable):  # whoever asked has gone: no lease has to lapse for that
                await self._give_back(await asked)
            raise
        self._none_due = not taken
        return taken

    async def cross(self, crossings: Sequence[Crossing]) -> list[Gate]:
        return await self._writer.submit(lambda connection: crossing.cross(connection, crossings, self._now()))

    async def record(self, records: Sequence[Record]) -> list[bool]:
        return await self._writer.submit(lambda connection: recording.record(connection, records, self._now()))

    async def witness(self, witnesses: Sequence[Witness]) -> list[State | None]:
        return await self._writer.submit(lambda connection: recording.witness(connection, witnesses, self._now()))

    # ------------------------------------------------------------------------------------------------------- people

    async def status(self, tenant: str, *, recipient: str = "", kind: str = "", key: str = "") -> Status:
        return await self._lookout.submit(lambda connection: people.status(connection, tenant, recipient, kind, key))

    async def find(self, sought: Sought) -> list[Shown]:
        return await self._catalog.submit(lambda connection: people.find(connection, sought))

    async def show(self, id: bytes) -> Shown | None:
        return await self._lookout.submit(lambda connection: people.show(connection, id))  # callbacks wait for it

    async def decide(self, decision: Decision) -> State | None:
        return await self._writer.submit(
            lambda connection: people.decide(connection, decision, self._now(), self._ahead_ms())
        )

    async def erase(self, tenant: str, recipient: str, reason: str, by: str) -> int:
        now = self._now
        return await self._writer.submit(
            lambda connection: people.erase(connection, tenant, recipient, reason, by, now())
        )

    async def backlog(self) -> list[Backlog]:
        return await self._catalog.submit(people.backlog)

    async def purge(self, content_ms: int, identity_ms: int, limit: int) -> int:
        now = self._now
        return await self._writer.submit(
            lambda connection: forgetting.purge(connection, content_ms, identity_ms, limit, now())
        )

    async def _give_back(self, dispatches: Sequence[Dispatch]) -> None:
        """As they were. What another relay has left behind stays taken: that it vanished must not be forgotten."""
        await self.record([Record(one, one.standing, "released") for one in dispatches if not one.vanished])

    async def _is_due(self, lanes: Mapping[str, Lane]) -> bool:
        """Asked without a lock, so that idle relays do not wait for each other."""
        names = encode(list(lanes)).decode()
        sql = SQL["lanes_due"]
        return bool(await self._lookout.submit(lambda connection: rows(connection, sql, names, self._now())))
