"""Turns the reports of the engine and of the webhook source into metrics and spans.

Telemetry errors never reach the caller."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType

from semel.service.metrics import OTHER, Metrics, Number, Spread
from semel.service.tracing import NOTHING, Tracing, add_event, set_attributes
from semel.values.claim import Granted
from semel.values.log import log
from semel.values.outcome import Outcome


class ServiceTelemetry:
    """Implements `semel.ports.Telemetry`, and `IngestObserver` of the webhook source.

    Without an OpenTelemetry provider it only counts: under 4 µs for a delivery through the whole flow."""

    def __init__(self, metrics: Metrics, tracing: Tracing | None = None) -> None:
        self.metrics = metrics
        self.tracing = tracing or Tracing()
        self._failed = False

    def span(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        try:
            inner = self.tracing.step(step, handler)
            return inner if step != "handle" else _Timed(inner, self.metrics.handler(handler).seconds)
        except Exception:
            self._log_once()
            return NOTHING

    def granted(self, granted: Granted) -> None:
        try:
            claim = granted.lease.claim
            if granted.takeover or granted.attempt > 1:
                numbers = self.metrics.handler(claim.handler)
                numbers.lease_age.saw(granted.age_ms / 1000)
                if granted.takeover:
                    numbers.takeovers.up()
            if self.tracing.enabled:
                key, attempt, takeover = claim.digest.hex(), granted.attempt, granted.takeover
                add_event("granted", handler=claim.handler, key=key, attempt=attempt, takeover=takeover)
                set_attributes(attempt=attempt)
        except Exception:
            self._log_once()

    def refused(self, handler: str) -> None:
        try:
            self.metrics.handler(handler).fenced.up()
            if self.tracing.enabled:
                add_event("fenced", handler=handler)
        except Exception:
            self._log_once()

    def answered(self, outcome: Outcome) -> None:
        try:
            outcomes = self.metrics.handler(outcome.handler).outcomes
            (outcomes.get(outcome.status) or outcomes[OTHER]).up()
            if self.tracing.enabled:
                about = {"handler": outcome.handler, "outcome": outcome.status, "key": outcome.key}
                add_event("answered", **about)
                set_attributes(**about)
        except Exception:
            self._log_once()

    def asked(self, what: str, seconds: float, failed: bool) -> None:
        try:
            self.metrics.ledger_seconds[what].saw(seconds)
            if failed:
                self.metrics.ledger_failures[what].up()
        except Exception:
            self._log_once()

    def receiving(self, path: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[None]:
        """Wraps a delivery. `path` is a configured path, never the requested one."""
        try:
            inner = self.tracing.receive(headers, path)
            return _Timed(inner, self.metrics.endpoint(path).seconds, self.metrics.in_flight)
        except Exception:
            self._log_once()
            return NOTHING

    def responded(self, path: str, status: int) -> None:
        """Record the response status. Called inside `receiving`, so that its span gets it."""
        try:
            self.metrics.endpoint(path).answered(status)
            if self.tracing.enabled:
                set_attributes(status=status)
        except Exception:
            self._log_once()

    def overloaded(self, path: str) -> None:
        """Count a delivery that was refused because too many were in flight."""
        try:
            self.metrics.endpoint(path).overloaded.up()
        except Exception:
            self._log_once()

    def failed_open(self, handler: str) -> None:
        """Count a handler run without the ledger."""
        try:
            self.metrics.handler(handler).failed_open.up()
        except Exception:
            self._log_once()

    def _log_once(self) -> None:
        if not self._failed:
            self._failed = True
            log.error("telemetry_failed", error=sys.exc_info()[1])


class _Timed:
    """Times a block, inside its span if it has one. `level` is a gauge of the blocks that are running."""

    __slots__ = ("_begun", "_inner", "_level", "_seconds")

    def __init__(self, inner: AbstractContextManager[None], seconds: Spread, level: Number | None = None) -> None:
        self._inner = inner
        self._seconds = seconds
        self._level = level

    def __enter__(self) -> None:
        if self._level is not None:
            self._level.up()
        if self._inner is not NOTHING:
            self._inner.__enter__()
        self._begun = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._seconds.saw(perf_counter() - self._begun)
        if self._level is not None:
            self._level.down()
        if self._inner is not NOTHING:
            self._inner.__exit__(kind, error, where)
