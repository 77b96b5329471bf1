"""Copies of a message, for the dead letters and for the queues where retries wait.

The body is the same, and so are headers and properties, except for what would make the broker do something with the
copy: `expiration` would end it early, `user_id` would be checked against ours, `CC` would send it to others again, and
an `x-death` of an earlier trip may let the broker take it for a cycle, which it drops without a word.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from pamqp.commands import Basic

from semel.adapters.sources.rabbitmq.holding import Held

PREFIX = "semel."
RETRIES, WAIT = PREFIX + "retries", PREFIX + "wait"
REASON_MAX_BYTES = 2_000
PERSISTENT = 2
KEY_MAX_BYTES = 128  # of a header's name; the driver would cut it
DEPTH_MAX = 16  # of tables within tables
DROPPED = {"CC", "BCC", "x-death", "x-delivery-count"}
DROPPED_PREFIXES = ("x-first-death-", "x-last-death-")
_KEPT = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to")
_KEPT_TOO = ("message_id", "timestamp", "message_type", "app_id")


def retry_copy(held: Held, left_s: float) -> Basic.Properties:
    """Of a message that comes again. `left_s`: how much longer it waits after this wait."""
    before = retries_of(held)
    said: dict[str, Any] = {RETRIES: before if before and still_waits_s(held) else before + 1}  # a long wait is one
    if left_s > 0:
        said[WAIT] = str(left_s)
    return _copy(held, said, {WAIT})


def retries_of(held: Held) -> int:
    """How often it was put off. Whatever a stranger wrote there, it is a number."""
    retries = held.header(RETRIES)
    return retries if type(retries) is int and 0 <= retries < 2**31 else 0


def letter_copy(held: Held, queue: str, reason: str) -> Basic.Properties:
    """Of a message that nobody can act on."""
    text = reason.encode("utf-8", "replace")[:REASON_MAX_BYTES].decode("utf-8", "ignore")
    return _copy(held, {PREFIX + "reason": text or "rejected", PREFIX + "queue": queue}, {WAIT})


def still_waits_s(held: Held) -> float:
    """How much of a long wait is left for this copy. Whatever a stranger wrote there, it is a number or nothing."""
    text = held.header(WAIT)
    try:
        left_s = float(text) if isinstance(text, str) and len(text) < 32 else 0.0
    except ValueError:
        return 0.0
    return left_s if 0 < left_s < 2**32 else 0.0


def _copy(held: Held, said: Mapping[str, Any], without: set[str]) -> Basic.Properties:
    properties = held.properties
    headers = {
        name: _fit(value, DEPTH_MAX)
        for name, value in (properties.headers or {}).items()
        if name not in DROPPED | without
        and not name.startswith(DROPPED_PREFIXES)
        and len(name.encode()) <= KEY_MAX_BYTES
    }
    origin = {"exchange": held.exchange, "routing_key": held.routing_key, "user_id": properties.user_id}
    for name, value in {**origin, "expiration": properties.expiration}.items():
        if value and not (name in ("exchange", "routing_key") and RETRIES in headers):
            headers.setdefault(PREFIX + name, value)  # a copy of a copy tells where the first one came from
    kept = {name: getattr(properties, name) for name in (*_KEPT, *_KEPT_TOO)}
    return Basic.Properties(headers={**headers, **said}, delivery_mode=PERSISTENT, **kept)


def _fit(value: Any, depth: int) -> Any:
    """What the driver reads is more than what it writes."""
    match value:
        case bytes():
            return bytearray(value)
        case float():
            return value if _is_short(value) else repr(value)
        case Decimal():
            return str(value)  # the driver reads some that it cannot write
        case datetime():
            return value if value.timestamp() >= 0 else value.isoformat()
        case dict() | list() if depth == 0:
            return "…"
        case dict():
            return {name: _fit(one, depth - 1) for name, one in value.items() if len(name.encode()) <= KEY_MAX_BYTES}
        case list():
            return [_fit(one, depth - 1) for one in value]
    return value


def _is_short(value: float) -> bool:
    """Whether it is the same in 32 bits, which is all the driver writes."""
    try:
        (again,) = struct.unpack(">f", struct.pack(">f", value))
    except (OverflowError, struct.error):
        return False
    return bool(again == value)
