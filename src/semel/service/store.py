"""The store as the service uses it: its round trips are watched, pass the gate where there is one, and fail as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from semel.core.gate import Gate, GatedInbox, GatedLedger
from semel.core.outboxes import StoredOutbox
from semel.core.pump import LEDGER_DOWN_S
from semel.core.watched import Watched, WatchedInbox, WatchedLedger
from semel.ports import Inbox, Ledger, Telemetry
from semel.service.trouble import StoreHealth
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, InboxEnding, Taken
from semel.values.notification import Notification
from semel.values.outbox import Added, Decision
from semel.values.sending import State

T = TypeVar("T")


class _Asked(Watched):
    """Every round trip is told to the store's health."""

    def __init__(self, *passed_on: Any, health: StoreHealth) -> None:
        super().__init__(*passed_on)
        self._health = health

    async def _timed(self, what: str, asked: Awaitable[T]) -> T:
        with self._health.asking(what):
            return await super()._timed(what, asked)


class _Ledger(_Asked, WatchedLedger):
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
    """Outside of the gate stands what a refusal becomes."""


class _Inbox(_Asked, WatchedInbox):
    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        with self._health.as_unavailable():
            return await super().accept(arrivals)

    async def take(self, wanted: Mapping[str, int], lease_ms: int) -> list[Taken]:
        """While the store is out of reach there is nothing to take, for a while."""
        try:
            with self._health.as_unavailable():
                return await super().take(wanted, lease_ms)
        except LedgerUnavailable:  # its health has said so
            await asyncio.sleep(LEDGER_DOWN_S)
            return []

    async def finish(self, endings: Sequence[InboxEnding]) -> list[bool]:
        with self._health.as_unavailable():
            return await super().finish(endings)


class _GatedInbox(_Inbox, GatedInbox):
    """As the ledger's."""


class _Outbox:
    """What is asked for by a caller who waits passes the gate: the same call again is the same one, so that giving up
    on its answer costs nothing. Reads wait for nobody who writes, and say nothing about how writing goes: they go
    around it, as do a relay and whatever takes long."""

    def __init__(self, outbox: StoredOutbox, health: StoreHealth, gate: Gate, added: Callable[[], None]) -> None:
        self._outbox = outbox
        self._health = health
        self._gate = gate
        self._added = added

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def add(self, notifications: Sequence[Notification]) -> list[Added]:
        added = await self._gate.ask(
            lambda: self._asked("add", self._outbox.add(notifications)), items=len(notifications)
        )
        self._added()
        return added

    async def decide(self, decision: Decision) -> State | None:
        state = await self._gate.ask(lambda: self._asked("decision", self._outbox.decide(decision)))
        self._added()  # what was said not to be sent is to be sent
        return state

    async def _asked(self, what: str, answer: Awaitable[T]) -> T:
        with self._health.asking(what):
            return await answer


def served_ledger(
    ledger: Ledger, telemetry: Telemetry | None, health: StoreHealth, gate: Gate | None = None
) -> WatchedLedger:
    if gate is None:
        return _Ledger(ledger, telemetry, health=health)
    return _GatedLedger(ledger, gate, telemetry, health=health)


def served_inbox(
    inbox: Inbox, telemetry: Telemetry | None, health: StoreHealth, gate: Gate | None = None
) -> WatchedInbox:
    if gate is None:
        return _Inbox(inbox, telemetry, health=health)
    return _GatedInbox(inbox, gate, telemetry, health=health)


def served_outbox(
    outbox: StoredOutbox, health: StoreHealth, gate: Gate, added: Callable[[], None] = lambda: None
) -> StoredOutbox:
    """`added` is told when there may be something to send."""
    return cast(StoredOutbox, _Outbox(outbox, health, gate, added))
