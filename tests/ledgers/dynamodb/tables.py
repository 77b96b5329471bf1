"""What the tests of this folder share."""

from __future__ import annotations

import time

from semel.testing.harness import FakeClock

DAY_MS = 86_400_000


def clock_ahead() -> FakeClock:
    """The sweeper lives by its own clock: what a test has just written must not be over by that one."""
    clock = FakeClock()
    clock.now_ms = time.time_ns() // 1_000_000 + DAY_MS
    return clock
