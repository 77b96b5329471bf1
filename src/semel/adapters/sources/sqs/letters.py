"""Dead letters of a queue: the message as it was sent, with the reason in its attributes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semel.adapters.sources.sqs.holding import Held

LETTER_MAX_BYTES = 256 * 1024  # what every queue takes: body and attributes together
REASON_MAX_BYTES = 2_000
ATTRIBUTES_MAX = 10  # of one message
PREFIX = "semel."
NOTE_BYTES = 120  # for the note that something was cut
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Letter:
    """A message that nobody can act on, on its way to the dead letters."""

    __slots__ = ("entry", "held", "reason", "size", "tries")

    def __init__(self, held: Held, reason: str, queue: str, to_fifo: bool, size_max: int = LETTER_MAX_BYTES) -> None:
        self.held = held
        self.reason = reason
        self.tries = 0
        ours = {
            "reason": _cut(_FORBIDDEN.sub("\ufffd", reason), min(REASON_MAX_BYTES, size_max // 4)) or "rejected",
            "queue": queue,
            "message_id": held.id,
            "receives": str(held.receives),
        }
        body = held.text.encode("utf-8", "surrogatepass")
        attributes = {PREFIX + name: _text(value) for name, value in ours.items()}
        theirs = {name: value for name, value in held.attributes.items() if not name.startswith(PREFIX)}
        theirs = dict(list(theirs.items())[: ATTRIBUTES_MAX - len(ours) - 1])
        room = max(1, size_max - _size(attributes) - NOTE_BYTES)
        if len(body) + _size(theirs) > room:
            theirs = {}
        if len(body) > room:
            attributes[PREFIX + "truncated"] = _text(f"the first {room:,} of {len(body):,} bytes")
            body = body[:room]
        elif len(theirs) < len(held.attributes):
            attributes[PREFIX + "truncated"] = _text("the body is whole, attributes of the sender are missing")
        text = body.decode("utf-8", "ignore")
        self.entry: dict[str, Any] = {"MessageBody": text or " ", "MessageAttributes": {**theirs, **attributes}}
        self.size = len(body) + _size(theirs) + _size(attributes)
        if to_fifo:  # a repetition after a lost reply is known by its id
            self.entry |= {"MessageGroupId": held.group or held.id, "MessageDeduplicationId": held.id}


def _cut(text: str, most: int) -> str:
    return text.encode()[:most].decode("utf-8", "ignore")


def _text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _size(attributes: Mapping[str, Any]) -> int:
    return sum(
        len(name.encode())
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode("utf-8", "surrogatepass"))
        + len(value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )
