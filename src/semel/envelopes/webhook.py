"""What platforms post to a URL of ours: the generic event stream, and Genesys Open Messaging."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from semel.envelopes.members import LOOKED_AT, about, members, moment, text, with_document
from semel.values.errors import MalformedEvent, NoKey
from semel.values.event import Event

SHAPE = "webhook"


def recognises(document: dict[str, Any]) -> bool:
    """A type, and an id or what usually stands beside one. Without its id it is still known, to say so."""
    return text(document.get("type")) != "" and not document.keys().isdisjoint(("id", "data", "createdTime"))


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str, message_id: str = "") -> Event:
    """`message_id` is proven by the transport. It is preferred to the document's own `id`, which may be the id of a
    resource that is updated several times."""
    own_id = message_id or text(document.get("id"))
    event = Event(
        raw,
        type=text(document.get("type")) or DEFAULT_TYPE,
        identity=(own_id,) if own_id else (),
        subject=about(members(document.get("data"))),
        occurred=_moment(document),
        origin=origin,
        tenant=tenant,
        delivery_id=own_id,
        shape=SHAPE,
        body_at=("data",) if "data" in document else (),
        looked_at=LOOKED_AT,
    )
    return with_document(event, document)


def _moment(document: dict[str, Any]) -> int | str | None:
    """Standard Webhooks has it in `timestamp`."""
    return moment(document.get("createdTime")) or moment(document.get("time")) or moment(document.get("timestamp"))


def recognises_open_messaging(document: dict[str, Any]) -> bool:
    channel = members(document.get("channel"))
    return not channel.keys().isdisjoint(("messageId", "to", "from"))


def from_open_messaging(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    own_id = text(document.get("id"))
    event = Event(
        raw,
        type=text(document.get("type")) or "open-messaging",
        identity=(own_id,) if own_id else (),
        subject=text(document.get("conversationId")),
        occurred=moment(members(document.get("channel")).get("time")),
        origin=origin,
        tenant=tenant,
        delivery_id=own_id,
        shape="open-messaging",
        looked_at="id",
    )
    return with_document(event, document)


# Any JSON object, with a configured path to its id.

DEFAULT_TYPE = "json"  # what a handler asks for when neither a `type` nor a type path is there


def from_configured(
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
