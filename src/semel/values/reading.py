"""How a document has to be read so that it is the same event again: kept beside every event that is stored."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Reading(Struct, frozen=True, omit_defaults=True):
    """What decides, besides the bytes, which event a document is. All of it can be part of a key."""

    origin: str = ""  # the platform that made the event, where the document does not say
    id_path: str | None = None  # dotted paths that make any JSON an event
    type_path: str | None = None
    default_origin: str = ""  # the origin of shapes that name none: the path of an endpoint that keeps ids to itself
    foreign: bool = False  # a document of somebody else's handler: it is kept for people, and never read here
    message_id: str = ""  # the id that the transport's verifier proved, such as a signed `webhook-id`


PLAIN = Reading()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Reading).decode


def dump(reading: Reading) -> bytes:
    return b"" if reading == PLAIN else _encode(reading)


def load(stored: bytes | None) -> Reading:
    return _decode(stored) if stored else PLAIN
