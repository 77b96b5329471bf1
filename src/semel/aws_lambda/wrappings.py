"""What AWS puts around an event on its way: a notification of SNS, the report of a failed invocation, other events."""

from __future__ import annotations

import json
import re
from typing import Any

EVENTS = frozenset({"detail", "id", "specversion", "topicName"})  # whatever has one of these is an event itself

_spaces = re.compile(r"\s*")
_read_one = json.JSONDecoder().raw_decode


def opened(document: Any) -> str | dict[str, Any] | list[Any] | None:
    """What is inside: the text of a notification, or the invocation that failed. None: nothing is around it."""
    match document:
        case {
            "Type": "Notification",
            "MessageId": str(),
            "TopicArn": str(topic),
            "Message": str(message),
            "Timestamp": str(),
        } if topic.startswith("arn:"):
            return message
        case {"requestPayload": (dict() | list()) as invocation} if EVENTS.isdisjoint(document):
            return invocation
        case {"detail": {"requestContext": dict(), "requestPayload": (dict() | list()) as invocation}}:
            return invocation  # the destination was a bus
    return None


def documents(data: bytes) -> tuple[bytes, ...]:
    """JSON documents that stand one after the other, as Firehose has them. What is no JSON stays in one piece."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return (data,)
    found: list[bytes] = []
    end = 0
    while (at := _begin(text, end)) < len(text):
        try:
            _, end = _read_one(text, at)
        except (ValueError, RecursionError):
            end = len(text)
        found.append(text[at:end].encode())
    return tuple(found) or (data,)


def _begin(text: str, at: int) -> int:
    """Where the next document begins."""
    space = _spaces.match(text, at)
    assert space is not None  # it may be empty
    return space.end()
