"""Converts between values and rows of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from semel.values.attempts import cut
from semel.values.claim import Claim
from semel.values.claim_rules import Known, State
from semel.values.outcome import NOTHING, Done, Ending, Final, Reject, Release, Retry, Uncertain

T = TypeVar("T")

DONE, DEAD, UNCERTAIN, RETRY, RELEASE = 1, 2, 3, 4, 5
LEASED, WAITING, SETTLED = int(State.LEASED), int(State.WAITING), int(State.SETTLED)

_STATES = {int(state): state for state in State}


def digests_of(claim: Claim) -> tuple[bytes, ...]:
    """Return all keys of a claim, its own first, each once."""
    if not claim.aliases:
        return (claim.digest,)
    return tuple(dict.fromkeys([claim.digest, *[alias.digest for alias in claim.aliases]]))


def keeps_of(claim: Claim) -> dict[bytes, int]:
    """Return the retention of each key of a claim."""
    return {**{alias.digest: alias.retention_ms for alias in claim.aliases}, claim.digest: claim.retention_ms}


def split(aliases: bytes | None) -> Iterable[bytes]:
    return [aliases[at : at + 16] for at in range(0, len(aliases), 16)] if aliases else []


def known(row: Any) -> Known:
    """Convert (token, state, until, attempts, first, fp, suspect, outcome, result), without the key, and optionally
    the attempt log."""
    token, state, until, attempts, first, fp, suspect, outcome, result, *attempt_log = row
    ended = load(outcome, result) if outcome else None
    return Known(
        token, _STATES[state], until, attempts, first, fp, suspect, ended, (attempt_log and attempt_log[0]) or b""
    )


def dump(outcome: Ending) -> tuple[int, bytes | None]:
    """Return the code of an ending and the value stored with it."""
    if outcome is NOTHING:  # most handlers return nothing
        return DONE, None
    match outcome:
        case Done(result):
            return DONE, None if result == b"null" else result
        case Reject():
            return DEAD, storable(outcome.reason)
        case Uncertain(reason):
            return UNCERTAIN, storable(reason)
        case Retry():
            return RETRY, cut(shown(outcome.reason))
        case Release():
            return RELEASE, None
    raise TypeError(f"{outcome!r} does not end a lease")


def load(code: int, result: bytes | None) -> Final:
    match code:
        case 1:
            return NOTHING if result is None else Done(result)
        case 2:
            return Reject((result or b"").decode())
        case _:
            return Uncertain((result or b"").decode())


def unless_all_none(column: list[T | None]) -> list[T | None]:
    """Return an empty array for a column of nulls. `unnest` fills it up, and the driver encodes no values."""
    return column if any(value is not None for value in column) else []


def storable(text: str) -> bytes:
    """Encode a text of an operator or an exception. A lone surrogate in it must not prevent a settle."""
    return text.encode(errors="replace")


def shown(text: str) -> str:
    """Like `storable`, for a column of type text, which cannot hold NUL."""
    if text.isascii() and "\0" not in text:
        return text
    return storable(text).decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
