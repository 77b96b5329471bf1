"""Encodes outcomes as a number and a value, for stores that keep them in two columns."""

from __future__ import annotations

from typing import Any

from semel.values.outcome import NOTHING, Done, Final, Reject, Uncertain

DONE, DEAD, UNCERTAIN = 1, 2, 3  # stored


def encode_outcome(outcome: Any) -> tuple[int, bytes | None]:
    """Return the number of a final outcome, and its result or reason. None stands for the result `null`."""
    if outcome is NOTHING:  # most handlers return nothing
        return DONE, None
    match outcome:
        case Done(result):
            return DONE, None if result == b"null" else result
        case Reject():
            return DEAD, storable(outcome.reason)
        case Uncertain(reason):
            return UNCERTAIN, storable(reason)
    raise TypeError(f"{outcome!r} is not a final outcome")


def decode_outcome(number: int, value: bytes | None) -> Final:
    if number == DONE:
        return NOTHING if value is None else Done(value)
    reason = (value or b"").decode()
    return Reject(reason) if number == DEAD else Uncertain(reason)


def storable(text: str) -> bytes:
    """Encode a text of an operator or an exception. A lone surrogate in it must not prevent a settle."""
    return text.encode(errors="replace")
