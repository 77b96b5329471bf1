"""A ledger whose letters are kept in another store: its own may forget, and a letter waits for a person.

    settle Reject:   renew in the ledger → keep in the letterbox → settle in the ledger, without the event
    replay:          reopen in the ledger → replay in the letterbox, whose inbox brings the event to its handler
    discard:         discard in the ledger → discard in the letterbox

Two stores have no common transaction, so a crash can fall between any two steps. What it leaves behind:

- kept, not settled: the lease lapses, and whoever takes over comes to an end of its own. Given up again, its letter
  takes the place of the first; done after all, the first is discarded with that reason.
- reopened, not replayed in the letterbox: the letter is still listed, and can be replayed once more; or, if the event
  was brought again and is done meanwhile, discarded.
- discarded in the ledger alone: the letter is still listed, and can be discarded once more.

So a letter is listed too long at worst, and never too short. When the letterbox is out of reach nothing is given up:
the settle is tried again while its lease lasts, and then the event is brought again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from semel.ports import (
    STATES,
    Catalog,
    DeadLetters,
    DeadLetterStore,
    Diagnosable,
    Entry,
    Fact,
    HoldsWriteLock,
    Inbox,
    Ledger,
    Migrates,
    PlacesKeys,
    ReplaysThrough,
    Traits,
    Transaction,
    TransactionalLedger,
    Upgrades,
)
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.log import log
from semel.values.outcome import Done, Reject, Uncertain

DOUBTS_MAX = 10_000  # takeovers that are remembered until they have ended
HERE = ("leased", "waiting", "done")  # what the ledger tells; all else is the letterbox's
LETTERS = ("dead", "uncertain")
BY = "semel"
DONE_AFTER_ALL = "its holder vanished before the ledger knew of this letter, and the next one came to another end: done"


class ReadLedger(Ledger, Catalog, Protocol):
    """A ledger that people can look into."""


class DeadLetterLedger(DeadLetterStore, DeadLetters, Catalog, Protocol):
    """Where letters are kept and decided about. It may have an inbox, through which they are replayed."""

    traits: Traits

    async def purge(self, limit: int) -> int: ...

    async def close(self) -> None: ...


def inbox_of(ledger: Ledger) -> Inbox | None:
    """The inbox whose letters are for this ledger's handlers: its own, or the one that replays come through."""
    if isinstance(ledger, Inbox):
        return ledger
    return ledger.replays if isinstance(ledger, ReplaysThrough) else None


def dead_letters_elsewhere(ledger: ReadLedger, dead_letter_store: DeadLetterLedger) -> LedgerWithDeadLetterStore:
    """The ledger, with another store for its letters. Abilities of the ledger are kept."""
    if isinstance(ledger, TransactionalLedger):
        return TransactionalLedgerWithDeadLetterStore(ledger, dead_letter_store)
    return LedgerWithDeadLetterStore(ledger, dead_letter_store)


class LedgerWithDeadLetterStore:
    """A ledger and its letterbox, as one."""

    def __init__(self, ledger: ReadLedger, dead_letter_store: DeadLetterLedger) -> None:
        self.traits = ledger.traits
        self.dead_letter_store = dead_letter_store
        self.replays: Inbox | None = dead_letter_store if isinstance(dead_letter_store, Inbox) else None
        self.together = ledger.together if isinstance(ledger, PlacesKeys) else None
        self._ledger = ledger
        self._doubts: dict[bytes, None] = {}  # keys that were taken over, in the order of their grants

    @property
    def held_by_handler(self) -> bool:
        return isinstance(self._ledger, HoldsWriteLock) and self._ledger.held_by_handler

    # ------------------------------------------------------------------------------------------------- the ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = await self._ledger.claim(claims)
        for verdict in verdicts:
            if isinstance(verdict, Granted) and verdict.takeover:
                self._doubt(verdict.lease)
        return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Letters first go to the letterbox. What needs none does not wait for it."""
        if not any(map(_has_letter, settlements)):
            held = await self._ledger.settle(settlements)
            await self._put_right([s for s, kept in zip(settlements, held, strict=True) if kept])
            return held
        if len({s.lease.claim.digest for s in settlements}) == len(settlements):  # else their order matters
            plain = [s for s in settlements if not _has_letter(s)]
            answers = dict(zip(map(_identity, plain), await self.settle(plain), strict=True)) if plain else {}
            given_up = [s for s in settlements if _has_letter(s)]
            answers |= dict(zip(map(_identity, given_up), await self._give_up(given_up), strict=True))
            return [answers[_identity(s)] for s in settlements]
        return await self._give_up(settlements)

    async def _give_up(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Whoever has lost its lease keeps nothing: the ledger is asked first. Raises LedgerUnavailable when the
        letterbox cannot be written, and then nothing was settled."""
        dead_letters = [s for s in settlements if _has_letter(s)]
        current = await self._ledger.renew([s.lease for s in dead_letters])
        kept = [s for s, holds in zip(dead_letters, current, strict=True) if holds]
        if kept:
            await self.dead_letter_store.keep(await asyncio.gather(*map(self._with_what_was_tried, kept)))
        held = await self._ledger.settle([replace(s, dead_letter=None) for s in settlements])
        stand = {_identity(s) for s, holds in zip(settlements, held, strict=True) if holds and _has_letter(s)}
        for settlement in kept:
            self._doubts.pop(settlement.lease.claim.digest, None)  # it has ended: its letter is right, or goes
        if refused := [s.lease for s in kept if _identity(s) not in stand]:
            await _if_possible(self.dead_letter_store.withdraw(refused), "withdraw")
        return held

    async def _with_what_was_tried(self, settlement: Settlement) -> Settlement:
        """What came of the attempts before: only the ledger has seen them. It is asked where there were some, of an
        event that is given up on; whoever succeeds does not pay for it."""
        dead_letter = settlement.dead_letter
        if dead_letter is None or dead_letter.attempts == 1 or dead_letter.attempt_log:
            return settlement
        known = await self._ledger.history(settlement.lease.claim.digest.hex())
        attempt_log = next((entry.attempt_log for entry in known if entry.state == "leased"), ())
        return replace(settlement, dead_letter=replace(dead_letter, attempt_log=attempt_log))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return await self._ledger.renew(leases)

    async def purge(self, limit: int) -> int:
        forgotten = await self._ledger.purge(limit)
        if forgotten < limit:
            forgotten += await self.dead_letter_store.purge(limit - forgotten)
        return forgotten

    async def close(self) -> None:
        try:
            await self._ledger.close()
        finally:
            await self.dead_letter_store.close()

    def _doubt(self, lease: Lease) -> None:
        while len(self._doubts) >= DOUBTS_MAX:
            del self._doubts[next(iter(self._doubts))]
        self._doubts[lease.claim.digest] = None

    async def _put_right(self, settled: Sequence[Settlement]) -> None:
        """A key that was taken over is done: what its vanished holder may have kept is not dead."""
        if not self._doubts:
            return
        for settlement in settled:
            digest = settlement.lease.claim.digest
            if digest in self._doubts and isinstance(settlement.outcome, Done):
                del self._doubts[digest]
                discarded = self.dead_letter_store.discard(digest.hex(), DONE_AFTER_ALL, BY)
                await _if_possible(discarded, "discard", digest.hex())

    # ------------------------------------------------------------------------------------------------ the letters

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        waits = await self._waits_for_a_person(key)
        if not waits and not force:
            return False
        if not isinstance(self._ledger, DeadLetters):
            raise ConfigError(
                f"a key of the {self.traits.name} ledger cannot be opened again, so its letters cannot be replayed: "
                "discard them, and have the event sent again when its retention is over"
            )
        reopened = await self._ledger.replay(key, reason, by, force=force)
        if not waits:
            return reopened  # it was done, and nothing was kept of its event
        if not reopened:
            known = await self._ledger.history(key)
            if known and known[0].state in (*LETTERS, "discarded", "done"):
                return False  # somebody else has just decided, or it is done: the ledger would answer the replay so
        return await self.dead_letter_store.replay(key, reason, by)

    async def discard(self, key: str, reason: str, by: str) -> bool:
        if not await self._waits_for_a_person(key):
            return False
        if isinstance(self._ledger, DeadLetters):
            await self._ledger.discard(key, reason, by)
        return await self.dead_letter_store.discard(key, reason, by)

    async def _waits_for_a_person(self, key: str) -> bool:
        return any(entry.state in LETTERS for entry in await self.dead_letter_store.history(key))

    # ------------------------------------------------------------------------------------------------ the catalog

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
        wanted = STATES if state is None else (state,)
        found: list[Entry] = []
        for one in wanted:
            store: Catalog = self._ledger if one in HERE else self.dead_letter_store
            found += await store.entries(
                one,
                limit,
                handler=handler,
                tenant=tenant,
                reason=reason,
                since_ms=since_ms,
                until_ms=until_ms,
            )
        if len(wanted) > 1:
            found.sort(key=lambda entry: entry.at_ms, reverse=True)
        return found[: max(limit, 0)]

    async def history(self, key: str) -> list[Entry]:
        """How the key stands in the ledger, or stood when it was done; then its letters. Where none was kept, what the
        ledger knows."""
        known = await self._ledger.history(key)
        dead_letters = await self.dead_letter_store.history(key)
        if not dead_letters:
            return known
        here = [entry for entry in known if entry.state in HERE]
        if before := [entry for entry in known if entry.state not in HERE and entry.result is not None]:
            dead_letters = sorted([*dead_letters, *before], key=lambda entry: entry.at_ms, reverse=True)
        return here + dead_letters

    async def counts(self) -> dict[str, int]:
        here, there = await self._ledger.counts(), await self.dead_letter_store.counts()
        return {state: (here if state in HERE else there).get(state, 0) for state in STATES}

    # --------------------------------------------------------------------------------------------- making it ready

    def read_only(self) -> None:
        """Reading commands create nothing, in neither store."""
        for store in (self._ledger, self.dead_letter_store):
            if isinstance(store, Upgrades):
                store.read_only()

    async def pending(self) -> list[str]:
        return [step for store in self._migrating() for step in await store.pending()]

    async def migrate(self) -> list[str]:
        return [step for store in self._migrating() for step in await store.migrate()]

    def _migrating(self) -> list[Migrates]:
        return [store for store in (self._ledger, self.dead_letter_store) if isinstance(store, Migrates)]

    async def diagnose(self) -> list[Fact]:
        """What both say of themselves. A letterbox that is somebody's ledger is an error: their events would be taken
        for replays."""
        facts: list[Fact] = []
        if isinstance(self._ledger, Diagnosable):
            facts += [fact for fact in await self._ledger.diagnose() if fact.name != "dead_letters"]  # it has none
        name = self.dead_letter_store.traits.name
        if isinstance(self.dead_letter_store, Diagnosable):
            of_store = await self.dead_letter_store.diagnose()
            facts += [replace(fact, name=f"letters, {fact.name}") for fact in of_store]
            if any(fact.name == "created" for fact in of_store):
                return facts  # there is nothing to count yet
        try:
            counts = await self.dead_letter_store.counts()
        except LedgerUnavailable as error:
            return [*facts, Fact("dead_letters", str(error), "error")]
        if any(counts.get(state) for state in HERE):
            return [*facts, Fact("dead_letters", f"{name} there is a ledger in use; use a separate store", "error")]
        waiting = sum(counts.get(state, 0) for state in LETTERS)
        return [*facts, Fact("dead_letters", f"{waiting:,} wait in {name}")]


