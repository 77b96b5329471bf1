"""A store whose round trips are timed. It decides nothing: every call is passed on as it is."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from semel.ports import Entry, Inbox, Ledger, Telemetry, Traits, Transaction, Waits
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.inbox import Acceptance, Arrival, Depth, InboxEnding, Taken

T = TypeVar("T")


class Watched:
    """What both faces of a store have in common."""

    def __init__(self, telemetry: Telemetry | None) -> None:
        self._telemetry = telemetry

    async def _timed(self, what: str, asked: Awaitable[T]) -> T:
        if self._telemetry is None:
            return await asked
        begun = time.perf_counter()
        failed = True
        try:
            answer = await asked
            failed = False
            return answer
        finally:
            self._telemetry.asked(what, time.perf_counter() - begun, failed)


class WatchedLedger(Watched):
    """A ledger, watched."""

    def __init__(self, ledger: Ledger, telemetry: Telemetry | None) -> None:
        super().__init__(telemetry)
        self._ledger: Any = ledger
        self.traits: Traits = ledger.traits

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts: list[Verdict] = await self._timed("claim", self._ledger.claim(claims))
        return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        held: list[bool] = await self._timed("settle", self._ledger.settle(settlements))
        return held

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        held: list[bool] = await self._timed("renew", self._ledger.renew(leases))
        return held

    async def purge(self, limit: int) -> int:
        forgotten: int = await self._timed("purge", self._ledger.purge(limit))
        return forgotten

    async def close(self) -> None:
        await self._ledger.close()

    @property
    def outbox(self) -> Any:
        """As the store has it, or None."""
        return getattr(self._ledger, "outbox", None)

    @property
    def wait(self) -> Callable[[Claim, float], Awaitable[None]] | None:
        """As the store has it, or None."""
        return self._ledger.wait if isinstance(self._ledger, Waits) else None

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        opened: AbstractAsyncContextManager[Transaction] = self._ledger.transaction(lease)
        return opened


class WatchedInbox(Watched):
    """An inbox, watched."""

    def __init__(self, inbox: Inbox, telemetry: Telemetry | None) -> None:
        super().__init__(telemetry)
        self._inbox = inbox

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        return await self._timed("accept", self._inbox.accept(arrivals))

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        return await self._timed("take", self._inbox.take(wanted, lease_ms))

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        return await self._timed("finish", self._inbox.finish(endings))

    async def depths(self) -> list[Depth]:
        return await self._inbox.depths()

    async def history(self, key: str) -> list[Entry]:
        return await self._inbox.history(key)
