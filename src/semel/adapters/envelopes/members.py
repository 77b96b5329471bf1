"""Careful looks at the members of a parsed JSON object, where anything may stand where a text is expected."""

from __future__ import annotations

from typing import Any

from semel.values.errors import MalformedEvent
from semel.values.event import Event

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
