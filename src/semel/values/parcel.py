"""An event that a webhook source hands on to a broker, and the note that travels beside its body.

The body travels as it arrived, so that others can read the same queue. The note says what the body does not: whose
event it is and how it has to be read, so that whoever takes it from the broker makes the same key of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from semel.values.errors import MalformedEvent
from semel.values.reading import PLAIN, Reading

NOTE = "semel"  # the name of the note among a message's attributes or headers
NOTE_MAX = 16 * 1024
NOT_BELIEVED = f"Semel has handed it on with a note {NOTE!r}, which this source does not believe: set handed_on = true"

# How a publisher's answer begins where another try is no use. Every other reason is one of the moment.
TOO_LARGE = "too large: "  # for this broker, with its note
UNFIT = "unfit: "  # the broker cannot carry such a body at all


class Note(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Believed only where a source is told that Semel itself fills its queue: it can name any tenant."""

    tenant: str = ""
    reading: Reading = PLAIN
    headers: Mapping[str, str] | None = None  # where they are part of the event: CloudEvents in binary mode
    trace: str = ""  # W3C traceparent of the delivery


class Parcel(Struct, frozen=True):
    """What is handed on."""

    body: bytes
    note: Note = Note()
    group: str = ""  # parcels of one group stay in order, where a broker can do that; empty: in none
    content_type: str = ""  # of the body, for consumers that decide by it; empty: not stated


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Note).decode


def write_note(note: Note) -> str:
    return _encode(note).decode()


def note_beside(text: str | bytes | None, believed: bool) -> Note | None:
    """The note of a message, if it has one. Raises MalformedEvent, also where a source does not believe notes: without
    it the event would be somebody else's, or another one, and nobody would notice."""
    if text is None:
        return None
    if not believed:
        raise MalformedEvent(NOT_BELIEVED)
    return read_note(text)


def read_note(text: str | bytes) -> Note:
    """Raises MalformedEvent, which does not repeat the note."""
    if len(text) > NOTE_MAX:
        raise MalformedEvent(f"its note {NOTE!r} is longer than {NOTE_MAX} bytes")
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise MalformedEvent(f"its note {NOTE!r} was not written by Semel") from None
