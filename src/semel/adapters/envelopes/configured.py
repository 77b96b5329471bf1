"""Any JSON object, with a configured path to its id."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from semel.adapters.envelopes.members import moment, text, with_document
from semel.values.errors import MalformedEvent, NoKey
from semel.values.event import Event

DEFAULT_TYPE = "json"  # what a handler asks for when neither a `type` nor a type path is there


def from_document(
    raw: bytes,
    document: dict[str, Any],
    tenant: str,
    origin: str,
    id_path: str,
    type_path: str | None,
    message_id: str = "",
) -> Event:
    """`message_id` is proven by the transport. It identifies a document that has nothing at `id_path`."""
    event = Event(
        raw,
        type=text(document.get("type")) or DEFAULT_TYPE,
        occurred=moment(document.get("time")),
        origin=origin,
        tenant=tenant,
        shape="json",
        looked_at=id_path,
    )
    with_document(event, document)
    own_id = _at(event, id_path) or message_id
    type_name = _at(event, type_path) if type_path else event.type
    if not type_name:
        raise MalformedEvent(f"no event type: looked at {type_path}")
    whole = replace(event, type=type_name, identity=(own_id,) if own_id else (), delivery_id=own_id)
    return with_document(whole, document)


def _at(event: Event, path: str) -> str:
    try:
        return text(event.field(path))
    except NoKey:
        return ""  # told when a key is asked for: a handler may use another one
