"""Rate-limited logging of recurring problems, beside `IncidentLog` of `semel.values.log`.

- `CountedLog`: occurrences without an end, counted per endpoint and reason.
- `UnverifiedLog`: deliveries that failed verification, logged through a `CountedLog`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from semel.ports import ExplainingVerifier
from semel.service.endpoints import ServedEndpoint
from semel.values.log import log


class CountedLog:
    """Counts occurrences per endpoint and reason. Logs the first one, then the count at most every `every_s`."""

    def __init__(self, event: str, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`event` is the name of the log event."""
        self._event = event
        self._every_s = every_s
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}  # since the last line
        self._logged_at: dict[tuple[str, str], float] = {}

    def may_add(self, endpoint: str, reason: str, most: int) -> bool:
        """Whether this pair was logged before, or fewer than `most` pairs were."""
        return (endpoint, reason) in self._logged_at or len(self._logged_at) < most

    def add(self, endpoint: str, reason: str = "", count: int = 1) -> None:
        key = endpoint, reason
        total = self._counts[key] = self._counts.get(key, 0) + count
        now = self._clock()
        if now - self._logged_at.get(key, now - self._every_s) < self._every_s:
            return
        self._logged_at[key] = now
        del self._counts[key]
        log.warning(self._event, endpoint=endpoint, count=total, **({"reason": reason} if reason else {}))


UNVERIFIED_EVERY_S = 60.0  # between two lines of one endpoint and one reason
CHECKS_MAX = 20  # per second for which the reason is found; the others are only counted
REASONS_MAX = 100  # different reasons that are kept apart

NO_REASON = "the verifier gives no reason"
NOT_CHECKED = "too many to check each one"


class UnverifiedLog:
    """Logs which check failed at which endpoint, for all endpoints of a process. The sender learns neither.

    The texts are Semel's own: they contain no part of the request and no secret. Anybody can send an unverified
    request, so each reason is logged at most every `UNVERIFIED_EVERY_S` with its count, and a flood of forgeries is
    not examined one by one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._log = CountedLog("delivery_unverified", UNVERIFIED_EVERY_S, clock)
        self._second, self._checks = 0, 0

    async def record(self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], body: bytes) -> None:
        """Count a refused delivery."""
        second = int(self._clock())
        self._checks = self._checks + 1 if second == self._second else 1
        self._second = second
        reason = NO_REASON
        if self._checks > CHECKS_MAX:
            reason = NOT_CHECKED
        elif isinstance(endpoint.verifier, ExplainingVerifier):
            with suppress(Exception):  # the delivery is refused anyway, only the reason is missing
                reason = await endpoint.verifier.objection(headers, body) or NO_REASON
        if not self._log.may_add(endpoint.path, reason, REASONS_MAX):
            reason = NO_REASON
        self._log.add(endpoint.path, reason)
