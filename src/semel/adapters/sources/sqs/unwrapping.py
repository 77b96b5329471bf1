"""What an SQS message carries: the event itself, or a notification of SNS around it.

Decided by shape, strictly: only what has everything that SNS always writes is opened, and everything else is handed on
as it came, for the decoder to judge. An EventBridge event stands in the body as it is, and raw delivery of SNS too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from semel.values.errors import MalformedEvent
from semel.values.strict_json import parse


class _Notification(msgspec.Struct):
    """SNS writes these into every message of a queue that has not asked for raw delivery."""

    Type: Literal["Notification"]
    MessageId: str
    TopicArn: str
    Message: str
    Timestamp: str


_read = msgspec.json.Decoder(_Notification).decode


def unwrap(body: bytes) -> bytes:
    """The event's own bytes."""
    if b"TopicArn" not in body:
        return body  # most messages: no need to read them here
    try:
        notification = _read(body)
        parse(body)  # a body in which a name stands twice says two things
    except (msgspec.MsgspecError, MalformedEvent, UnicodeError, RecursionError):
        return body
    return notification.Message.encode() if notification.TopicArn.startswith("arn:") else body
