"""What platforms post to a URL of ours: the generic event stream, and Genesys Open Messaging."""

from __future__ import annotations

from typing import Any

from semel.adapters.envelopes.configured import DEFAULT_TYPE
from semel.adapters.envelopes.members import LOOKED_AT, about, members, moment, text, with_document
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
