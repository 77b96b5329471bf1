"""One log line for each delivery that a handler finished or failed.

A line never contains the reason text: it may quote an exception, and that may quote a customer. The ledger keeps the
text (`semel events show KEY`); the line has its class.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from semel.core.effect_policy import Failed
from semel.core.handler_run import HandlerRun
from semel.values.log import log
from semel.values.outcome import Outcome, Reject, Retry, Status

LINES_PER_S = 100  # at info; the rest of the second is one summary, because a line costs more than a quick handler

_LINES: dict[Status, tuple[int, str]] = {
    "done": (logging.INFO, "event_done"),
    "duplicate": (logging.INFO, "event_duplicate"),
    "stale": (logging.INFO, "event_stale"),
    "ignored": (logging.INFO, "event_ignored"),
    "accepted": (logging.DEBUG, "event_accepted"),
    "busy": (logging.DEBUG, "event_busy"),
    "retry": (logging.WARNING, "event_retry"),
    "dead": (logging.WARNING, "event_dead"),
    "uncertain": (logging.WARNING, "event_uncertain"),
    "conflict": (logging.WARNING, "event_conflict"),
    "malformed": (logging.WARNING, "event_malformed"),
}


class DeliveryLog:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._second = 0
        self._lines = 0  # written at info in this second
        self._omitted: dict[Status, int] = {}  # since the last summary

    def ended(self, run: HandlerRun, outcome: Outcome) -> None:
        """Log the end of one handler's part of a delivery."""
        level, name = _LINES[outcome.status]
        if run.answer is None:
            level, name = logging.WARNING, "event_lease_lost"
        if log.enabled(level) and (level != logging.INFO or self._has_room(outcome.status)):
            cause = run.cause if isinstance(run.cause, (Retry, Reject, Failed)) else None
            log.write(
                level,
                name,
                handler=outcome.handler,
                key=outcome.key,
                event_id=outcome.id or None,
                attempt=run.granted.attempt if run.granted is not None else None,
                outcome=outcome.status,
                reason_class=cause.reason_class or None if cause is not None else None,
                http_status=cause.http_status if cause is not None else None,
                raised_at=cause.raised_at or None if isinstance(cause, Failed) else None,
                duration_ms=round((self._loop.time() - run.claimed_at) * 1000, 1) if run.claimed_at else None,
                next_in_s=None if outcome.after is None else round(outcome.after, 1),
                source=run.event.source or None,
                tenant=run.event.tenant or None,
            )

    def not_run(self, outcome: Outcome, tenant: str) -> None:
        """Log a delivery that ends without a run: it is no event, no handler matches it, or the inbox answered."""
        level, name = _LINES[outcome.status]
        if log.enabled(level) and (level != logging.INFO or self._has_room(outcome.status)):
            # the reason of a malformed body may quote the document, and that of a duplicate a handler's error
            shown = outcome.status == "ignored" or log.enabled(logging.DEBUG)
            log.write(
                level,
                name,
                handler=outcome.handler or None,
                key=outcome.key or None,
                event_id=outcome.id or None,
                outcome=outcome.status,
                tenant=tenant or None,
                reason=outcome.reason or None if shown else None,
            )

    def _has_room(self, status: Status) -> bool:
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines <= LINES_PER_S:
            return True
        if not self._omitted:
            self._loop.call_later(1.0, self._summarise)
        self._omitted[status] = self._omitted.get(status, 0) + 1
        return False

    def _summarise(self) -> None:
        omitted, self._omitted = self._omitted, {}
        counts: dict[str, Any] = {str(status): count for status, count in omitted.items()}
        log.info("events_summary", lines_omitted=sum(omitted.values()), **counts)
