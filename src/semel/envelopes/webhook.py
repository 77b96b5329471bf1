"""Events that name their own id: generic webhooks, Genesys Open Messaging, CloudEvents 1.0, and any JSON with an
`id_path`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from semel.envelopes.members import LOOKED_AT, members, moment, subject_of, text, with_document
from semel.values.cloudevents import SHAPE as CLOUDEVENTS
from semel.values.errors import MalformedEvent, NoKey
from semel.values.event import Event

SHAPE = "webhook"


def recognises(document: dict[str, Any]) -> bool:
    """True for a type with an id, `data` or `createdTime`. Without an id, the error can name the shape."""
    return text(document.get("type")) != "" and not document.keys().isdisjoint(("id", "data", "createdTime"))


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str, message_id: str = "") -> Event:
    """`message_id` is verified by the transport. It takes precedence over the document's own `id`, which can be the id
    of a resource that is updated several times."""
    own_id = message_id or text(document.get("id"))
    event = Event(
        raw,
        type=text(document.get("type")) or DEFAULT_TYPE,
        identity=(own_id,) if own_id else (),
        subject=subject_of(members(document.get("data"))),
        # Standard Webhooks uses `timestamp`.
        occurred=moment(document.get("createdTime"))
        or moment(document.get("time"))
        or moment(document.get("timestamp")),
        origin=origin,
        tenant=tenant,
        delivery_id=own_id,
        shape=SHAPE,
        body_at=("data",) if "data" in document else (),
        looked_at=LOOKED_AT,
    )
    return with_document(event, document)


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


def recognises_cloudevents(document: dict[str, Any]) -> bool:
    return "specversion" in document


def from_cloudevents(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    """Decode structured mode; `semel.values.cloudevents` converts binary mode to it.

    `source` and `id` together identify a CloudEvent, so its source is the origin."""
    version, own_id, source, type_name = [text(document.get(name)) for name in ("specversion", "id", "source", "type")]
    if version != "1.0":
        raise MalformedEvent(f"CloudEvents specversion {version[:20]!r}: expected '1.0'")
    if not type_name or not source:
        raise MalformedEvent(f"a CloudEvent without {'source' if type_name else 'type'}: the specification requires it")
    in_base64 = document.get("data_base64") is not None
    if in_base64 and document.get("data") is not None:
        raise MalformedEvent("a CloudEvent with data and data_base64: the specification allows one of them")
    parts = (source, own_id) if origin else (own_id,)  # ids are unique within a source
    event = Event(
        raw,
        type=type_name,
        identity=parts if own_id else (),
        subject=text(document.get("subject")),
        occurred=moment(document.get("time")),
        source=source,
        origin=origin or source,
        tenant=tenant,
        delivery_id=own_id,
        shape=CLOUDEVENTS,
        body_at=("data_base64",) if in_base64 else ("data",),  # may be missing: an event can have no data
        looked_at="id",
    )
    return with_document(event, document)


DEFAULT_TYPE = "json"  # of a document without a `type` and without a type path


def from_configured(
    raw: bytes,
    document: dict[str, Any],
    tenant: str,
    origin: str,
    id_path: str,
    type_path: str | None,
    message_id: str = "",
) -> Event:
    """Decode any JSON object. `message_id` is verified by the transport, and identifies a document without an id at
    `id_path`."""
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
        raise MalformedEvent(f"no event type at {type_path}")
    whole = replace(event, type=type_name, identity=(own_id,) if own_id else (), delivery_id=own_id)
    return with_document(whole, document)


def _at(event: Event, path: str) -> str:
    try:
        return text(event.field(path))
    except NoKey:
        return ""  # an error only if the key of a handler needs it
