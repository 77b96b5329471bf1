"""Ledgers with a second place for their dead letters: a store that keeps them, or a target that announces them.

A store keeps the dead letters of a ledger that may lose its data, because a dead letter waits for an operator:

    settle Reject:   renew in the ledger → keep in the store → settle in the ledger, without the event
    replay:          reopen in the ledger → replay in the store, whose inbox passes the event to its handler
    discard:         discard in the ledger → discard in the store

The two have no common transaction, so a crash can happen between any two steps. It leaves one of these states:

- kept, not settled: the lease expires, and the next holder records its own outcome. Given up again, the new dead letter
  replaces the first; done, the first is discarded with that reason.
- reopened, not replayed in the store: the dead letter is still listed and can be replayed again; or, if the event was
  redelivered and is done, discarded.
- discarded in the ledger only: the dead letter is still listed and can be discarded again.

A dead letter can therefore be listed too long, but never too short.

A target cannot be listed, so the ledger keeps the dead letters too:

    settle Reject:   renew in the ledger → put on the target → settle in the ledger, with the event

While the store or the target is unavailable no event is given up: the settle is retried while its lease lasts, and then
the event is redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
    EntryQuery,
    Fact,
    HoldsWriteLock,
    Inbox,
    Ledger,
    Migrates,
    PlacesKeys,
    ReadOnly,
    ReplaysThrough,
    Traits,
    Transaction,
    TransactionalLedger,
)
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.log import log
from semel.values.outcome import Done, Reject, Uncertain

TAKEOVERS_MAX = 10_000  # takeovers that are remembered until they are settled
LEDGER_STATES = ("leased", "waiting", "done")  # entries in these states are read from the ledger, others from the store
UNDECIDED = ("dead", "uncertain")
BY = "semel"
DONE_AFTER_ALL = "its holder vanished before the ledger recorded this dead letter, and the next holder succeeded"


class ReadLedger(Ledger, Catalog, Protocol):
    """A ledger with a catalog."""


class KeepingLedger(Ledger, Catalog, DeadLetters, Protocol):
    """A ledger that keeps its own dead letters."""


class DeadLetterTarget(DeadLetterStore, Diagnosable, Protocol):
    """A place that dead letters are announced on."""

    async def close(self) -> None: ...


class DeadLetterLedger(DeadLetterStore, DeadLetters, Catalog, Protocol):
    """A store for dead letters and the decisions about them. It may have an inbox, through which they are replayed."""

    traits: Traits

    async def purge(self, limit: int) -> int: ...

    async def close(self) -> None: ...


def inbox_of(ledger: Ledger) -> Inbox | None:
    """The inbox of a ledger, or the inbox of its dead-letter store, through which events are replayed."""
    if isinstance(ledger, Inbox):
        return ledger
    return ledger.replays if isinstance(ledger, ReplaysThrough) else None


class _WrappedLedger:
    """Passes calls to a ledger, whose abilities it keeps, and keeps dead letters elsewhere before they are settled."""

    def __init__(self, ledger: ReadLedger, dead_letter_store: DeadLetterTarget | DeadLetterLedger) -> None:
        self.traits = ledger.traits
        self.together = ledger.together if isinstance(ledger, PlacesKeys) else None
        self._ledger = ledger
        self._target = dead_letter_store
        if isinstance(ledger, TransactionalLedger):  # set on the object, so that it is a TransactionalLedger only then
            self.transaction: Callable[[Lease], AbstractAsyncContextManager[Transaction]] = ledger.transaction

    @property
    def held_by_handler(self) -> bool:
        return isinstance(self._ledger, HoldsWriteLock) and self._ledger.held_by_handler

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._ledger.claim(claims)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Keep dead letters before they are settled. Other settlements do not wait for that.

        Raises LedgerUnavailable if a dead letter may not be kept; no dead letter was settled then."""
        plain = [settlement for settlement in settlements if not _is_dead_letter(settlement)]
        if len(plain) == len(settlements):
            return await self._settle_plain(settlements)
        if len({settlement.lease.claim.digest for settlement in settlements}) < len(settlements):
            return await self._give_up(settlements)  # two settlements of one key: their order matters
        plain_results = iter(await self._settle_plain(plain) if plain else ())
        dead_results = iter(await self._give_up(list(filter(_is_dead_letter, settlements))))
        return [next(dead_results if _is_dead_letter(settlement) else plain_results) for settlement in settlements]

    async def _settle_plain(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._ledger.settle(settlements)

    async def _give_up(self, settlements: Sequence[Settlement]) -> list[bool]:
        await self._keep(settlements)
        return await self._ledger.settle(settlements)

    async def _keep(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Keep the dead letters whose leases are current, and return them. The renewal checks the leases first."""
        dead_letters = list(filter(_is_dead_letter, settlements))
        current = await self._ledger.renew([settlement.lease for settlement in dead_letters])
        kept = [settlement for settlement, is_current in zip(dead_letters, current, strict=True) if is_current]
        if kept:
            await self._target.keep(await asyncio.gather(*map(self._with_attempt_log, kept)))
        return kept

    async def _with_attempt_log(self, settlement: Settlement) -> Settlement:
        """Add the earlier attempts of the event, which only the ledger has. It is read only if there were any."""
        dead_letter = settlement.dead_letter
        if dead_letter is None or dead_letter.attempts == 1 or dead_letter.attempt_log:
            return settlement
        entries = await self._ledger.history(settlement.lease.claim.digest.hex())
        attempt_log = next((entry.attempt_log for entry in entries if entry.state == "leased"), ())
        return replace(settlement, dead_letter=replace(dead_letter, attempt_log=attempt_log))

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return await self._ledger.renew(leases)

    async def purge(self, limit: int) -> int:
        return await self._ledger.purge(limit)

    async def close(self) -> None:
        try:
            await self._ledger.close()
        finally:
            await self._target.close()

    async def entries(self, query: EntryQuery) -> list[Entry]:
        return await self._ledger.entries(query)

    async def history(self, key: str) -> list[Entry]:
        return await self._ledger.history(key)

    async def counts(self) -> dict[str, int]:
        return await self._ledger.counts()

    def read_only(self) -> None:
        for store in (self._ledger, self._target):
            if isinstance(store, ReadOnly):
                store.read_only()

    async def pending(self) -> list[str]:
        return [step for store in self._migrating() for step in await store.pending()]

    async def migrate(self) -> list[str]:
        return [step for store in self._migrating() for step in await store.migrate()]

    def _migrating(self) -> list[Migrates]:
        return [store for store in (self._ledger, self._target) if isinstance(store, Migrates)]

    async def diagnose(self) -> list[Fact]:
        """The facts of the ledger, and those of the second place with a prefix."""
        facts = await self._ledger.diagnose() if isinstance(self._ledger, Diagnosable) else []
        target_facts = await self._target.diagnose() if isinstance(self._target, Diagnosable) else []
        return [*facts, *(replace(fact, name=f"dead letters, {fact.name}") for fact in target_facts)]


class LedgerWithDeadLetterTarget(_WrappedLedger):
    """A ledger that keeps its dead letters and announces them on a target."""

    def __init__(self, ledger: KeepingLedger, target: DeadLetterTarget) -> None:
        super().__init__(ledger, target)
        self.dead_letter_store = target
        self.replay = ledger.replay
        self.discard = ledger.discard


class LedgerWithDeadLetterStore(_WrappedLedger):
    """A ledger whose dead letters are kept in another store."""

    def __init__(self, ledger: ReadLedger, dead_letter_store: DeadLetterLedger) -> None:
        super().__init__(ledger, dead_letter_store)
        self.dead_letter_store = dead_letter_store
        self.replays: Inbox | None = dead_letter_store if isinstance(dead_letter_store, Inbox) else None
        self._takeovers: dict[bytes, None] = {}  # keys that were taken over, in the order of their grants
        if isinstance(ledger, TransactionalLedger):
            self.transaction = self._transaction

    # ------------------------------------------------------------------------------------------------------ ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = await self._ledger.claim(claims)
        for verdict in verdicts:
            if isinstance(verdict, Granted) and verdict.takeover:
                while len(self._takeovers) >= TAKEOVERS_MAX:
                    del self._takeovers[next(iter(self._takeovers))]
                self._takeovers[verdict.lease.claim.digest] = None
        return verdicts

    async def _settle_plain(self, settlements: Sequence[Settlement]) -> list[bool]:
        results = await self._ledger.settle(settlements)
        await self._discard_obsolete([s for s, settled in zip(settlements, results, strict=True) if settled])
        return results

    async def _give_up(self, settlements: Sequence[Settlement]) -> list[bool]:
        kept = await self._keep(settlements)
        results = await self._ledger.settle([replace(settlement, dead_letter=None) for settlement in settlements])
        settled = {
            _identity(s) for s, settled in zip(settlements, results, strict=True) if settled and _is_dead_letter(s)
        }
        for settlement in kept:
            self._takeovers.pop(settlement.lease.claim.digest, None)  # its dead letter stays, or is withdrawn below
        if refused := [settlement.lease for settlement in kept if _identity(settlement) not in settled]:
            await _attempt(self.dead_letter_store.withdraw(refused), "withdraw")
        return results

    @asynccontextmanager
    async def _transaction(self, lease: Lease) -> AsyncIterator[Transaction]:
        assert isinstance(self._ledger, TransactionalLedger)
        async with self._ledger.transaction(lease) as transaction:
            recorded = _RecordedTransaction(transaction)
            yield recorded
        await self._discard_obsolete(recorded.settled)

    async def _discard_obsolete(self, settled: Sequence[Settlement]) -> None:
        """Discard dead letters that vanished holders may have left of keys that are done now."""
        for settlement in settled if self._takeovers else ():
            digest = settlement.lease.claim.digest
            if digest in self._takeovers and isinstance(settlement.outcome, Done):
                del self._takeovers[digest]
                discarded = self.dead_letter_store.discard(digest.hex(), DONE_AFTER_ALL, BY)
                await _attempt(discarded, "discard", digest.hex())

    async def purge(self, limit: int) -> int:
        deleted = await self._ledger.purge(limit)
        if deleted < limit:
            deleted += await self.dead_letter_store.purge(limit - deleted)
        return deleted

    # ------------------------------------------------------------------------------------------------ dead letters

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        is_undecided = await self._is_undecided(key)
        if not is_undecided and not force:
            return False
        if not isinstance(self._ledger, DeadLetters):
            raise ConfigError(
                f"the {self.traits.name} ledger cannot reopen a key, so its dead letters cannot be replayed: discard "
                "them, and have the event sent again after its retention"
            )
        reopened = await self._ledger.replay(key, reason, by, force=force)
        if not is_undecided:
            return reopened  # the key was done, and its event was not kept
        if not reopened:
            history = await self._ledger.history(key)
            if history and history[0].state in (*UNDECIDED, "discarded", "done"):
                return False  # decided by another operator, or done: the ledger would answer the replayed event
        return await self.dead_letter_store.replay(key, reason, by)

    async def discard(self, key: str, reason: str, by: str) -> bool:
        if not await self._is_undecided(key):
            return False
        if isinstance(self._ledger, DeadLetters):
            await self._ledger.discard(key, reason, by)
        return await self.dead_letter_store.discard(key, reason, by)

    async def _is_undecided(self, key: str) -> bool:
        return any(entry.state in UNDECIDED for entry in await self.dead_letter_store.history(key))

    # ----------------------------------------------------------------------------------------------------- catalog

    async def entries(self, query: EntryQuery) -> list[Entry]:
        states = STATES if query.state is None else (query.state,)
        entries: list[Entry] = []
        for state in states:
            store: Catalog = self._ledger if state in LEDGER_STATES else self.dead_letter_store
            entries += await store.entries(replace(query, state=state))
        if len(states) > 1:
            entries.sort(key=lambda entry: entry.at_ms, reverse=True)
        return entries[: max(query.limit, 0)]

    async def history(self, key: str) -> list[Entry]:
        """The key's present state in the ledger; then its dead letters and earlier results. Without a dead letter in
        the store, the history in the ledger."""
        ledger_entries = await self._ledger.history(key)
        dead_letters = await self.dead_letter_store.history(key)
        if not dead_letters:
            return ledger_entries
        current = [entry for entry in ledger_entries if entry.state in LEDGER_STATES]
        results = [entry for entry in ledger_entries if entry.state not in LEDGER_STATES and entry.result is not None]
        if results:
            dead_letters = sorted([*dead_letters, *results], key=lambda entry: entry.at_ms, reverse=True)
        return current + dead_letters

    async def counts(self) -> dict[str, int]:
        ledger_counts, store_counts = await self._ledger.counts(), await self.dead_letter_store.counts()
        return {state: (ledger_counts if state in LEDGER_STATES else store_counts).get(state, 0) for state in STATES}

    async def diagnose(self) -> list[Fact]:
        """The facts of both stores. A dead-letter store that is also used as a ledger is an error: its events would be
        taken for replays."""
        facts = [fact for fact in await super().diagnose() if fact.name != "dead_letters"]
        if any(fact.name == "dead letters, created" for fact in facts):
            return facts  # the store does not exist yet
        name = self.dead_letter_store.traits.name
        try:
            counts = await self.dead_letter_store.counts()
        except LedgerUnavailable as error:
            return [*facts, Fact("dead_letters", str(error), "error")]
        if any(counts.get(state) for state in LEDGER_STATES):
            return [*facts, Fact("dead_letters", f"{name} is a ledger in use there; use a separate store", "error")]
        undecided = sum(counts.get(state, 0) for state in UNDECIDED)
        return [*facts, Fact("dead_letters", f"{undecided:,} wait in {name}")]


class _RecordedTransaction:
    """A transaction that records the settlements in it."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.handle = transaction.handle
        self.settled: list[Settlement] = []

    async def settle(self, settlement: Settlement) -> bool:
        settled = await self._transaction.settle(settlement)
        if settled:
            self.settled.append(settlement)
        return settled

    def abandon(self) -> None:
        self._transaction.abandon()


def _is_dead_letter(settlement: Settlement) -> bool:
    return isinstance(settlement.outcome, (Reject, Uncertain))


def _identity(settlement: Settlement) -> tuple[bytes, int]:
    return settlement.lease.claim.digest, settlement.lease.token


async def _attempt(step: Awaitable[object], step_name: str, key: str | None = None) -> None:
    """Log a failure of a step after the ledger's decision: the decision stands."""
    try:
        await step
    except LedgerUnavailable as error:
        log.warning("dead_letter_stays_listed", step=step_name, key=key, error=error)
