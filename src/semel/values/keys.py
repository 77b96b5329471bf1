"""How an event becomes a key. A strategy is any callable `Event -> str`; these are the ready-made ones.

An *identity* strategy answers "is this the same event?", so a second payload under its key is a conflict.
A *business* strategy answers "is this the same fact?", so another event of the same fact is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from semel.values.errors import ConfigError, NoKey
from semel.values.event import Event, instant_us
from semel.values.key import content_digest

PART_MAX_CHARS = 255  # an id is 1 to 255 characters; longer ones are a sender's mistake
SHORT_TIER_S = 86_400  # EventBridge redelivers for 24 h

_json = msgspec.json.Encoder().encode

Parts: TypeAlias = str | tuple[str, ...]
Strategy: TypeAlias = Callable[[Event], Parts]


def _identity(strategy: Strategy) -> Strategy:
    strategy.identifies = True  # type: ignore[attr-defined]
    return strategy


def identifies(strategy: Strategy) -> bool:
    """True when two payloads under one key of this strategy contradict each other."""
    return getattr(strategy, "identifies", False)


@_identity
def event(event: Event) -> Parts:
    """The natural identity of the event, with the platform that made it. The transport is not part of it."""
    if not event.identity:
        raise NoKey(f"no event id: expected one at {event.looked_at}")
    return (event.origin, *event.identity)


@_identity
def delivery(event: Event) -> Parts:
    """The transport's id: one effect for each message, also when the same event is published twice."""
    if not event.delivery_id:
        raise NoKey("no delivery id: the transport gave none (EventBridge `id`, webhook message id)")
    return (event.origin, event.delivery_id)


def content(event: Event) -> Parts:
    """Digest of the canonical payload: equal content is one effect."""
    return (event.origin, event.type, content_digest(event.payload()).hex())


def fields(*paths: str) -> Strategy:
    """A business key from dotted paths, such as one effect for each "detail.eventBody.conversationId"."""
    if not paths or not all(isinstance(path, str) and path for path in paths):
        raise ConfigError("keys.fields needs at least one path, such as 'detail.eventBody.conversationId'")
    for path in paths:
        if not all(path.split(".")):
            raise ConfigError(f"keys.fields({path!r}): a name between two dots, or at an end, is empty")

    def business_key(event: Event) -> Parts:
        return tuple([_scalar(path, event.field(path)) for path in paths])

    return business_key


class tiers:  # noqa: N801 - a strategy, named like its neighbours
    """Known under either key means duplicate: a short-lived transport tier before a durable business tier."""

    def __init__(self, first: Strategy, second: Strategy, *rest: Strategy, short_s: float = SHORT_TIER_S) -> None:
        self.short = (first, second, *rest)[:-1]
        self.durable = (first, second, *rest)[-1]
        self.short_ms = int(short_s * 1000)
        self.identifies = all(identifies(strategy) for strategy in (*self.short, self.durable))

    def __call__(self, event: Event) -> Parts:
        return self.durable(event)


class latest:  # noqa: N801 - reads as a word: order=latest(...)
    """The ordering guard: an event older than the newest applied one of its subject is stale. Equal is not older."""

    def __init__(self, subject: str | Strategy, by: str | Callable[[Event], Any]) -> None:
        self.subject: Strategy = fields(subject) if isinstance(subject, str) else subject
        self._by = by

    def position(self, event: Event) -> int:
        """The position of the event in its subject: milliseconds, ISO 8601 times or counters."""
        value = event.field(self._by) if isinstance(self._by, str) else self._by(event)
        position = instant_us(value)
        if position is None:
            raise NoKey(f"order: {value!r} is neither a number nor an ISO 8601 time")
        if not -(2**63) <= position < 2**63:
            raise NoKey(f"order: {value!r} does not fit into 64 bits")
        return position


def _scalar(path: str, value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise NoKey(f"field {path} is {'empty' if value in ('', None) else 'no single value'}: it cannot be part of a key")


def checked(parts: Parts) -> tuple[str, ...]:
    """The parts of a key, or NoKey: never empty, never longer than the limit, no control characters."""
    whole = (parts,) if isinstance(parts, str) else parts
    try:
        text = "".join(whole) if isinstance(whole, tuple) else ""
    except TypeError:
        raise NoKey(f"a key is a text or a tuple of texts: the key strategy returned {parts!r:.80}") from None
    if not text:
        raise NoKey(f"the key is empty: the key strategy returned {parts!r}")
    # JSON spells a control character longer than it is. Twice as fast as isprintable, and as safe: _refuse decides.
    plain = text.isascii() and len(_json(text)) == len(text) + 2 and "\x7f" not in text
    if not plain or len(text) > PART_MAX_CHARS:
        _refuse(whole)
    return whole


def _refuse(parts: tuple[str, ...]) -> None:
    for part in parts:
        if len(part) > PART_MAX_CHARS:
            raise NoKey(f"an id of {len(part)} characters; the limit is {PART_MAX_CHARS}: {part[:20]!r}…")
        for char in part:
            if char < " " or "\x7f" <= char <= "\x9f" or "\ud800" <= char <= "\udfff":
                raise NoKey(f"an id with the control character {char!a}: {part[:40]!a}")