class TransactionalLedgerWithDeadLetterStore(LedgerWithDeadLetterStore):
    """The same, where the ledger's store can also hold the handler's own writes."""

    @asynccontextmanager
    async def _opened(self, lease: Lease) -> AsyncIterator[Transaction]:
        assert isinstance(self._ledger, TransactionalLedger)
        async with self._ledger.transaction(lease) as transaction:
            watched = _Watched(transaction)
            yield watched
        await self._put_right(watched.settled)

    def transaction(self, lease: Lease) -> AbstractAsyncContextManager[Transaction]:
        return self._opened(lease)


class _Watched:
    """A transaction that tells what was settled in it."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.handle = transaction.handle
        self.settled: list[Settlement] = []

    async def settle(self, settlement: Settlement) -> bool:
        held = await self._transaction.settle(settlement)
        if held:
            self.settled.append(settlement)
        return held

    def abandon(self) -> None:
        self._transaction.abandon()


def _has_letter(settlement: Settlement) -> bool:
    return isinstance(settlement.outcome, (Reject, Uncertain))


def _identity(settlement: Settlement) -> tuple[bytes, int]:
    return settlement.lease.claim.digest, settlement.lease.token


async def _if_possible(step: Awaitable[object], step_name: str, key: str | None = None) -> None:
    """The ledger has decided: what is left to do must not make that look like a failure."""
    try:
        await step
    except LedgerUnavailable as error:
        log.warning("dead_letter_stays_listed", step=step_name, key=key, error=error)
