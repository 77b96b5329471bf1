"""Ledger in the memory of this process.

For tests, and for handlers whose duplicates arrive within the lifetime of one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import count, islice
from threading import Lock

from msgspec.structs import replace

from semel.ports import STATES, DataLoss, Entry, EntryQuery, Traits
from semel.values.attempts import line, load
from semel.values.claim import Claim, DeadLetter, Lease, Settlement, Verdict
from semel.values.claim_rules import KeyRecord, KeyState, Subject, judge
from semel.values.key import parse_digest
from semel.values.outcome import Done, Reject, Release, Retry, Uncertain


def _steady_ms() -> int:
    return _EPOCH_MS + time.monotonic_ns() // 1_000_000


_EPOCH_MS = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000  # monotonic time as UTC milliseconds


NO_TOKEN = 0  # the token of a key whose lease was released: no lease has this token
DEAD_LETTER_STATES = ("dead", "uncertain")


class MemoryLedger:
    """Keeps keys in dictionaries under one lock. Nothing survives the process."""

    traits = Traits(
        name="memory",
        durable=False,
        transactional=False,
        caveat="loses everything when its process ends",
        loses=DataLoss(store_killed="everything", power_loss="everything", tokens_go_back=True),
    )

    def __init__(self, clock: Callable[[], int] = _steady_ms) -> None:
        self._clock = clock
        self._lock = Lock()  # callers may be on several event loops
        self._tokens = count(1)
        self._known: dict[bytes, KeyRecord] = {}
        self._subjects: dict[bytes, Subject] = {}
        self._about: dict[bytes, tuple[Claim, DeadLetter | None, int]] = {}
        self._reasons: dict[bytes, str] = {}  # why a key waits for its next attempt
        self._dead_letters: list[Entry] = []  # each needs a decision, also after its key was purged or granted again

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        with self._lock:
            now = self._clock()
            verdicts, grants = judge(claims, self._known, self._subjects, now, self._tokens.__next__)
            for grant in grants:
                for digest in grant.lease.claim.digests:
                    self._about[digest] = (grant.lease.claim, None, now)
            return verdicts

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._lock:
            return [self._settle(settlement, self._clock()) for settlement in settlements]

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        with self._lock:
            return [self._renew(lease, self._clock()) for lease in leases]

    async def purge(self, limit: int) -> int:
        with self._lock:
            now = self._clock()
            gone = list(islice((digest for digest in self._known if self._is_over(digest, now)), limit))
            for digest in gone:
                del self._known[digest], self._about[digest]
                self._reasons.pop(digest, None)
            for digest in [d for d, s in self._subjects.items() if s.holder is None and s.until_ms <= now]:
                del self._subjects[digest]
            return len(gone)

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    async def entries(self, query: EntryQuery) -> list[Entry]:
        matches = (entry for entry in self._entries() if query.state in (None, entry.state) and query.wants(entry))
        return list(islice(matches, max(query.limit, 0)))

    async def history(self, key: str) -> list[Entry]:
        digest = parse_digest(key).hex()
        return [entry for entry in self._entries() if entry.key == digest]

    async def counts(self) -> dict[str, int]:
        states = [entry.state for entry in self._entries()]
        return {state: states.count(state) for state in STATES}

    def _entries(self) -> list[Entry]:
        """Return all entries, newest first. A key and its aliases are one entry."""
        with self._lock:
            own = [self._entry(digest) for digest, (claim, *_) in self._about.items() if claim.digest == digest]
            entries = [*(entry for entry in own if entry.state not in DEAD_LETTER_STATES), *self._dead_letters]
        entries.sort(key=lambda entry: entry.at_ms)
        return entries[::-1]

    def _is_over(self, digest: bytes, now: int) -> bool:
        known = self._known[digest]
        match known.state:
            case KeyState.SETTLED:
                return known.until_ms <= now and isinstance(known.outcome, Done)  # a dead letter needs a decision
            case KeyState.WAITING:
                return known.until_ms + self._about[digest][0].retention_ms <= now  # it was not redelivered
            case KeyState.LEASED:
                return False  # live, or in doubt

    def _has(self, digest: bytes, lease: Lease) -> KeyRecord | None:
        known = self._known.get(digest)
        return known if known is not None and known.token == lease.token else None

    def _has_all_keys(self, lease: Lease) -> bool:
        """An alias identifies the same effect: a lease that lost one of its keys is lost."""
        return all(self._has(digest, lease) for digest in lease.claim.digests)

    def _has_subject(self, lease: Lease) -> bool:
        if (order := lease.claim.order) is None:
            return True
        subject = self._subjects.get(order.subject)
        return subject is not None and subject.token == lease.token and subject.holder is not None

    def _renew(self, lease: Lease, now: int) -> bool:
        known = self._has(lease.claim.digest, lease)
        if known is None or known.state is not KeyState.LEASED:
            return False
        if not (self._has_all_keys(lease) and self._has_subject(lease)):
            return False
        known.until_ms = now + lease.claim.lease_ms
        return True

    def _settle(self, settlement: Settlement, now: int) -> bool:
        lease, outcome = settlement.lease, settlement.outcome
        known = self._has(lease.claim.digest, lease)
        if known is None:
            return False
        if known.state is not KeyState.LEASED:
            return known.outcome == outcome if known.state is KeyState.SETTLED else isinstance(outcome, Retry)
        if not self._has_all_keys(lease):
            return False
        if isinstance(outcome, (Retry, Reject, Uncertain)):
            known.attempt_log += line(known.attempts, now, outcome.reason)
        match outcome:
            case Done() | Reject() | Uncertain():
                known.state, known.outcome = KeyState.SETTLED, outcome
                known.until_ms = now + lease.claim.retention_ms
                self._about[lease.claim.digest] = (lease.claim, settlement.dead_letter, now)
                for alias in lease.claim.aliases:
                    self._known[alias.digest] = replace(known, until_ms=now + alias.retention_ms)
                if not isinstance(outcome, Done):
                    self._dead_letters.append(self._entry(lease.claim.digest))
            case Retry():
                known.state = KeyState.WAITING
                known.until_ms = now + round((outcome.after or 0) * 1000)
                self._reasons[lease.claim.digest] = outcome.reason
            case Release():
                self._release(lease, known)
        self._free_subject(lease, now, applied=isinstance(outcome, Done))
        return True

    def _release(self, lease: Lease, known: KeyRecord) -> None:
        if known.attempts > 1:
            known.state = KeyState.LEASED if known.suspect else KeyState.WAITING
            known.token, known.until_ms, known.attempts = NO_TOKEN, 0, known.attempts - 1
            return
        for digest in lease.claim.digests:
            del self._known[digest], self._about[digest]

    def _free_subject(self, lease: Lease, now: int, applied: bool) -> None:
        if (order := lease.claim.order) is None:
            return
        subject = self._subjects.setdefault(order.subject, Subject())
        if applied:
            subject.newest = order.position if subject.newest is None else max(subject.newest, order.position)
        if subject.token == lease.token:
            subject.holder = None
        if applied or subject.token == lease.token:
            subject.until_ms = max(subject.until_ms, now + lease.claim.retention_ms)

    def _entry(self, digest: bytes) -> Entry:
        claim, dead_letter, at_ms = self._about[digest]
        known = self._known[digest]
        names = {Done: "done", Reject: "dead", Uncertain: "uncertain"}
        reason = self._reasons.get(digest, "") if known.state is KeyState.WAITING else ""
        if isinstance(known.outcome, Reject | Uncertain):
            reason = known.outcome.reason
        return Entry(
            key=digest.hex(),
            handler=claim.handler,
            text=claim.text,
            tenant=claim.tenant,
            state=names[type(known.outcome)] if known.outcome is not None else known.state.name.lower(),
            reason=reason,
            attempts=known.attempts,
            at_ms=at_ms,
            event=dead_letter.event if dead_letter else None,
            result=known.outcome.result if isinstance(known.outcome, Done) else None,
            attempt_log=load(known.attempt_log),
        )


def profiles() -> list[Traits]:
    """Return the traits of every configuration of the memory ledger."""
    return [MemoryLedger.traits]
