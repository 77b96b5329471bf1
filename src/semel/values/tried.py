"""What came of each attempt at an event that did not succeed at once."""

from __future__ import annotations

from msgspec import Struct

TRIED_MAX = 16  # of one key: the first and the newest ones
REASON_MAX = 500  # characters of one attempt's reason


class Tried(Struct, frozen=True, array_like=True):
    """One attempt that failed. An attempt whose process vanished has left none."""

    attempt: int
    at_ms: int  # UTC
    reason: str
