"""The table of effects as code: may a handler run under this lease, and how is its run settled.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.core.routing import Handler
from semel.values.claim import Granted
from semel.values.effect import KEYED_SHARE
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.retry import backoff_s

ISOLATED_FROM = 3  # attempts: one shared death is an accident, an event with two may be their cause


class Failed(Exception):
    """The handler raised an exception, or its time was up: its effect may have happened. `final`: every attempt would
    fail like this."""

    def __init__(
        self,
        reason: str,
        final: bool = False,
        *,
        reason_class: str = "",
        http_status: int | None = None,
        raised_at: str = "",
    ) -> None:
        """The keyword arguments are for the log, which may not contain `reason`."""
        super().__init__(reason)
        self.reason = reason
        self.final = final
        self.reason_class = reason_class
        self.http_status = http_status
        self.raised_at = raised_at


def before_run(handler: Handler, granted: Granted) -> Ending | None:
    """The ending of a lease under which the handler must not run; None when it may run."""
    if handler.effect == "park" and granted.takeover:
        return None if handler.probe else Uncertain("the holder before vanished while it may have been acting")
    if handler.effect == "keyed" and granted.attempt > 1 and granted.age_ms > KEYED_SHARE * handler.window_s * 1000:
        return Uncertain(
            f"the downstream may have forgotten the key: {granted.age_ms / 1000:.0f} s after the first try"
        )
    if granted.attempt > handler.max_attempts:
        return Reject(f"gave up after {_attempts(handler.max_attempts)}: the last one died or lost its lease")
    return None


def needs_isolation(handler: Handler, granted: Granted) -> bool:
    """Whether a takeover may be the cause of its holders' deaths, so that it must not run beside other such events.

    The first takeover runs like any other event. In its last attempt an event is isolated as well: one more death, of
    any cause, would make it a dead letter."""
    return granted.attempt >= min(ISOLATED_FROM, handler.max_attempts) and before_run(handler, granted) is None


def after_run(
    handler: Handler, granted: Granted, result: Done | Retry | Reject | Release | Failed, random: Callable[[], float]
) -> Ending:
    """The ending that settles the lease of a run with this result."""
    match result:
        case Done() | Reject() | Release():
            return result
        case Failed(reason=reason) if handler.effect == "park":
            return Uncertain(reason)
        case Failed(reason=reason, final=True):
            return Reject(f"a programming mistake, not retried: {reason}")
    reason = result.reason or "the handler asked for a retry"
    if granted.attempt >= handler.max_attempts:
        return Reject(f"gave up after {_attempts(granted.attempt)}: {reason}")
    after_s = result.after if isinstance(result, Retry) else None
    return Retry(backoff_s(granted.attempt, random) if after_s is None else after_s, reason)


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count > 1 else ''}"
