"""Genesys Cloud's own events: through EventBridge, as a bare `detail`, or as a frame of the Notification API.

Nearly all traffic has this shape. One typed decode reads the few members that an identity needs and skips the rest of
the document.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.envelopes.members import (
    EVENT_TIMES,
    LOOKED_AT,
    correlation_id,
    has_event_time,
    members,
    moment,
    text,
    the_object,
    with_document,
)
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.key import content_digest
from semel.values.strict_json import canonical

BUS = "aws.partner/genesys.com"  # test organisations: aws.partner/genesys.com.test
SOURCE_MAX_CHARS = 256  # EventBridge's own limit; longer ones are not cached
BODY_AT = ("detail", "eventBody")
CONTROL = "control"  # the shape of a frame that is not an event

_CLOUDS = (f"{BUS}/cloud", f"{BUS}.test/cloud")
_DETAIL_EVENTS = "v2.detail.events."
_SEVERAL_AT_ONCE = (".attributes", ".flow.outcome")  # one session can report several at the same time
_NO_TIME = (
    f"a time in eventBody ({', '.join(EVENT_TIMES)}), detail.timestamp, detail.metadata.CorrelationId and id. "
    "Without one of them, equal content may be a state that recurred: keep one of them, or choose another key"
)

# Control frames of the Notification API: metadata, heartbeats, and the notice before it closes the connection.
_CONTROL = ("channel.metadata", "v2.system.")


class Body(Struct, gc=False):
    """The members of `eventBody` that identify an event. Few: the decoder compares each unknown name with all."""

    eventTime: str | int | None = None  # noqa: N815 - as on the wire
    conversationId: str | None = None  # noqa: N815
    participantId: str | None = None  # noqa: N815
    sessionId: str | None = None  # noqa: N815
    flowOutcomeId: str | None = None  # noqa: N815


class Detail(Struct, gc=False):
    topicName: str | None = None  # noqa: N815
    eventBody: Body | None = None  # noqa: N815
    timestamp: str | None = None


class Envelope(Struct, gc=False, rename={"detail_type": "detail-type"}):
    """An EventBridge envelope, or a bare `detail` with `topicName` and `eventBody` at the top level."""

    id: str | None = None
    detail_type: str | None = None
    source: str | None = None
    time: str | None = None
    detail: Detail | None = None
    topicName: str | None = None  # noqa: N815
    eventBody: Body | None = None  # noqa: N815
    timestamp: str | None = None


read = msgspec.json.Decoder(Envelope).decode


@lru_cache(maxsize=256)  # one for each event bus
def _organisation(source: str) -> str:
    parts = source.split("/", 4)
    return parts[3] if len(parts) > 3 and "/".join(parts[:3]) in _CLOUDS else ""


def organisation(source: str) -> str:
    """Return the organisation id of aws.partner/genesys.com/cloud/<organisation>/<suffix>."""
    return _organisation(source) if len(source) <= SOURCE_MAX_CHARS else ""


def from_eventbridge(
    raw: bytes, envelope: Envelope, detail: Detail, topic: str, body: Body, tenant: str, origin: str
) -> Event:
    source = envelope.source or ""
    event = Event(
        raw,
        envelope.detail_type or topic,
        topic,
        _identity(topic, body),
        body.conversationId or _user(topic),
        body.eventTime or detail.timestamp or envelope.time,
        source,
        origin or organisation(source),
        tenant,
        envelope.id or "",
        "genesys-eventbridge",
        "",
        BODY_AT,
        LOOKED_AT,
    )
    return event if event.identity else _identified_by_body(event)


def from_frame(raw: bytes, envelope: Envelope, topic: str, body: Body, tenant: str, origin: str) -> Event:
    if topic.startswith(_CONTROL):
        return _control(raw, topic, tenant, origin)
    event = Event(
        raw,
        topic,
        topic,
        _identity(topic, body),
        body.conversationId or _user(topic),
        body.eventTime or envelope.timestamp,
        origin=origin,
        tenant=tenant,
        shape="genesys-detail",
        root="detail",  # the same paths and payload as through EventBridge
        body_at=BODY_AT,
        looked_at=LOOKED_AT,
    )
    return event if event.identity else _identified_by_body(event)


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    """Decode an event with members of unusual types, for example a number in place of a text."""
    bare = "topicName" in document
    at = "" if bare else "detail."
    outer = document if bare else the_object(document.get("detail"), "detail")
    topic = outer.get("topicName")
    if type(topic) is not str or not topic:
        raise MalformedEvent(f"{at}topicName: expected a text, got {topic!r:.40}")
    if bare and topic.startswith(_CONTROL):
        return _control(raw, topic, tenant, origin)
    if "eventBody" not in outer:
        raise MalformedEvent(f"{at}eventBody is missing: it holds the content of a Genesys event")
    inner = the_object(outer["eventBody"], f"{at}eventBody")
    body = Body(
        moment(inner.get("eventTime")),
        text(inner.get("conversationId")),
        text(inner.get("participantId")),
        text(inner.get("sessionId")),
        text(inner.get("flowOutcomeId")) or None,
    )
    timestamp = text(outer.get("timestamp"))
    if bare:
        return from_frame(raw, Envelope(timestamp=timestamp), topic, body, tenant, origin)
    envelope = Envelope(
        text(document.get("id")),
        text(document.get("detail-type")),
        text(document.get("source")),
        text(document.get("time")),
    )
    return from_eventbridge(raw, envelope, Detail(timestamp=timestamp), topic, body, tenant, origin)


def _control(raw: bytes, topic: str, tenant: str, origin: str) -> Event:
    """A control frame becomes an event that matches no handler."""
    return Event(
        raw,
        topic,
        topic,
        tenant=tenant,
        origin=origin,
        shape=CONTROL,
        root="detail",
        body_at=("detail",),
        looked_at="nothing: a control frame has no id",
    )


def _identity(topic: str, body: Body) -> tuple[str, ...]:
    """Identity of most events, without the whole body; empty if these members are not enough."""
    participant, session, time = body.participantId, body.sessionId, body.eventTime
    if not (participant and session and time and topic.startswith(_DETAIL_EVENTS)):
        return ()
    if body.flowOutcomeId is not None or topic.endswith(_SEVERAL_AT_ONCE):
        return ()
    return (topic, participant, session, str(time))


def _identified_by_body(event: Event) -> Event:
    """Return the event with an identity from its whole body: an audit, an utterance, attributes or a state."""
    identity = _named(event.topic, event.body) or _by_content(event)
    looked_at = LOOKED_AT if identity else _NO_TIME
    return with_document(replace(event, identity=identity, looked_at=looked_at), event.document)


def _by_content(event: Event) -> tuple[str, ...]:
    """Identity by topic and content.

    A body without a time can recur, for example when an edge is online again. Then the time or the CorrelationId of
    `detail` is part of the identity, else EventBridge's id.
    """
    content = (event.topic, content_digest(event.payload()).hex())
    if has_event_time(event.body):
        return content
    detail = event.document["detail"]
    occasion = text(detail.get("timestamp")) or correlation_id(detail) or event.delivery_id
    return (*content, occasion) if occasion else ()


def _named(topic: str, body: dict[str, Any]) -> tuple[str, ...]:
    """Identity by members of the body. `id` is used in audits only: elsewhere it is the id of the updated resource."""
    if topic.startswith("v2.audits."):
        audit = text(body.get("id"))
        return (topic, audit) if audit else ()
    if topic.endswith(".transcription"):
        return _utterance(topic, body)
    parts = (text(body.get("participantId")), text(body.get("sessionId")), text(body.get("eventTime")))
    if not all(parts):
        return ()
    # Two flow outcomes or two attribute maps of one millisecond can differ: their content distinguishes them.
    several = topic.endswith(_SEVERAL_AT_ONCE) or body.get("flowOutcomeId") is not None
    content = (content_digest(canonical(body)).hex(),) if several else ()
    return (topic, *parts, *content)


def _utterance(topic: str, body: dict[str, Any]) -> tuple[str, ...]:
    """Identity of one final utterance.

    Interim versions of an utterance share its id and differ in their text, so their content identifies them. The same
    holds for an event with no utterance or with several.
    """
    transcripts = body.get("transcripts")
    if type(transcripts) is list and len(transcripts) != 1:
        return ()
    utterance = members(transcripts[0]) if type(transcripts) is list else body
    parts = (text(body.get("conversationId")), text(body.get("communicationId")), text(utterance.get("utteranceId")))
    return (topic, *parts, "true") if all(parts) and utterance.get("isFinal") is True else ()


def _user(topic: str) -> str:
    """User id in the topic: the body of a presence event has none."""
    return topic.split(".", 3)[2] if topic.startswith("v2.users.") else ""
