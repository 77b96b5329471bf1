"""EventBridge envelopes around events other than Genesys Cloud notifications.

A producer's retry gets a new `id` around the same `detail`. So the identity comes from `detail` if its producer is
known to write one there. Every other event is identified by the envelope's `id`: a producer's retry is then a second
event, which is safer than treating two events as one.
"""

from __future__ import annotations

from typing import Any

from semel.envelopes import genesys
from semel.envelopes.members import (
    LOOKED_AT,
    correlation_id,
    has_event_time,
    members,
    moment,
    subject_of,
    text,
    the_object,
    with_document,
)
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.key import content_digest
from semel.values.strict_json import canonical

RECORD, GENESYSCLOUD, INTERACTION = "eventbridge-record", "eventbridge-genesyscloud", "eventbridge-interaction"
PLAIN = "eventbridge"

_GENESYSCLOUD = "com.genesyscloud"  # `detail.id` is the event's own; elsewhere it may be a resource's (GuardDuty)
_AWS, _PARTNERS = "aws.", "aws.partner/"  # AWS's own services: `eventId` is a catalogue number there (DMS)


def recognises(document: dict[str, Any]) -> bool:
    if "detail" not in document:
        return False
    return "detail-type" in document or "source" in document or type(document["detail"]) is dict


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    detail = the_object(document["detail"], "detail")
    source = text(document.get("source"))
    if "topicName" in detail and ("eventBody" in detail or source.startswith(genesys.BUS)):
        return with_document(genesys.from_document(raw, document, tenant, origin), document)
    shape, identity = _identity(document, detail, source)
    inner_type = text(detail.get("eventType")) or text(detail.get("type"))
    detail_type = text(document.get("detail-type"))
    if not inner_type and not detail_type:
        raise MalformedEvent("an EventBridge event without a type: set detail-type, detail.eventType or detail.type")
    event = Event(
        raw,
        type=inner_type or detail_type,
        topic=text(detail.get("topicName")) or detail_type,
        identity=identity,
        subject=text(detail.get("conversationId"))
        or text(detail.get("interactionId"))
        or subject_of(members(detail.get("body")))
        or subject_of(members(detail.get("data"))),
        occurred=moment(detail.get("timestamp")) or moment(detail.get("date")) or moment(document.get("time")),
        source=source,
        origin=origin or genesys.organisation(source),
        tenant=tenant,
        delivery_id=text(document.get("id")),
        shape=shape,
        body_at=("detail", "body") if shape == RECORD and "body" in detail else ("detail",),
        looked_at=LOOKED_AT,
    )
    return with_document(event, document)


def _identity(document: dict[str, Any], detail: dict[str, Any], source: str) -> tuple[str, tuple[str, ...]]:
    """Return the shape and the identity, which is empty if there is none."""
    event_id = text(detail.get("eventId"))
    if event_id and (not source.startswith(_AWS) or source.startswith(_PARTNERS)):
        return RECORD, (event_id,)
    own_id = text(detail.get("id"))
    if own_id and source == _GENESYSCLOUD:
        return GENESYSCLOUD, (own_id,)
    bus_id = text(document.get("id")) if "detail-type" in document else ""  # else it is not an EventBridge envelope
    data = members(detail.get("data"))
    resource = text(detail.get("interactionId")) or (text(data.get("id")) if text(detail.get("type")) else "")
    if resource:
        # The resource's id is in each of its updates: only the content distinguishes them.
        type_name = text(detail.get("type")) or text(document.get("detail-type"))
        content = (type_name, resource, content_digest(canonical(detail)).hex())
        if has_event_time(detail) or moment(detail.get("date")) or has_event_time(data) or correlation_id(detail):
            return INTERACTION, content
        return INTERACTION, (*content, bus_id) if bus_id else ()  # equal content may be a state that recurred
    return PLAIN, (bus_id,) if bus_id else ()
