"""Decides whether the inbox accepts an arrival, as pure functions of the keys that a store has read.

A store reads what it has under all keys of the arrivals, in the ledger and in the inbox, and calls `refusal` for each
arrival in order. It writes the arrivals that are not refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeAlias

from semel.values.claim import Claim
from semel.values.inbox import WAITS, Acceptance
from semel.values.key import DIGEST_BYTES
from semel.values.outcome import Done, Final, Reject

ACCEPTED = Acceptance("accepted")
CONFLICT = Acceptance("conflict", "the key is known with another payload")
DONE = Acceptance("duplicate", "done")
POSITION_BYTES = 8


class ArrivalKey(NamedTuple):
    """One key of an arrival."""

    fingerprint: bytes | None
    order_position: bytes | None  # subject and position of an ordered claim


class KnownKey(Protocol):
    """A live row that a store has under a key: a lease or record of the ledger, or an inbox item.

    Rows whose retention is over are not passed to `refusal`.
    """

    @property
    def in_inbox(self) -> bool: ...

    @property
    def fingerprint(self) -> bytes | None: ...

    @property
    def order_position(self) -> bytes | None:
        """Subject and position of an ordered inbox item."""

    @property
    def outcome(self) -> Final | None:
        """The result of a settled key, or a Reject for an item that was given up; None: it is not over."""


ArrivalKeys: TypeAlias = dict[bytes, ArrivalKey]


def keys_of(claims: Sequence[Claim]) -> ArrivalKeys:
    """Return all keys of an arrival, by their digests."""
    keys: ArrivalKeys = {}
    for claim in claims:
        key = ArrivalKey(claim.fingerprint, _order_position(claim))
        keys[claim.digest] = key
        for alias in claim.aliases:
            keys[alias.digest] = key
    return keys


def identify(claims: Sequence[Claim], keys: ArrivalKeys) -> bytes:
    """Return the digest that identifies an inbox item.

    It is the key of the only claim, or a digest over the keys of all claims. That digest is added to `keys`, so that
    operators can find the item by it."""
    if len(claims) == 1:
        return claims[0].digest
    digest = blake2b(b"".join(sorted(claim.digest for claim in claims)), digest_size=DIGEST_BYTES).digest()
    keys.setdefault(digest, ArrivalKey(None, None))
    return digest


def longest_retention_ms(claims: Sequence[Claim]) -> int:
    """Return the longest retention of an arrival's keys."""
    longest_ms = 0
    for claim in claims:
        longest_ms = max(longest_ms, claim.retention_ms)
        for alias in claim.aliases:
            longest_ms = max(longest_ms, alias.retention_ms)
    return longest_ms


def refusal(claims: Sequence[Claim], known: Mapping[bytes, Sequence[KnownKey]]) -> Acceptance | None:
    """Return why an arrival is not accepted; None if it is. Every claim is checked: one conflict decides."""
    results = [_known_result(claim, known) for claim in claims]
    if CONFLICT in results:
        return CONFLICT
    refused = [result for result in results if result is not None]
    return max(refused, key=_weight) if len(refused) == len(claims) else None


def _known_result(claim: Claim, known: Mapping[bytes, Sequence[KnownKey]]) -> Acceptance | None:
    """Return the stored result of one claim; None if there is none, so that the arrival is needed.

    The ledger is checked before the inbox. An inbox item covers a claim if it is the same event by its keys and its
    order position: with another position the item might be stale where this claim is not."""
    rows = [row for digest in claim.digests for row in known.get(digest, ())]
    for in_inbox in (False, True):
        part = [row for row in rows if row.in_inbox is in_inbox]
        if any(
            None not in (row.fingerprint, claim.fingerprint) and row.fingerprint != claim.fingerprint for row in part
        ):
            return CONFLICT
        if in_inbox:
            part = [row for row in part if row.order_position == _order_position(claim)]
            if any(row.outcome is None for row in part):
                return WAITS
        for row in part:
            if row.outcome is not None:
                return _duplicate(row.outcome)
    return None


def _duplicate(outcome: Final) -> Acceptance:
    match outcome:
        case Done():
            return DONE
        case Reject():
            return Acceptance("duplicate", f"dead: {outcome.reason}")
        case _:
            return Acceptance("duplicate", f"uncertain: {outcome.reason}")


def _weight(result: Acceptance) -> int:
    """Rank the results of several claims: waiting first, then uncertain, then dead, then done."""
    return (result is WAITS) * 4 + result.reason.startswith("uncertain: ") * 2 + (result is not DONE)


def _order_position(claim: Claim) -> bytes | None:
    if claim.order is None:
        return None
    return claim.order.subject + claim.order.position.to_bytes(POSITION_BYTES, "big", signed=True)
