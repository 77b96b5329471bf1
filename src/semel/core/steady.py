"""Time that only passes."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


def steady_s() -> float:
    """Seconds since some moment. Where the system can tell they pass while the machine sleeps, too: a lease does not
    wait until it is awake."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
