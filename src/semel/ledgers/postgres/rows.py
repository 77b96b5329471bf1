"""Converts between values and rows of PostgreSQL."""

from __future__ import annotations

from typing import Any, TypeVar

from semel.values.attempts import cut
from semel.values.claim import Claim
from semel.values.claim_rules import KeyRecord, KeyState
from semel.values.outcome import NOTHING, Ending, Release, Retry
from semel.values.outcome_codec import DONE, decode_outcome, encode_outcome, storable

T = TypeVar("T")

RETRY, RELEASE = 4, 5  # endings that are no outcome; the others have the numbers of `outcome_codec`
LEASED, WAITING, SETTLED = int(KeyState.LEASED), int(KeyState.WAITING), int(KeyState.SETTLED)

_STATES = {int(state): state for state in KeyState}


def digests_of(claim: Claim) -> tuple[bytes, ...]:
    """Return all keys of a claim, its own first, each once."""
    return tuple(dict.fromkeys(claim.digests)) if claim.aliases else (claim.digest,)


def retentions_of(claim: Claim) -> dict[bytes, int]:
    """Return the retention of each key of a claim, in milliseconds."""
    return {**{alias.digest: alias.retention_ms for alias in claim.aliases}, claim.digest: claim.retention_ms}


def known_key(row: Any) -> KeyRecord:
    """Convert (token, state, until_ms, attempts, first_granted_ms, fingerprint, suspect, outcome, result), and
    optionally the attempt log."""
    token, state, until_ms, attempts, first_ms, fingerprint, suspect, outcome, result, *attempt_log = row
    ended = decode_outcome(outcome, result) if outcome else None
    log = (attempt_log and attempt_log[0]) or b""
    return KeyRecord(token, _STATES[state], until_ms, attempts, first_ms, fingerprint, suspect, ended, log)


def encode_ending(outcome: Ending) -> tuple[int, bytes | None]:
    """Return the number of an ending and the value stored with it."""
    if outcome is NOTHING:  # most handlers return nothing
        return DONE, None
    match outcome:
        case Retry():
            return RETRY, cut(storable_text(outcome.reason))
        case Release():
            return RELEASE, None
    return encode_outcome(outcome)


def columns_of(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Transpose rows into one array per column, as `unnest` takes them."""
    return [list(column) for column in zip(*rows, strict=True)]


def unless_all_none(column: list[T | None]) -> list[T | None]:
    """Return an empty array for a column of nulls. `unnest` fills it up, and the driver encodes no values."""
    return column if any(value is not None for value in column) else []


def storable_text(text: str) -> str:
    """Replace NUL and lone surrogates, which a column of type text cannot hold."""
    if text.isascii() and "\0" not in text:
        return text
    return storable(text).decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
