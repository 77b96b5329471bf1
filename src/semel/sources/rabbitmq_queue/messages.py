"""Messages in flight, their copies for dead letters and delayed retries, and the retry queues.

    orders ──retry(90)──▶ orders.retry.120s ──after 120 s──▶ orders

A copy keeps the body, the headers and the properties, except those by which the broker would act on the copy:
`expiration` would end it early, `user_id` would be checked against ours, `CC` would route it to other queues again, and
an `x-death` of an earlier trip can make the broker drop the copy silently as a cycle.

Messages expire only at the front of a queue. In one queue for all delays, a delay of an hour would block a delay of a
second, so there is one retry queue per delay, and delays are rounded up. Retry queues are created when first needed and
never deleted: a queue cannot be deleted on the condition that it is empty and no message is on its way to it. A delay
beyond the longest one waits several times.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

from semel.sources.lifecycle import InFlight

if TYPE_CHECKING:
    from semel.sources.rabbitmq_queue.session import RabbitSession

ID_MAX_CHARS = 80


class RabbitMessage:
    """One delivery of a message."""

    __slots__ = ("answered", "body", "exchange", "properties", "received_at", "routing_key", "session", "tag")

    def __init__(self, session: RabbitSession, received: Any, received_at: float) -> None:
        """`received` is the driver's message."""
        self.session = session
        self.body: bytes = received.body
        self.properties: Basic.Properties = received.header.properties
        self.tag: int = received.delivery.delivery_tag
        self.exchange: str = received.delivery.exchange or ""
        self.routing_key: str = received.delivery.routing_key or ""
        self.received_at = received_at
        self.answered = False  # its answer is decided, and perhaps not sent yet

    @property
    def id(self) -> str:
        """Id for log lines. The sender chose it, so it is quoted and cut: it cannot break a line of the log."""
        id = self.properties.message_id
        return repr(id)[:ID_MAX_CHARS] if id else f"without id (delivery {self.tag})"

    @property
    def returns(self) -> int:
        """How often any consumer returned it. Only quorum queues count; other queues have no limit either."""
        count = self.header("x-delivery-count")
        return count if type(count) is int and count > 0 else 0

    def header(self, name: str) -> Any:
        return (self.properties.headers or {}).get(name)


class RabbitInFlight(InFlight[RabbitMessage]):
    """Messages in flight on open channels. The broker bounds them: it delivers no more than the prefetch."""

    def put(self, message: RabbitMessage) -> None:
        self._messages[message] = None
        self._ready.append(message)
        self.wake()

    def lose_session(self, session: RabbitSession) -> int:
        """Remove the messages of a closed channel: the broker redelivers them. Returns their number."""
        lost = [message for message in self._messages if message.session is session]
        for message in lost:
            self.forget(message)
        self._ready = deque(message for message in self._ready if message.session is not session)
        return len(lost)

    def withdraw(self, message: RabbitMessage) -> None:
        """Do not deliver a message to a worker, if that has not happened yet."""
        if message in self._ready:
            self._ready.remove(message)


PREFIX = "semel."
RETRIES, WAIT = PREFIX + "retries", PREFIX + "wait"
REASON_MAX_BYTES = 2_000
PERSISTENT = 2
KEY_MAX_BYTES = 128  # of a header's name; the driver cuts longer ones
DEPTH_MAX = 16  # of tables within tables
DROPPED = {"CC", "BCC", "x-death", "x-delivery-count"}
DROPPED_PREFIXES = ("x-first-death-", "x-last-death-")
_KEPT = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to")
_KEPT_TOO = ("message_id", "timestamp", "message_type", "app_id")


def retry_copy(message: RabbitMessage, left_s: float) -> Basic.Properties:
    """Properties of a copy for a retry. `left_s`: the remaining wait after this one."""
    before = retry_count(message)
    continues = before and remaining_wait_s(message)  # a long wait of several steps counts as one retry
    added: dict[str, Any] = {RETRIES: before if continues else before + 1}
    if left_s > 0:
        added[WAIT] = str(left_s)
    return _copy(message, added, {WAIT})


def retry_count(message: RabbitMessage) -> int:
    """Number of earlier retries. A sender can forge the header, so any other value counts as 0."""
    retries = message.header(RETRIES)
    return retries if type(retries) is int and 0 <= retries < 2**31 else 0


