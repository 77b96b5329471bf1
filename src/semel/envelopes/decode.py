"""Decodes a body into one event: recognises the known shapes, and explains why a body has none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from semel.envelopes import eventbridge, genesys, webhook
from semel.envelopes.members import kind, with_document
from semel.values.cloudevents import from_http
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.event import Event
from semel.values.strict_json import DOCUMENT_MAX_BYTES, check_size, explain, parse

NAMES_SHOWN = 8  # enough to recognise a body, short enough for a log line


def decode(
    raw: bytes,
    *,
    tenant: str = "",
    origin: str = "",
    id_path: str | None = None,
    type_path: str | None = None,
    message_id: str = "",
    headers: Mapping[str, str] | None = None,
    default_origin: str = "",
) -> Event:
    """Decode one event. Genesys events need one typed decode; the other shapes need the parsed document.

    origin: of every event. default_origin: of generic shapes, which do not name their platform.
    id_path, type_path: for documents of no known shape.
    message_id: verified by the transport. It makes any JSON object an event, and identifies a generic webhook. Every
        other shape keeps its own identity, which is the same over every transport.
    """
    if len(raw) > DOCUMENT_MAX_BYTES:
        check_size(raw)
    if headers and (structured := from_http(raw, headers)) is not None:
        raw = structured
    if id_path is not None or type_path is not None:
        return _at_id_path(raw, tenant, origin, default_origin, id_path, type_path, message_id)
    try:
        envelope = genesys.read(raw)
    except msgspec.ValidationError:
        return _from_document(raw, tenant, origin, default_origin, message_id)  # members of unusual types
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        explain(raw, error)
    detail = envelope.detail
    if detail is not None and (topic := detail.topicName) and (body := detail.eventBody) is not None:
        return genesys.from_eventbridge(raw, envelope, detail, topic, body, tenant, origin)
    if (topic := envelope.topicName) and (body := envelope.eventBody) is not None:
        return genesys.from_frame(raw, envelope, topic, body, tenant, origin)
    return _from_document(raw, tenant, origin, default_origin, message_id)


def _from_document(raw: bytes, tenant: str, origin: str, default_origin: str, message_id: str) -> Event:
    document = _object(raw)
    event = _recognised(raw, document, tenant, origin, default_origin, message_id)
    if event is not None:
        return event
    if message_id:
        return webhook.from_document(raw, document, tenant, origin or default_origin, message_id)
    raise _unknown(document)


def _recognised(
    raw: bytes, document: dict[str, Any], tenant: str, origin: str, default_origin: str, message_id: str
) -> Event | None:
    """Decode a document of a known shape. None: no shape matches."""
    if webhook.recognises_cloudevents(document):
        return webhook.from_cloudevents(raw, document, tenant, origin)
    if eventbridge.recognises(document) and (not message_id or "detail-type" in document):
        return eventbridge.from_document(raw, document, tenant, origin)
    if "topicName" in document and ("eventBody" in document or not webhook.recognises(document)):
        return with_document(genesys.from_document(raw, document, tenant, origin), {"detail": document})
    if webhook.recognises_open_messaging(document):
        return webhook.from_open_messaging(raw, document, tenant, origin or default_origin)
    if webhook.recognises(document):
        return webhook.from_document(raw, document, tenant, origin or default_origin, message_id)
    return None


def _at_id_path(
    raw: bytes,
    tenant: str,
    origin: str,
    default_origin: str,
    id_path: str | None,
    type_path: str | None,
    message_id: str,
) -> Event:
    """Decode a document of a known shape, else one with its id at the configured path.

    The configured path takes precedence over a verified message id.
    """
    if not id_path:
        raise ConfigError("type_path needs an id_path: set both to decode any JSON")
    document = _object(raw)
    try:
        event = _recognised(raw, document, tenant, origin, default_origin, message_id)
    except MalformedEvent:
        event = None  # it only resembles a known shape, for example any JSON with a `detail`
    is_generic = message_id and event is not None and event.shape == webhook.SHAPE
    if event is not None and not is_generic and (event.identity or event.shape == genesys.CONTROL):
        return event
    return webhook.from_configured(raw, document, tenant, origin or default_origin, id_path, type_path, message_id)


def _object(raw: bytes) -> dict[str, Any]:
    document = parse(raw)
    if type(document) is not dict:
        hint = "; send the events of an array one by one" if type(document) is list else ""
        raise MalformedEvent(f"an event is a JSON object; this body is {kind(document)}{hint}")
    return document


def _unknown(document: dict[str, Any]) -> MalformedEvent:
    shown = ", ".join(ascii(name[:40]) for name in list(document)[:NAMES_SHOWN]) or "none"
    more = ", …" if len(document) > NAMES_SHOWN else ""
    return MalformedEvent(
        f"unknown event shape: its top-level names are {shown}{more}. Semel accepts EventBridge (detail-type and "
        "detail), Genesys notifications (topicName and eventBody), webhooks (id and type), Open Messaging (id and "
        "channel) and CloudEvents 1.0 (specversion); any other JSON object with a configured id_path"
    )
