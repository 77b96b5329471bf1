"""Rate-limited logging of recurring problems, beside `IncidentLog` of `semel.values.log`.

- `CountedLog`: occurrences without an end, counted per endpoint and reason.
- `StoreHealth`: round trips to a store, logged through an `IncidentLog`.
- `UnverifiedLog`: deliveries that failed verification, logged through a `CountedLog`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from semel.core.breaker import State
from semel.service.endpoints import ServedEndpoint
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.log import IncidentLog, log

RECENT_S = 1.0  # a failure this young may be why a breaker opens; an older one is not


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


class StoreHealth:
    """Tracks the round trips to a store. With a breaker, it logs the breaker's changes and their cause. Without one, it
    logs each failure."""

    def __init__(
        self,
        incident: IncidentLog,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        advice: str = "",
    ) -> None:
        """`quiet`: single failures are not logged here, because a breaker reports through `breaker_changed`, or another
        part logs them. `advice`: what to do about a slow store."""
        self._advice = f". {advice}" if advice else ""
        self._incident = incident
        self._refusals = IncidentLog("ledger_refused", clock=clock)
        self._quiet = quiet
        self._clock = clock
        self._in_flight: dict[object, tuple[str, float]] = {}  # operation and start, oldest first
        self._failure: tuple[float, str] = (0.0, "")  # when, and why
        self._last_answer: tuple[float, str] = (0.0, "")  # duration, and the operation

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Wraps one round trip."""
        call, begun = object(), self._clock()
        self._in_flight[call] = operation, begun
        try:
            yield
        except LedgerUnavailable as error:
            self._failure = self._clock(), str(error)
            if not self._quiet:
                self._incident.report(str(error))
            raise
        else:
            self._last_answer = self._clock() - begun, operation
            if not self._quiet:
                self._incident.resolve()
        finally:
            del self._in_flight[call]

    @contextmanager
    def as_unavailable(self) -> Iterator[None]:
        """Turns refusals of a running store (a dropped table, a URL that no longer fits a handler) into
        LedgerUnavailable: nothing is decided, and the sender retries. A refusal does not open the breaker: the store
        answers, and may work for every other handler."""
        try:
            yield
        except SemelError as error:
            if isinstance(error, LedgerUnavailable):
                raise
            self._refusals.report(str(error))
            raise LedgerUnavailable(str(error)) from error

    def breaker_changed(self, state: State) -> None:
        """Log the new state. A breaker reopens after each failed probe; that continues the same incident."""
        if state == "open":
            self._incident.report(self._cause())
        elif state == "closed":
            self._incident.resolve()

    def _cause(self) -> str:
        """The text of a recent failure, or the operation that is slow."""
        now = self._clock()
        failed_at, error = self._failure
        if error and now - failed_at < RECENT_S:
            return error
        seconds, operation = self._last_answer
        pending, begun = next(iter(self._in_flight.values()), ("", now))
        if now - begun > seconds:
            return f"no answer to {_with_article(pending)} for {now - begun:.2f} s{self._advice}"
        return f"slow: {_with_article(operation)} took {seconds:.2f} s{self._advice}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


UNVERIFIED_EVERY_S = 60.0  # between two lines of one endpoint and one reason
CHECKS_MAX = 20  # per second for which the reason is found; the others are only counted
REASONS_MAX = 100  # different reasons that are kept apart

NO_REASON = "its verifier does not say why"
NOT_CHECKED = "too many at a time to look at each"


@runtime_checkable
class Objecting(Protocol):
    """A verifier that can explain why it refuses a delivery."""

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Name the check that failed, in fixed texts of Semel: no part of the request, no secret, and few different
        ones. Empty: the delivery is verified. Raises as `verify` does."""


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
        reason = await self._objection(endpoint, headers, body) if self._may_check() else NOT_CHECKED
        if not self._log.may_add(endpoint.path, reason, REASONS_MAX):
            reason = NO_REASON
        self._log.add(endpoint.path, reason)

    def _may_check(self) -> bool:
        second = int(self._clock())
        self._checks = self._checks + 1 if second == self._second else 1
        self._second = second
        return self._checks <= CHECKS_MAX

    async def _objection(self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], body: bytes) -> str:
        if not isinstance(endpoint.verifier, Objecting):
            return NO_REASON
        try:
            return await endpoint.verifier.objection(headers, body) or NO_REASON
        except Exception:  # the delivery is refused anyway, only the reason is missing
            return NO_REASON
