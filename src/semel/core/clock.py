"""Monotonic clock that keeps counting while the machine sleeps."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


def steady_s() -> float:
    """Seconds since an arbitrary moment. On Linux they include the time in which the machine sleeps: a lease runs out
    meanwhile, too."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
