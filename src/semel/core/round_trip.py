"""Measures the usual round trip to a store."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

WINDOW_S = 10.0  # a store that stays slow for twice as long is slow as usual
WINDOW_CALLS = 5  # a window has at least so many calls: a few slow ones say nothing about what is usual


class RoundTrip:
    """The fastest answered call of the last two windows.

    The minimum ignores calls that waited behind others. It falls with the first fast call. It rises only after every
    call of two windows was slow, so a store that becomes slow is noticed first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = -math.inf  # the current window
        self._calls = 0
        self._fastest = self._fastest_before = math.inf  # of the current window, and of the one before

    @property
    def usual_s(self) -> float | None:
        """None: no call was answered yet."""
        usual_s = min(self._fastest, self._fastest_before)
        return None if usual_s == math.inf else usual_s

    def add(self, seconds: float) -> None:
        """A call was answered after this time."""
        now = self._clock()
        if now - self._began >= WINDOW_S and (self._calls >= WINDOW_CALLS or self._fastest == math.inf):
            self._fastest_before, self._fastest = self._fastest, math.inf
            self._began, self._calls = now, 0
        self._calls += 1
        self._fastest = min(self._fastest, seconds)
