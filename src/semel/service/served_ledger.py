"""The ledger, inbox and outbox as the service calls them.

Each round trip is timed and tracked by `StoreHealth`, passes the ledger breaker where there is one, and fails with
LedgerUnavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from semel.core.inbox_flow import LEDGER_DOWN_S
from semel.core.ledger_breaker import GatedInbox, GatedLedger, LedgerBreaker, Watched, WatchedInbox, WatchedLedger
from semel.core.resend import StoredOutbox
from semel.ports import Inbox, Ledger, Telemetry
from semel.service.incident_log import StoreHealth
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.delivery_state import State
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, InboxEnding, Taken
from semel.values.notification import Notification
from semel.values.outbox import Added, Decision

T = TypeVar("T")


class _TrackedStore(Watched):
    """Reports every round trip to the store's health."""

    def __init__(self, *arguments: Any, health: StoreHealth) -> None:
        super().__init__(*arguments)
        self._health = health

    async def _timed(self, operation: str, call: Awaitable[T]) -> T:
        with self._health.measure(operation):
            return await super()._timed(operation, call)


class _Ledger(_TrackedStore, WatchedLedger):
    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        with self._health.as_unavailable():
            return await super().claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._health.as_unavailable():
            return await super().settle(settlements)

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        with self._health.as_unavailable():
            return await super().renew(leases)


class _GatedLedger(_Ledger, GatedLedger):
    """Refusals become LedgerUnavailable outside of the breaker, so that they do not open it."""


class _Inbox(_TrackedStore, WatchedInbox):
    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        with self._health.as_unavailable():
            return await super().accept(arrivals)

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        """While the store is unavailable, wait and return no items."""
        try:
            with self._health.as_unavailable():
                return await super().take(wanted, lease_ms)
        except LedgerUnavailable:  # logged by its health
            await asyncio.sleep(LEDGER_DOWN_S)
            return []

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        with self._health.as_unavailable():
            return await super().finish(endings)


class _GatedInbox(_Inbox, GatedInbox):
    """Converts refusals outside of the breaker, as `_GatedLedger` does."""


class _Outbox:
    """Writes of a waiting caller pass the breaker: they are idempotent, so giving up on an answer costs nothing. Reads
    bypass it, because they do not wait for writers and show nothing about the speed of writes. The relay and long
    operations bypass it too."""

    def __init__(
        self, outbox: StoredOutbox, health: StoreHealth, gate: LedgerBreaker, added: Callable[[], None]
    ) -> None:
        self._outbox = outbox
        self._health = health
        self._gate = gate
        self._added = added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        added = await self._gate.ask(
            lambda: self._measured("add", self._outbox.add(notifications)), items=len(notifications)
        )
        self._added()
        return added

    async def decide(self, decision: Decision) -> State | None:
        state = await self._gate.ask(lambda: self._measured("decision", self._outbox.decide(decision)))
        self._added()  # a notification that was resolved as not sent is due again
        return state

    async def _measured(self, operation: str, call: Awaitable[T]) -> T:
        with self._health.measure(operation):
            return await call


def served_ledger(
    ledger: Ledger, telemetry: Telemetry | None, health: StoreHealth, gate: LedgerBreaker | None = None
) -> WatchedLedger:
    if gate is None:
        return _Ledger(ledger, telemetry, health=health)
    return _GatedLedger(ledger, gate, telemetry, health=health)


def served_inbox(
    inbox: Inbox, telemetry: Telemetry | None, health: StoreHealth, gate: LedgerBreaker | None = None
) -> WatchedInbox:
    if gate is None:
        return _Inbox(inbox, telemetry, health=health)
    return _GatedInbox(inbox, gate, telemetry, health=health)


def served_outbox(
    outbox: StoredOutbox, health: StoreHealth, gate: LedgerBreaker, added: Callable[[], None] = lambda: None
) -> StoredOutbox:
    """`added` is called when there may be a notification to send."""
    return cast(StoredOutbox, _Outbox(outbox, health, gate, added))
