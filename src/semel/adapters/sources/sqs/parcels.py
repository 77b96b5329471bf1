"""A parcel as SQS takes it: the body as the message, the note as an attribute."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any

import msgspec

from semel.adapters.sources.sqs.letters import LETTER_MAX_BYTES
from semel.values.errors import MalformedEvent
from semel.values.parcel import NOTE, NOTE_MAX, TOO_LARGE, UNFIT, Note, Parcel, write_note
from semel.values.strict_json import parse

MESSAGE_MAX_BYTES = LETTER_MAX_BYTES  # body and attributes together; what all messages of a batch may have, too
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_GROUP = re.compile(r"[!-~]{1,128}")  # letters, digits and punctuation
_identity = msgspec.msgpack.Encoder().encode  # every part has its length before it


class Outgoing:
    """One parcel on its way. `why` is empty when the queue has it."""

    __slots__ = ("entry", "group", "size", "why")

    def __init__(self, parcel: Parcel, fifo: bool, size_max: int, why: str) -> None:
        text, note = _text(parcel.body), _escaped(write_note(parcel.note))
        self.why = why  # until somebody knows more
        self.group = parcel.group
        self.size = len(parcel.body if text is None else text.encode()) + len(note.encode()) + len(NOTE + "String")
        self.entry: dict[str, Any] | None = None  # None: the queue cannot take it
        if self.size > size_max:
            self.why = f"{TOO_LARGE}with its note it has {self.size:,} bytes, the queue takes {size_max:,}"
        elif len(note.encode()) > NOTE_MAX:
            self.why = f"{TOO_LARGE}its note has more than {NOTE_MAX:,} bytes"
        elif not text:
            self.why = f"{UNFIT}SQS carries text, without most control characters, and no empty message"
        else:
            attributes = {NOTE: {"DataType": "String", "StringValue": note}}
            self.entry = {"MessageBody": text, "MessageAttributes": attributes}
            if fifo:
                same = _same(parcel)
                group = parcel.group if _GROUP.fullmatch(parcel.group) else _hex(_bytes(parcel.group)) or same
                self.entry |= {"MessageGroupId": group, "MessageDeduplicationId": same}


def _text(body: bytes) -> str | None:
    """The body, or the same document in a spelling that SQS carries: JSON may hold U+FFFE and U+FFFF, and in JSON they
    only stand in strings, where they can be escaped. None: it is no such text."""
    try:
        text = body.decode()
        if _FORBIDDEN.search(text) is None:
            return text
        spelled = _escaped(text)
        return spelled if parse(body) == parse(spelled.encode()) else None
    except (UnicodeDecodeError, MalformedEvent):
        return None


def _escaped(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _same(parcel: Parcel) -> str:
    """Equal for a sender's repetition of one delivery, which a FIFO queue then drops for five minutes.

    Nothing less may be equal: the same id around another payload is a conflict that somebody has to be told, the same
    event in another envelope is another delivery, and a business key may see two effects in them."""
    note: Note = msgspec.structs.replace(parcel.note, trace="")
    return _hex(_identity((write_note(note), parcel.body)))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hex(content: bytes) -> str:
    return sha256(content).hexdigest() if content else ""
