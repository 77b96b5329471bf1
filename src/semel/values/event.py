"""The content of a delivery, normalised."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from semel.values.errors import NoKey
from semel.values.strict_json import canonical, parse

_MS_PER_S = 1000


class Event(Struct, frozen=True, dict=True):
    """One event, whichever transport delivered it. It is decoded when `document` or `body` is first read."""

    raw: bytes  # the event's document, unwrapped from its transport
    type: str  # event type, or the topic template with a literal {id}
    topic: str = ""  # the concrete topic, where there is one
    identity: tuple[str, ...] = ()  # its natural identity; empty: it has none
    subject: str = ""  # the conversation, user or interaction that the event is about
    occurred: int | str | None = None  # as in the event: epoch milliseconds or ISO 8601
    source: str = ""  # the bus or producer in the envelope: never part of an identity
    origin: str = ""  # the platform that made the event: Genesys organisation, CloudEvents source, or configured
    tenant: str = ""
    delivery_id: str = ""  # the transport's id: EventBridge `id`, webhook message id
    shape: str = ""  # which of the known shapes this is
    root: str = ""  # the name of `raw` in `document` (a bare `detail` becomes the member "detail")
    body_at: tuple[str, ...] = ()  # where in the document the payload is
    looked_at: str = "id"  # the places where an id was expected, for the error

    @property
    def document(self) -> dict[str, Any]:
        """The whole decoded document. Paths of `field` start here."""
        # functools.cached_property takes a lock on Python 3.11, which costs as much as the parsing
        decoded: dict[str, Any] | None = self.__dict__.get("document")
        if decoded is None:
            value = parse(self.raw)
            decoded = self.__dict__["document"] = {self.root: value} if self.root else value
        return decoded

    @property
    def body(self) -> Any:
        """The payload of the event, without its envelope. None if it has no payload."""
        value: Any = self.document
        for name in self.body_at:
            value = value.get(name)
        return value

    @property
    def id(self) -> str:
        """The natural identity as one text. Empty if the event has none."""
        return "|".join(self.identity)

    @property
    def time(self) -> datetime | None:
        """When it happened, in UTC."""
        micros = instant_us(self.occurred)
        return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)

    def field(self, path: str) -> Any:
        """The value at a dotted path such as "detail.eventBody.conversationId". Raises NoKey when it is not there."""
        value: Any = self.document
        for name in path.split("."):
            if isinstance(value, Mapping) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                raise NoKey(f"no field {path}: {name!r} is missing")
        return value

    def payload(self) -> bytes:
        """The canonical payload: equal for copies that were serialised differently."""
        return canonical(self.body)


def instant_us(value: object) -> int | None:
    """Epoch microseconds of epoch milliseconds or an ISO 8601 text; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value * _MS_PER_S
    if isinstance(value, float):
        micros = value * _MS_PER_S
        return int(micros) if isfinite(micros) else None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)  # all times are UTC
        whole_s = int(moment.replace(microsecond=0).timestamp())
        return whole_s * 1_000_000 + moment.microsecond
    return None


# How a document must be decoded to be the same event again. It is stored with every event.


class DecodeOptions(Struct, frozen=True, omit_defaults=True):
    """The decode options of a document. Each of them can be part of a key."""

    origin: str = ""  # the platform that made the event, if the document does not name it
    id_path: str | None = None  # dotted paths that make any JSON an event
    type_path: str | None = None
    default_origin: str = ""  # the origin of shapes that name none: the path of a verified endpoint
    foreign: bool = False  # a document of a handler elsewhere: it is stored for operators, and never decoded here
    message_id: str = ""  # the id that the transport's verifier proved, such as a signed `webhook-id`


PLAIN = DecodeOptions()

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DecodeOptions).decode


def dump(decode_options: DecodeOptions) -> bytes:
    return b"" if decode_options == PLAIN else _encode(decode_options)


def load(stored: bytes | None) -> DecodeOptions:
    return _decode(stored) if stored else PLAIN
