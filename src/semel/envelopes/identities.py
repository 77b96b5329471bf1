"""The identity of each shape of events, and whether it recognises a producer's retry.

A producer that got no response sends the event again, and the transport assigns a new id. An identity that contains the
transport's id treats this retry as another event.
"""

from __future__ import annotations

from msgspec import Struct


class ShapeIdentity(Struct, frozen=True):
    """One row of the table that `semel doctor` and docs/guarantees.md show."""

    events: str  # the events of the shape that have this identity
    shape: str  # as in `Event.shape`
    identity: str
    recognised: bool  # a producer's retry under a new transport id is a duplicate


IDENTITIES = (
    ShapeIdentity(
        "Genesys, with a time in eventBody",
        "genesys-eventbridge",
        "organisation, topic, and participant + session + time, else its own id, else its content",
        recognised=True,
    ),
    ShapeIdentity(
        "Genesys, without a time in eventBody",
        "genesys-eventbridge",
        "organisation, topic, content, and detail.timestamp, else metadata.CorrelationId",
        recognised=True,
    ),
    ShapeIdentity(
        "Genesys, without any of these",
        "genesys-eventbridge",
        "organisation, topic, content and EventBridge id",
        recognised=False,
    ),
    ShapeIdentity(
        "EventBridge with detail.eventId, not of an AWS service",
        "eventbridge-record",
        "detail.eventId",
        recognised=True,
    ),
    ShapeIdentity(
        "EventBridge of com.genesyscloud with detail.id",
        "eventbridge-genesyscloud",
        "detail.id",
        recognised=True,
    ),
    ShapeIdentity(
        "EventBridge about an interaction, with a time in detail",
        "eventbridge-interaction",
        "type, resource and content",
        recognised=True,
    ),
    ShapeIdentity(
        "EventBridge about an interaction, without a time",
        "eventbridge-interaction",
        "type, resource, content and EventBridge id",
        recognised=False,
    ),
    ShapeIdentity("any other EventBridge event", "eventbridge", "EventBridge id", recognised=False),
    ShapeIdentity("CloudEvents 1.0", "cloudevents", "source and id", recognised=True),
    ShapeIdentity(
        "webhook (id and type)",
        "webhook",
        "the endpoint's origin, and the message id that a signature proves, else id",
        recognised=True,
    ),
    ShapeIdentity("Open Messaging", "open-messaging", "the endpoint's origin, and id", recognised=True),
    ShapeIdentity("any other JSON", "json", "the endpoint's origin, and the value at id_path", recognised=True),
)
