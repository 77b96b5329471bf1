"""Reads members of a parsed JSON object whose types are unknown."""

from __future__ import annotations

from typing import Any

from semel.values.errors import MalformedEvent
from semel.values.event import Event, instant_us

# Members with the time of the event itself. A creation or modification date belongs to the resource and is the same
# when the resource returns to a state, so it does not count. Neither does a time in a nested object.
EVENT_TIMES = ("eventTime", "eventDate", "timestamp")

LOOKED_AT = "id, detail.eventId, detail.id, eventBody.id"  # where the known shapes have an id

_KINDS = {dict: "an object", list: "an array", str: "a text", bool: "a truth value", int: "a number", float: "a number"}


def text(value: Any) -> str:
    """Return a text, or a whole number as digits; empty for any other value."""
    if type(value) is str:
        return value
    return str(value) if type(value) is int else ""  # type(), because a bool is an int


def moment(value: Any) -> int | str | None:
    """Return a time as the event has it: epoch milliseconds or a text."""
    return value if type(value) in (int, str) and value != "" else None


def has_event_time(body: dict[str, Any]) -> bool:
    """True if the body has the time of the event. Without it, equal content may be a state that recurred."""
    return any(value and instant_us(value) is not None for value in map(body.get, EVENT_TIMES))


def correlation_id(detail: dict[str, Any]) -> str:
    """CorrelationId of a `detail`. It is not unique per event: it identifies one only together with the content."""
    return text(members(detail.get("metadata")).get("CorrelationId"))


def members(value: Any) -> dict[str, Any]:
    """Return the members of an object; none for any other value."""
    return value if type(value) is dict else {}


def kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def the_object(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise MalformedEvent(f"{path}: expected an object, got {kind(value)}")
    return value


def subject_of(body: dict[str, Any]) -> str:
    """Id of the conversation, else of the interaction, else of the resource itself."""
    return text(body.get("conversationId")) or text(body.get("interactionId")) or text(body.get("id"))


def with_document(event: Event, document: Any) -> Event:
    """Return the event with its parsed document, so that it is not parsed again."""
    event.__dict__["document"] = document  # the cache of `Event.document`
    return event
