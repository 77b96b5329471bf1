"""Whether an arrival is accepted, as a pure function: what is known of its keys, and what it brings.

The ledger has the first word about a claim. A letter stands for a claim when it is the same event as far as keys can
tell: with another place in the order it might be stale where this one is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from semel.values.claim import Claim
from semel.values.inbox import Acceptance
from semel.values.key import DIGEST_BYTES

ACCEPTED = Acceptance("accepted")
CONFLICT = Acceptance("conflict", "the key is known with another payload")
WAITS = Acceptance("duplicate", "waits in the inbox")
DONE = Acceptance("duplicate", "done")
POSITION_BYTES = 8

_OVER, _DONE, _DEAD = 0, 1, 2  # as the store numbers them; whatever else ended is uncertain


class Fact(NamedTuple):
    """What the ledger or the inbox knows of one key."""

    n: int | None  # the row of the inbox; None: this is what the ledger knows
    id: int
    fingerprint: bytes | None
    place: bytes | None
    outcome: int | None = None  # None: it is not over
    reason: bytes | None = None


class Key(NamedTuple):
    """What an arrival says about one of its keys."""

    fingerprint: bytes | None
    place: bytes | None


Facts: TypeAlias = dict[bytes, list[Fact]]
Keys: TypeAlias = dict[bytes, Key]  # of one arrival

NO_CLAIM = Key(None, None)  # of the key that stands for several claims


def keys_of(claims: Sequence[Claim]) -> Keys:
    """All keys of an arrival."""
    keys: Keys = {}
    for claim in claims:
        said = Key(claim.fingerprint, _place(claim))
        keys[claim.digest] = said
        for alias in claim.aliases:
            keys[alias.digest] = said
    return keys


def key_of_several(claims: Sequence[Claim]) -> bytes:
    """What an arrival with several claims is known by."""
    return blake2b(b"".join(sorted(claim.digest for claim in claims)), digest_size=DIGEST_BYTES).digest()


def refusal(claims: Sequence[Claim], facts: Mapping[bytes, Sequence[Fact]]) -> Acceptance | None:
    """Why an arrival is not accepted; None when it is. Every claim is looked at: one conflict speaks for all."""
    answers = [_known_as(claim, facts) for claim in claims]
    if CONFLICT in answers:
        return CONFLICT
    told = [answer for answer in answers if answer is not None]
    return max(told, key=_weight) if len(told) == len(claims) else None


def _known_as(claim: Claim, facts: Mapping[bytes, Sequence[Fact]]) -> Acceptance | None:
    """What becomes of one claim without this arrival; None: nothing, so it is needed."""
    digests = (claim.digest, *[alias.digest for alias in claim.aliases])
    known = [fact for digest in digests for fact in facts.get(digest, ())]
    ledger = [fact for fact in known if fact.n is None]
    if any(_differ(fact.fingerprint, claim.fingerprint) for fact in ledger):
        return CONFLICT
    for fact in ledger:
        if fact.outcome is not None:
            return _ended(fact)
    letters = [fact for fact in known if fact.n is not None and fact.outcome != _OVER]
    if any(_differ(fact.fingerprint, claim.fingerprint) for fact in letters):
        return CONFLICT
    same = [fact for fact in letters if fact.place == _place(claim)]
    if any(fact.outcome is None for fact in same):
        return WAITS
    return _ended(same[0]) if same else None


def _ended(fact: Fact) -> Acceptance:
    if fact.outcome == _DONE:
        return DONE
    return Acceptance(
        "duplicate", f"{'dead' if fact.outcome == _DEAD else 'uncertain'}: {(fact.reason or b'').decode()}"
    )


def _weight(answer: Acceptance) -> int:
    """What an arrival with several claims is told: what is not over yet, then what needs a person."""
    return (answer is WAITS) * 4 + answer.reason.startswith("uncertain: ") * 2 + (answer is not DONE)


def _differ(one: bytes | None, other: bytes | None) -> bool:
    return one is not None and other is not None and one != other


def _place(claim: Claim) -> bytes | None:
    if claim.order is None:
        return None
    return claim.order.subject + claim.order.position.to_bytes(POSITION_BYTES, "big", signed=True)
