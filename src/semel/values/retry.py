"""Backoff, and the Retry-After header."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

BACKOFF_BASE_S = 1.0  # the first retry comes within a second: most failures are blips
BACKOFF_CAP_S = 300.0  # five minutes: a person fixing an outage sees retries soon after


def backoff_s(
    attempt: int, random: Callable[[], float], base_s: float = BACKOFF_BASE_S, cap_s: float = BACKOFF_CAP_S
) -> float:
    """Exponential with full jitter: anywhere between 0 and the doubling bound, so that a herd spreads out."""
    exponent = min(max(attempt, 1) - 1, 63)  # 2.0**1024 overflows; the cap is reached long before 63
    return random() * min(cap_s, base_s * 2.0**exponent)


# The Retry-After header of another server is not trusted.

AFTER_MAX_S = 86_400.0  # a day: longer waits are cut
_TEXT_MAX_CHARS = 40  # the longest form of a date has 33
_DELTA = re.compile(r"[0-9]+", re.ASCII)
_DATE = re.compile(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? .*[0-9]{2}:[0-9]{2}:[0-9]{2}.*", re.ASCII)


def seconds(value: str, now: datetime) -> float | None:
    """Seconds to wait, 0 to AFTER_MAX_S, from a number of seconds or an HTTP date. None for anything else."""
    text = value.strip(" \t")
    if len(text) > _TEXT_MAX_CHARS:
        return None
    if _DELTA.fullmatch(text):
        return min(float(text), AFTER_MAX_S)
    if _DATE.fullmatch(text) is None:
        return None
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # the parser for mail raises all of these
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)  # the form of C's asctime, which is UTC in HTTP
    try:
        wait_s = (moment - now).total_seconds()
    except OverflowError:  # year 1 with an offset
        return None
    return min(max(wait_s, 0.0), AFTER_MAX_S)
