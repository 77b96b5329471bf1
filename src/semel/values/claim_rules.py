"""Decides claims, as a pure function of the stored keys, the claims and the time.

A store that can lock the keys of a batch (or has one write transaction) reads them, calls `judge`, and writes the
grants. The timeline of a key:

    claim             lease ends       retry is due                 settled             retention ends
      │── leased: Busy ────│── takeover ►    │                            │── Settled ─────────│── as new ►
      │── leased ─ Retry ─ waiting: Busy ────│── next attempt ►
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from msgspec import Struct

from semel.values.attempts import with_room
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Stale, Verdict
from semel.values.outcome import Final


class KeyState(IntEnum):
    """The state of a key. The numbers are stored."""

    LEASED = 1
    WAITING = 2  # between attempts
    SETTLED = 3


class KeyRecord(Struct, gc=False):
    """The record of one key in a ledger."""

    token: int
    state: KeyState
    until_ms: int  # end of the lease, of the wait, or of the retention
    attempts: int
    first_ms: int  # the first grant
    fingerprint: bytes | None
    suspect: bool = False  # an earlier lease expired without a settlement; a release keeps this
    outcome: Final | None = None
    attempt_log: bytes = b""  # in the encoding of `semel.values.attempts`


class Subject(Struct):
    """The record of one subject: the newest applied position, and the key that holds it."""

    newest: int | None = None
    holder: bytes | None = None
    token: int = 0
    until_ms: int = 0  # end of its retention


class Grant(Struct, frozen=True, gc=False):
    """A lease to write. `replaced` has the token that each key of the claim must still have."""

    lease: Lease
    known: KeyRecord
    replaced: tuple[int | None, ...]


def judge(
    claims: Sequence[Claim],
    known: dict[bytes, KeyRecord],
    subjects: dict[bytes, Subject],
    now_ms: int,
    next_token: Callable[[], int],
) -> tuple[list[Verdict], list[Grant]]:
    """Decide claims in order; each sees the grants before it. `known` and `subjects` are updated."""
    verdicts: list[Verdict] = []
    grants: list[Grant] = []
    for claim in claims:
        refusal = _refusal(claim, known, subjects, now_ms)
        if refusal is not None:
            verdicts.append(refusal)
            continue
        grant, verdict = _grant(claim, known, now_ms, next_token())
        known[claim.digest] = grant.known
        for alias in claim.aliases:
            known[alias.digest] = grant.known
        if claim.order is not None:
            subject = subjects.setdefault(claim.order.subject, Subject())
            subject.holder, subject.token = claim.digest, grant.lease.token
        grants.append(grant)
        verdicts.append(verdict)
    return verdicts, grants


def _refusal(
    claim: Claim, known: dict[bytes, KeyRecord], subjects: dict[bytes, Subject], now_ms: int
) -> Settled | Conflict | Busy | Stale | None:
    """The refusal of this claim; None if it is granted."""
    if (own := known.get(claim.digest)) is not None and (refusal := _by_key(claim, own, now_ms)) is not None:
        return refusal
    for alias in claim.aliases:
        other = known.get(alias.digest)
        if other is not None and (refusal := _by_key(claim, other, now_ms)) is not None:
            return refusal
    if claim.order is not None and (subject := subjects.get(claim.order.subject)) is not None:
        in_doubt = own is not None and own.state is KeyState.LEASED
        if not (claim.doubt_first and in_doubt):
            return _by_subject(claim, claim.order.position, subject, known, now_ms)
    return None


def _by_key(claim: Claim, known: KeyRecord, now_ms: int) -> Settled | Conflict | Busy | None:
    live = known.until_ms > now_ms
    if known.state is KeyState.SETTLED and not live:
        return None  # its retention is over, whether or not it was purged
    if claim.fingerprint is not None and known.fingerprint not in (None, claim.fingerprint):
        return Conflict()
    if known.outcome is not None:
        return Settled(known.outcome)
    return Busy(known.until_ms - now_ms) if live else None


def _by_subject(
    claim: Claim, position: int, subject: Subject, known: dict[bytes, KeyRecord], now_ms: int
) -> Busy | Stale | None:
    if subject.newest is not None and position < subject.newest:
        return Stale(subject.newest)
    if subject.holder is None or subject.holder == claim.digest:
        return None
    holder = known.get(subject.holder)
    acting = holder is not None and holder.state is KeyState.LEASED and holder.token == subject.token
    return Busy(holder.until_ms - now_ms) if holder and acting and holder.until_ms > now_ms else None


def _grant(claim: Claim, known: dict[bytes, KeyRecord], now_ms: int, token: int) -> tuple[Grant, Granted]:
    ours = [known.get(claim.digest), *[known.get(alias.digest) for alias in claim.aliases]]
    earlier = [one for one in ours if one is not None and one.state is not KeyState.SETTLED]
    takeover = any(one.state is KeyState.LEASED for one in earlier)  # of any of its keys
    fresh = KeyRecord(
        token=token,
        state=KeyState.LEASED,
        until_ms=now_ms + claim.lease_ms,
        attempts=max(one.attempts for one in earlier) + 1 if earlier else 1,
        first_ms=min(one.first_ms for one in earlier) if earlier else now_ms,
        fingerprint=next((one.fingerprint for one in earlier if one.fingerprint is not None), claim.fingerprint),
        suspect=takeover,
        attempt_log=with_room(next((one.attempt_log for one in earlier if one.attempt_log), b"")) if earlier else b"",
    )
    lease = Lease(claim, token)
    verdict = Granted(lease, fresh.attempts, takeover, now_ms - fresh.first_ms)
    return Grant(lease, fresh, tuple([_live_token(one) for one in ours])), verdict


def _live_token(known: KeyRecord | None) -> int | None:
    return known.token if known is not None and known.state is not KeyState.SETTLED else None
