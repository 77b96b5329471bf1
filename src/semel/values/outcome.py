"""The outcomes of handler runs and deliveries.

A handler returns a result, or returns or raises `Retry` or `Reject`: both are exceptions so that they can be
raised from deep inside, and values so that they can be returned.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

RETRY_MAX_S = 100 * 365 * 86_400.0  # stores count milliseconds in 64 bits
RESULT_MAX_BYTES = 64 * 1024  # a stored result is for answering duplicates, not for keeping documents

Status: TypeAlias = Literal[
    "done",  # the handler ran and its effect is recorded
    "duplicate",  # known already; `result` is that of the first run
    "stale",  # a newer event of the same subject was applied already
    "busy",  # another worker holds the lease, or a retry is not due: deliver again after `after` seconds
    "conflict",  # same key, other payload; the first record is untouched
    "retry",  # the handler did not succeed: deliver again after `after` seconds
    "dead",  # given up on; kept as a dead letter with its reason
    "uncertain",  # the effect may or may not have happened; parked for a probe or an operator
    "ignored",  # no handler matches
    "malformed",  # no event; only from `process_many`, `process` raises MalformedEvent
    "accepted",  # durable in the inbox; a worker handles it. Only from `accept`
]


class Done(Struct, frozen=True, gc=False):
    """The effect happened. `result` is JSON, stored and replayed to duplicates."""

    result: bytes = b"null"


NOTHING = Done()  # the result of most handlers


class Retry(Exception):
    """The effect did not happen; try again after `after` seconds (by default exponential with full jitter)."""

    reason_class = "retry_requested"  # for the log, which never contains `reason`
    http_status: int | None = None

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        if after is not None and not 0 <= after <= RETRY_MAX_S:
            raise ValueError(f"Retry(after={after!r}): a delay is a number of seconds, 0 or more, at most a century")
        super().__init__(reason)
        self.after = after
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Retry) and (self.after, self.reason) == (other.after, other.reason)

    def __hash__(self) -> int:
        return hash((self.after, self.reason))

    def __repr__(self) -> str:
        return f"Retry(after={self.after!r}, reason={self.reason!r})"


class Reject(Exception):
    """The event will never succeed: it becomes a dead letter with this reason."""

    reason_class = "rejected"  # for the log, which never contains `reason`
    http_status: int | None = None

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reject) and self.reason == other.reason

    def __hash__(self) -> int:
        return hash(self.reason)

    def __repr__(self) -> str:
        return f"Reject({self.reason!r})"


class NotNow(Exception):
    """The effect was not begun: deliver again after `after` seconds. The attempt does not count.

    For causes outside of the event: a downstream that is unavailable, or that limits the rate."""

    reason_class = "not_now"  # for the log, which never contains `reason`
    http_status: int | None = None

    def __init__(self, after: float, reason: str = "") -> None:
        if not 0 <= after <= RETRY_MAX_S:
            raise ValueError(f"NotNow(after={after!r}): a delay is a number of seconds, 0 or more, at most a century")
        super().__init__(reason)
        self.after = after
        self.reason = reason


class Uncertain(Struct, frozen=True, gc=False):
    """It is unknown whether the effect happened. It is not reported as failed, and not run again automatically."""

    reason: str


class Release(Struct, frozen=True, gc=False):
    """The lease is returned unused, as if the claim had not been made. The attempt does not count."""

    after: float = 0.0  # seconds until the redelivery; the ledger does not enforce it
    reason: str = "released"


Final: TypeAlias = Done | Reject | Uncertain
"""The endings that settle a key: they answer every later claim until its retention ends."""

Ending: TypeAlias = Done | Retry | Reject | Uncertain | Release
"""Everything a lease can be settled with."""


class Outcome(Struct, frozen=True):
    """The outcome of one delivery."""

    status: Status
    result: Any = None
    reason: str = ""
    after: float | None = None  # seconds; set for busy and retry
    handler: str = ""
    key: str = ""
    parts: tuple[Outcome, ...] = ()  # one for each handler, where an event has several
    id: str = ""  # the event's natural identity, as text

    @property
    def final(self) -> bool:
        """True when the delivery can be acknowledged: delivering it again would change nothing."""
        return self.status not in ("busy", "retry")


# The status of a delivery with several handlers is the first of these that any of its parts has:
# what needs another delivery comes first, then what needs a person, then what went well.
_ORDER: tuple[Status, ...] = (
    *("retry", "busy", "conflict", "uncertain", "dead", "malformed"),
    *("done", "accepted", "stale", "duplicate", "ignored"),
)


def combine(parts: list[Outcome]) -> Outcome:
    """One answer for a delivery whose event has one handler or more."""
    if len(parts) == 1:
        return parts[0]
    first = min(parts, key=lambda part: _ORDER.index(part.status))
    delays = [part.after for part in parts if part.after is not None]
    return Outcome(
        first.status,
        result={part.handler: part.result for part in parts},
        reason=first.reason,
        after=min(delays) if delays else None,
        parts=tuple(parts),
        id=first.id,
    )
