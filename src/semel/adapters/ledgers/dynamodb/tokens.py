"""Where tokens and time come from, in a store that has neither a counter nor a clock.

A token is a number below 2⁵³, so that every language can read it in JSON:

    ┌── 34 bits: time in steps of 64 ms since 2025 (enough until 2059) ──┬── 19 bits: differ from object to object ──┐

It is always higher than the token that its item had before, and an item is kept for an hour after its last change. Then
the time alone makes the next token higher: AWS refuses requests that were signed more than 15 minutes off its clock, so
two clients are never an hour apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EPOCH_MS = 1_735_689_600_000  # 2025-01-01 UTC
STEP_MS = 64
LOW_BITS = 19
KEPT_MS = 3_600_000  # how long a key's last token is remembered, whatever else is forgotten of the key


class Tokens:
    """The tokens of one ledger object: growing, and seldom those of another object."""

    def __init__(self, random: Callable[[int], int]) -> None:
        self._low = random(LOW_BITS)
        self._last = 0

    def next(self, now_ms: int, above: int = 0) -> int:
        """Higher than all before of this object, and than `above`."""
        self._low = (self._low + 1) % (1 << LOW_BITS)
        by_time = (max(now_ms - EPOCH_MS, 0) // STEP_MS << LOW_BITS) + self._low
        self._last = max(self._last + 1, by_time)
        return max(self._last, above + 1)


class WallClock:
    """This machine's clock, which never goes back while the process lives."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last
