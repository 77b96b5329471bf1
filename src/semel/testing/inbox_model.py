"""A model of an inbox and its dead letters: the semantics of `semel.ports` without a store, batches or speed.

It extends `semel.testing.model.Model`, which models the claims. Both are written from the docstrings. The bytes of an
event identify it: every arrival in a test has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semel.testing.harness import altered
from semel.testing.model import Life, Model
from semel.values.claim import Claim, Lease
from semel.values.inbox import Arrival, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.outcome import Done, Final, Reject


@dataclass(eq=False)
class ModelItem:
    """One accepted event."""

    claims: tuple[Claim, ...]
    event: bytes
    lane: str
    only: str
    due: int
    token: int = 0
    lapses: int = 0
    in_hands: bool = False
    comes_from: ModelRecord | None = None  # the replayed record; its position in the order is unknown


@dataclass(eq=False)
class ModelRecord:
    """How a key ended: by its handler, or given up by the inbox."""

    id: int  # from the store; orders two records with the same time
    key: bytes
    claims: tuple[Claim, ...]
    ending: Final
    event: bytes
    at: int
    until: dict[bytes, int]  # for each of its keys
    dead_letter: ModelItem | None = None  # given up by the inbox
    life: Life | None = None  # settled in the ledger
    decided: Literal["", "replayed", "discarded"] = ""


class InboxModel:
    """The expected answers of an inbox."""

    def __init__(self, ledger: Model) -> None:
        self.ledger = ledger
        self.dead_letters: list[ModelItem] = []
        self.records: list[ModelRecord] = []
        self.answering: dict[bytes, ModelRecord] = {}  # the last record of each key

    # ------------------------------------------------------------------------------------------------------ accept

    def accept(self, arrival: Arrival, now: int) -> str:
        """Returns the status, and stores the event if it is accepted."""
        statuses = [self._known_status(claim, now) for claim in arrival.claims]
        if "conflict" in statuses:
            return "conflict"
        if "" not in statuses:
            return "duplicate"
        self.dead_letters.append(ModelItem(arrival.claims, arrival.event, arrival.lane, "", now))
        return "accepted"

    def _known_status(self, claim: Claim, now: int) -> str:
        lives = [life for key in keys(claim) if (life := self.ledger._alive(key, now)) is not None]
        if any(_differ(life.fingerprint, claim.fingerprint) for life in lives):
            return "conflict"
        if any(life.state == "settled" for life in lives):
            return "settled"
        same = False
        for dead_letter, theirs in self._known(claim, now):
            if _differ(theirs.fingerprint, claim.fingerprint):
                return "conflict"
            same = same or (None if dead_letter.comes_from else theirs.order) == claim.order
        return "known" if same else ""

    def _known(self, claim: Claim, now: int) -> list[tuple[ModelItem, Claim]]:
        """The items that share a key with this claim, each with its own claim on that key."""
        given_up = [record.dead_letter for record in self.records if record.dead_letter and _answers(record, now)]
        return [
            (dead_letter, theirs)
            for dead_letter in [*self.dead_letters, *given_up]
            for theirs in dead_letter.claims
            if set(keys(theirs)) & set(keys(claim))
        ]

    # --------------------------------------------------------------------------------------------- take and finish

    def due(self, lane: str, now: int) -> list[ModelItem]:
        return sorted(
            [one for one in self.dead_letters if one.lane == lane and one.due <= now], key=lambda one: one.due
        )

    def take(self, dead_letter: ModelItem, token: int, until: int) -> None:
        dead_letter.lapses += dead_letter.in_hands
        dead_letter.in_hands, dead_letter.token, dead_letter.due = True, token, until

    def finish(self, ending: InboxEnding, now: int) -> bool:
        dead_letter = self._held(ending.taken)
        if dead_letter is None:
            return False
        match ending:
            case Finished():
                self.dead_letters.remove(dead_letter)
            case Postponed(after_ms=after_ms):
                dead_letter.in_hands, dead_letter.lapses, dead_letter.due = False, 0, now + after_ms
            case GivenUp(reason=reason):
                self.dead_letters.remove(dead_letter)
                self.records.append(_given_up(ending.taken.id, dead_letter, reason, now))
        return True

    def _held(self, taken: Taken) -> ModelItem | None:
        held = [
            one for one in self.dead_letters if one.in_hands and (one.token, one.event) == (taken.token, taken.event)
        ]
        return held[0] if held else None

    # ------------------------------------------------------------------------------------------------ dead letters

    def settled(self, lease: Lease, ending: Final, event: bytes, now: int) -> None:
        """Record a settle that the ledger has confirmed."""
        claim = lease.claim
        life = self.ledger.lives[claim.digest]
        until = {alias.digest: now + alias.retention_ms for alias in claim.aliases}
        until[claim.digest] = now + claim.retention_ms
        as_known = altered(claim, fingerprint=life.fingerprint)  # an earlier attempt may have set it
        record = ModelRecord(lease.token, claim.digest, (as_known,), ending, event, now, until, life=life)
        self.records.append(record)
        for key in keys(claim):
            self.answering[key] = record

    def dead(self) -> list[ModelRecord]:
        return [one for one in self.records if not isinstance(one.ending, Done) and not one.decided]

    def replay(self, key: bytes, now: int, force: bool = False) -> bool:
        answering = self.answering.get(key)
        forced = force and answering is not None and answering.key == key and self._is_done(answering, now)
        if forced and answering is not None:
            self._step_back(answering)
            answering = None
        record = self._to_decide(key)
        if record is None or (answering not in (None, record) and answering.until[key] > now):
            return forced
        self._step_back(record)
        old = record.dead_letter
        handler = record.claims[0].handler
        lane, only = (old.lane, old.only) if old else (handler, handler)
        comes_from = old.comes_from if old else record
        self.dead_letters.append(ModelItem(record.claims, record.event, lane, only, now, comes_from=comes_from))
        return True

    def _is_done(self, record: ModelRecord, now: int) -> bool:
        return isinstance(record.ending, Done) and record.until[record.key] > now

    def _step_back(self, record: ModelRecord) -> None:
        """Mark a record as replayed, so that it no longer answers claims."""
        record.decided = "replayed"
        for name in keys(record.claims[0]):
            if self.answering.get(name) is record:
                del self.answering[name]
            if record.life is not None and self.ledger.lives.get(name) is record.life:
                del self.ledger.lives[name]

    def discard(self, key: bytes) -> bool:
        record = self._to_decide(key)
        if record is not None:
            record.decided = "discarded"
        return record is not None

    def _to_decide(self, key: bytes) -> ModelRecord | None:
        open_ones = [record for record in self.dead() if record.key == key]
        answering = self.answering.get(key)
        if answering in open_ones:
            return answering
        return max(open_ones, key=lambda record: (record.at, record.id), default=None)


def keys(claim: Claim) -> tuple[bytes, ...]:
    return (claim.digest, *[alias.digest for alias in claim.aliases])


def _answers(record: ModelRecord, now: int) -> bool:
    """Whether the inbox still recognises the keys of this record."""
    return record.decided != "replayed" and record.until[record.key] > now


def _differ(one: bytes | None, other: bytes | None) -> bool:
    return None not in (one, other) and one != other


def _given_up(id: int, dead_letter: ModelItem, reason: str, now: int) -> ModelRecord:
    """The record of an item that the inbox gave up. The key of one claim is its digest; several claims get a key of
    their own."""
    key = b"".join(sorted(claim.digest for claim in dead_letter.claims))
    kept_ms = [claim.retention_ms for claim in dead_letter.claims]
    kept_ms += [alias.retention_ms for claim in dead_letter.claims for alias in claim.aliases]
    until = {key: now + max(kept_ms)}
    return ModelRecord(id, key, dead_letter.claims, Reject(reason), dead_letter.event, now, until, dead_letter)
