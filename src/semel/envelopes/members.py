"""Careful looks at the members of a parsed JSON object, where anything may stand where a text is expected."""

from __future__ import annotations

from typing import Any

from semel.values.errors import MalformedEvent
from semel.values.event import Event, instant_us

# Members that say when the event itself happened. A creation or modification date belongs to the resource: it stays the
# same when a state comes back, so it does not count. Nor does a time inside of a nested object.
EVENT_TIMES = ("eventTime", "eventDate", "timestamp")

LOOKED_AT = "id, detail.eventId, detail.id, eventBody.id"  # the places of an id in all the shapes we know

_KINDS = {dict: "an object", list: "an array", str: "a text", bool: "a truth value", int: "a number", float: "a number"}


def text(value: Any) -> str:
    """A text, or a whole number in digits. Anything else is no id and no name, and gives the empty text."""
    if type(value) is str:
        return value
    return str(value) if type(value) is int else ""  # a bool is no int here: `true` identifies nothing


def moment(value: Any) -> int | str | None:
    """A time as it stands in the event: epoch milliseconds or a text."""
    return value if type(value) in (int, str) and value != "" else None


def has_event_time(body: dict[str, Any]) -> bool:
    """True if the body says when it happened. Equal content without that may be a state that came back."""
    return any(value and instant_us(value) is not None for value in map(body.get, EVENT_TIMES))


def correlation_id(detail: dict[str, Any]) -> str:
    """The CorrelationId of a `detail`. It is not unique per event, so it identifies one only with the content."""
    return text(members(detail.get("metadata")).get("CorrelationId"))


def members(value: Any) -> dict[str, Any]:
    """The members of an object; of anything else, none."""
    return value if type(value) is dict else {}


def kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


def the_object(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise MalformedEvent(f"{path}: expected an object, got {kind(value)}")
    return value


def about(body: dict[str, Any]) -> str:
    """What a body speaks of: its conversation, else its interaction, else the resource itself."""
    return text(body.get("conversationId")) or text(body.get("interactionId")) or text(body.get("id"))


def with_document(event: Event, document: Any) -> Event:
    """The event with its document already parsed: what was read once to recognise it is not read again."""
    event.__dict__["document"] = document  # where `Event.document` keeps it
    return event
