"""A ledger as one would explain it: the semantics of `semel.ports` without a store, batches or speed.

Written from the docstrings, apart from `semel.values.claim_rules`, so that a mistake in one is not a mistake in both.
A `Life` is what a key has come through since it was first granted; several keys (aliases) may share one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from semel.values.attempts import TRIED_MAX, FailedAttempt
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Stale, Verdict
from semel.values.outcome import Done, Ending, Final, Reject, Release, Retry, Uncertain

OPEN = "either answer is right"


@dataclass
class Life:
    """One grant and its outcome."""

    claim: Claim
    token: int | None  # None: released, without a holder
    state: Literal["leased", "waiting", "settled"]
    until: int  # the end of lease or wait
    attempts: int
    born: int
    fingerprint: bytes | None
    in_doubt: bool  # a holder before vanished
    ending: Final | Retry | None = None
    kept_until: dict[bytes, int] = field(default_factory=dict)  # once settled, for each of its keys
    attempt_log: tuple[FailedAttempt, ...] = ()  # its attempts that failed


@dataclass
class Topic:
    """The state of one subject."""

    newest: int | None = None
    holder: Life | None = None
    token: int = 0
    kept_until: int = 0


class Model:
    """Answers what a ledger must answer."""

    def __init__(self) -> None:
        self.lives: dict[bytes, Life] = {}
        self.topics: dict[bytes, Topic] = {}
        self.dead_letters: list[tuple[bytes, Final, tuple[FailedAttempt, ...]]] = []
        self.ended: dict[int, Ending] = {}

    # ------------------------------------------------------------------------------------------------------- claim

    def refuse(self, claim: Claim, now: int) -> Verdict | None:
        """Why the claim is not granted. None: it is."""
        for key in _keys(claim):
            life = self._alive(key, now)
            if life is None:
                continue
            if None not in (claim.fingerprint, life.fingerprint) and claim.fingerprint != life.fingerprint:
                return Conflict()
            if life.state == "settled":
                assert isinstance(life.ending, Final)
                return Settled(life.ending)
            if life.until > now:
                return Busy(life.until - now)
        if claim.order is not None and (topic := self.topics.get(claim.order.subject)) is not None:
            if topic.newest is not None and claim.order.position < topic.newest:
                return Stale(topic.newest)
            if (holder := topic.holder) is not None and holder.state == "leased" and holder.until > now:
                return Busy(holder.until - now)
        return None

    def grant(self, claim: Claim, token: int, now: int) -> Granted:
        """The claim is granted under this token."""
        before = [life for key in _keys(claim) if (life := self._alive(key, now)) is not None]
        crashed = any(life.state == "leased" for life in before)
        life = Life(
            claim,
            token,
            "leased",
            until=now + claim.lease_ms,
            attempts=1 + max([life.attempts for life in before], default=0),
            born=min([life.born for life in before], default=now),
            fingerprint=next((life.fingerprint for life in before if life.fingerprint), claim.fingerprint),
            in_doubt=crashed,
            attempt_log=next((_with_room(life.attempt_log) for life in before if life.attempt_log), ()),
        )
        for key in _keys(claim):
            self.lives[key] = life
        if claim.order is not None:
            topic = self.topics.setdefault(claim.order.subject, Topic())
            topic.holder, topic.token = life, token
        return Granted(Lease(claim, token), life.attempts, crashed, now - life.born)

    def open(self, key: bytes) -> list[tuple[str, tuple[FailedAttempt, ...]]]:
        """The catalog line of a key whose retention has not ended."""
        life = self.lives.get(key)
        return [] if life is None or life.state == "settled" else [(life.state, life.attempt_log)]

    # ------------------------------------------------------------------------------------------- settle and renew

    def settle(self, lease: Lease, ending: Ending, now: int) -> bool | str:
        """What settle answers. `OPEN` where the port leaves it open; nothing changes then."""
        if not self._holds(lease):
            return self._ended_before(lease, ending, now)
        life, claim = self.lives[lease.claim.digest], lease.claim
        self.ended[lease.token] = ending
        if isinstance(ending, Retry | Reject | Uncertain):
            life.attempt_log = (*life.attempt_log, FailedAttempt(life.attempts, now, ending.reason))
        match ending:
            case Retry():
                life.state, life.until, life.ending = "waiting", now + round((ending.after or 0) * 1000), ending
            case Release() if life.attempts == 1:
                for key in _keys(claim):
                    del self.lives[key]
                life.state = "waiting"  # no longer acting on its subject
            case Release():
                life.token, life.until, life.attempts = None, 0, life.attempts - 1
                life.state = "leased" if life.in_doubt else "waiting"
            case _:
                life.state, life.ending = "settled", ending
                life.kept_until = {alias.digest: now + alias.retention_ms for alias in claim.aliases}
                life.kept_until[claim.digest] = now + claim.retention_ms
                if not isinstance(ending, Done):
                    self.dead_letters.append((claim.digest, ending, life.attempt_log))
        self._leave_topic(lease, isinstance(ending, Done), now)
        return True

    def renew(self, lease: Lease, now: int) -> bool:
        order = lease.claim.order
        topic = None if order is None else self.topics.get(order.subject)
        if not self._holds(lease) or (order and (topic is None or (topic.token, topic.holder) != self._mine(lease))):
            return False
        self.lives[lease.claim.digest].until = now + lease.claim.lease_ms
        return True

    # ------------------------------------------------------------------------------------------------------- purge

    def purge(self, now: int) -> None:
        """Everything that is over at once; a ledger may take several turns, and count differently."""
        for key, life in list(self.lives.items()):
            abandoned = life.state == "waiting" and life.until + life.claim.retention_ms <= now
            if abandoned or (self._alive(key, now) is None and isinstance(life.ending, Done)):
                del self.lives[key]
        for subject, topic in list(self.topics.items()):
            if topic.holder is None and topic.kept_until <= now:
                del self.topics[subject]

    # ----------------------------------------------------------------------------------------------------- its parts

    def _alive(self, key: bytes, now: int) -> Life | None:
        """The record of a key; None after its retention."""
        life = self.lives.get(key)
        over = life is not None and life.state == "settled" and life.kept_until[key] <= now
        return None if over else life

    def _holds(self, lease: Lease) -> bool:
        """The token is the current one of every key."""
        lives = [self.lives.get(key) for key in _keys(lease.claim)]
        return all(life is not None and life.token == lease.token and life.state == "leased" for life in lives)

    def _mine(self, lease: Lease) -> tuple[int, Life]:
        return lease.token, self.lives[lease.claim.digest]

    def _ended_before(self, lease: Lease, ending: Ending, now: int) -> bool | str:
        """A second settle may follow a lost reply. A ledger may recognise it longer than it has to."""
        life = self._alive(lease.claim.digest, now)
        if life is None or life.token != lease.token:
            return OPEN if self.ended.get(lease.token) == ending and not isinstance(ending, Retry) else False
        if isinstance(ending, Retry) and isinstance(life.ending, Retry):
            return True if life.ending == ending else OPEN
        return life.state == "settled" and life.ending == ending

    def _leave_topic(self, lease: Lease, applied: bool, now: int) -> None:
        order = lease.claim.order
        if order is None:
            return
        topic = self.topics.setdefault(order.subject, Topic())
        if applied:
            topic.newest = order.position if topic.newest is None else max(order.position, topic.newest)
        if topic.token == lease.token:
            topic.holder = None
        if applied or topic.token == lease.token:
            topic.kept_until = max(topic.kept_until, now + lease.claim.retention_ms)


def _with_room(attempt_log: tuple[FailedAttempt, ...]) -> tuple[FailedAttempt, ...]:
    """The first and the newest, and a place for the next."""
    return attempt_log if len(attempt_log) < TRIED_MAX else (attempt_log[0], *attempt_log[-(TRIED_MAX - 2) :])


def _keys(claim: Claim) -> tuple[bytes, ...]:
    return (claim.digest, *[alias.digest for alias in claim.aliases])