def dead_letter_copy(message: RabbitMessage, queue: str, reason: str) -> Basic.Properties:
    """Properties of a copy for the dead letters."""
    text = reason.encode("utf-8", "replace")[:REASON_MAX_BYTES].decode("utf-8", "ignore")
    return _copy(message, {PREFIX + "reason": text or "rejected", PREFIX + "queue": queue}, {WAIT})


def remaining_wait_s(message: RabbitMessage) -> float:
    """Remaining seconds of a long wait. A sender can forge the header, so an invalid value counts as 0."""
    text = message.header(WAIT)
    try:
        left_s = float(text) if isinstance(text, str) and len(text) < 32 else 0.0
    except ValueError:
        return 0.0
    return left_s if 0 < left_s < 2**32 else 0.0


def _copy(message: RabbitMessage, added: Mapping[str, Any], without: set[str]) -> Basic.Properties:
    properties = message.properties
    headers = {
        name: _fit(value, DEPTH_MAX)
        for name, value in (properties.headers or {}).items()
        if name not in DROPPED | without
        and not name.startswith(DROPPED_PREFIXES)
        and len(name.encode()) <= KEY_MAX_BYTES
    }
    origin = {"exchange": message.exchange, "routing_key": message.routing_key, "user_id": properties.user_id}
    for name, value in {**origin, "expiration": properties.expiration}.items():
        if value and not (name in ("exchange", "routing_key") and RETRIES in headers):
            headers.setdefault(PREFIX + name, value)  # a copy of a copy keeps the origin of the first message
    kept = {name: getattr(properties, name) for name in (*_KEPT, *_KEPT_TOO)}
    return Basic.Properties(headers={**headers, **added}, delivery_mode=PERSISTENT, **kept)


def _fit(value: Any, depth: int) -> Any:
    """Convert a header value that the driver can read but not write."""
    match value:
        case bytes():
            return bytearray(value)
        case float():
            return value if _is_short(value) else repr(value)
        case Decimal():
            return str(value)  # the driver cannot write all of them
        case datetime():
            return value if value.timestamp() >= 0 else value.isoformat()
        case dict() | list() if depth == 0:
            return "…"
        case dict():
            return {name: _fit(item, depth - 1) for name, item in value.items() if len(name.encode()) <= KEY_MAX_BYTES}
        case list():
            return [_fit(item, depth - 1) for item in value]
    return value


def _is_short(value: float) -> bool:
    """True if the value is exact in 32 bits. The driver writes no more."""
    try:
        (again,) = struct.unpack(">f", struct.pack(">f", value))
    except (OverflowError, struct.error):
        return False
    return bool(again == value)


MINUTE_S, HOUR_S = 60, 3600
DELAYS_S = (
    *(1, 2, 3, 5, 10, 15, 20, 30, 45),
    *(minutes * MINUTE_S for minutes in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(hours * HOUR_S for hours in (1, 2, 3, 4, 6, 8, 12, 24)),
)
SUFFIX_MAX_BYTES = 16  # of the longest name: ".retry.86400s"
QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}
# The broker removes an expired message only after the next queue has confirmed it.
AT_LEAST_ONCE: Mapping[str, Any] = {
    **QUORUM,
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
DELIVERY_LIMIT = 100  # of declared queues: for a message that kills every consumer before the ledger counts it


def next_wait(after_s: float) -> tuple[int, float]:
    """Return the first delay in whole seconds, and the remaining wait after it. 0: no wait."""
    if after_s <= 0:
        return 0, 0.0
    at = bisect_left(DELAYS_S, after_s)
    return (DELAYS_S[at], 0.0) if at < len(DELAYS_S) else (DELAYS_S[-1], after_s - DELAYS_S[-1])


def wait_queue(queue: str, delay_s: int) -> str:
    return f"{queue}.retry.{delay_s}s"


def wait_arguments(queue: str, delay_s: int) -> dict[str, Any]:
    return {**AT_LEAST_ONCE, "x-dead-letter-routing-key": queue, "x-message-ttl": delay_s * 1000}


def queue_arguments(dead_letters: str) -> dict[str, Any]:
    """Arguments of a declared queue. A message beyond the delivery limit becomes a dead letter too."""
    return {**AT_LEAST_ONCE, "x-dead-letter-routing-key": dead_letters, "x-delivery-limit": DELIVERY_LIMIT}
