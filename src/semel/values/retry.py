"""When to try again."""

from __future__ import annotations

from collections.abc import Callable

BACKOFF_BASE_S = 1.0  # the first retry comes within a second: most failures are blips
BACKOFF_CAP_S = 300.0  # five minutes: a person fixing an outage sees retries soon after


def backoff_s(
    attempt: int, random: Callable[[], float], base_s: float = BACKOFF_BASE_S, cap_s: float = BACKOFF_CAP_S
) -> float:
    """Exponential with full jitter: anywhere between 0 and the doubling bound, so that a herd spreads out."""
    exponent = min(max(attempt, 1) - 1, 63)  # 2.0**1024 overflows; the cap is reached long before 63
    return random() * min(cap_s, base_s * 2.0**exponent)
