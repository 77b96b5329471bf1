"""A ledger whose letters are put on a bus as well.

    settle Reject:   renew in the ledger → put on the bus → settle in the ledger, with the event

A bus cannot be listed, and nothing comes back from it: so the ledger keeps its letters too, and people list, replay and
discard them there. While the bus is out of reach nothing is given up: the settle is tried again while its lease lasts,
and then the event is brought again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec.structs import replace

from semel.dead_letter_targets.eventbridge import EventBridgeTarget
from semel.ports import (
    Catalog,
    DeadLetters,
    Diagnosable,
    Entry,
    Fact,
    HoldsWriteLock,
    Ledger,
    Migrates,
    PlacesKeys,
    Transaction,
    TransactionalLedger,
    Upgrades,
)
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.outcome import Reject, Uncertain


class KeepingLedger(Ledger, Catalog, DeadLetters, Protocol):
    """A ledger that keeps its own letters."""


def announced(ledger: KeepingLedger, bus: EventBridgeTarget) -> AnnouncingLedger:
    """The ledger, with a bus for its letters. Abilities of the ledger are kept."""
    if isinstance(ledger, TransactionalLedger):
        return TransactionalAnnouncingLedger(ledger, bus)
    return AnnouncingLedger(ledger, bus)


class AnnouncingLedger:
    """A ledger and a bus, as one."""

    def __init__(self, ledger: KeepingLedger, bus: EventBridgeTarget) -> None:
        self.traits = ledger.traits
        self.dead_letter_store = bus
        self.together = ledger.together if isinstance(ledger, PlacesKeys) else None
        self._ledger = ledger

    @property
    def held_by_handler(self) -> bool:
        return isinstance(self._ledger, HoldsWriteLock) and self._ledger.held_by_handler

    # ------------------------------------------------------------------------------------------------- the ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._ledger.claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Letters first go to the bus. What needs none does not wait for it. Raises LedgerUnavailable when a letter is
        not known to be there, and then no letter was settled."""
        dead_letters = [s for s in settlements if _has_letter(s)]
        plain = [s for s in settlements if not _has_letter(s)]
        if not dead_letters:
            return await self._ledger.settle(settlements)
        if len({s.lease.claim.digest for s in settlements}) < len(settlements):  # their order matters
            await self._announce(dead_letters)
            return await self._ledger.settle(settlements)
        settled = iter(await self._ledger.settle(plain) if plain else ())
        await self._announce(dead_letters)
        given_up = iter(await self._ledger.settle(dead_letters))
        return [next(given_up) if _has_letter(s) else next(settled) for s in settlements]

    async def _announce(self, dead_letters: Sequence[Settlement]) -> None:
        """Whoever has lost its lease puts nothing there: the ledger is asked first."""
        held = await self._ledger.renew([s.lease for s in dead_letters])
        if kept := [s for s, holds in zip(dead_letters, held, strict=True) if holds]:
            await self.dead_letter_store.keep(await asyncio.gather(*map(self._with_attempts, kept)))

    async def _with_attempts(self, settlement: Settlement) -> Settlement:
        """What the ledger knows of the attempts before this one is told on the bus too."""
        dead_letter = settlement.dead_letter
        if dead_letter is None or dead_letter.attempts == 1 or dead_letter.attempt_log:
            return settlement
        known = await self._ledger.history(settlement.lease.claim.digest.hex())
        attempt_log = next((entry.attempt_log for entry in known if entry.state == "leased"), ())
        return replace(settlement, dead_letter=replace(dead_letter, attempt_log=attempt_log))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return await self._ledger.renew(leases)

    async def purge(self, limit: int) -> int:
        return await self._ledger.purge(limit)

    async def close(self) -> None:
        try:
            await self._ledger.close()
        finally:
            await self.dead_letter_store.close()

    # ------------------------------------------------------------------------------------------------ for people

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        return await self._ledger.replay(key, reason, by, force=force)

    async def discard(self, key: str, reason: str, by: str) -> bool:
        return await self._ledger.discard(key, reason, by)

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
        return await self._ledger.entries(
            state, limit, handler=handler, tenant=tenant, reason=reason, since_ms=since_ms, until_ms=until_ms
        )

    async def history(self, key: str) -> list[Entry]:
        return await self._ledger.history(key)

    async def counts(self) -> dict[str, int]:
        return await self._ledger.counts()

    def read_only(self) -> None:
        if isinstance(self._ledger, Upgrades):
            self._ledger.read_only()

    async def pending(self) -> list[str]:
        return await self._ledger.pending() if isinstance(self._ledger, Migrates) else []

    async def migrate(self) -> list[str]:
        return await self._ledger.migrate() if isinstance(self._ledger, Migrates) else []

    async def diagnose(self) -> list[Fact]:
        """What both say of themselves."""
        facts = await self._ledger.diagnose() if isinstance(self._ledger, Diagnosable) else []
        of_store = await self.dead_letter_store.diagnose()
        return [*facts, *(replace(fact, name=f"letters, {fact.name}") for fact in of_store)]


class TransactionalAnnouncingLedger(AnnouncingLedger):
    """The same, where the ledger's store can also hold the handler's own writes."""

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        assert isinstance(self._ledger, TransactionalLedger)
        return self._ledger.transaction(lease)


def _has_letter(settlement: Settlement) -> bool:
    return isinstance(settlement.outcome, (Reject, Uncertain))
