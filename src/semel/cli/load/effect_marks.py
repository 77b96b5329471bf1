"""What the storm and the sink agree on: how an effect is named between them. No key code of Semel has a part in it, so
that a mistake there cannot hide itself."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

MARK_BYTES = 16
PAGE_LINES = 20_000  # of the sink's counts: less than a megabyte
IDS_SHOWN = 10


class Counts(Struct, frozen=True):
    """The sink's summary."""

    effects: int
    distinct: int  # different events
    repeats: int  # of a key, answered from memory
    doubled: list[str]  # the first events with more than one effect
    doubled_events: int
    conflicts: int = 0  # a key that came with another event
    refused: int = 0  # without a key, or without a body that is JSON
    faults: int = 0  # answers spoiled on purpose


class _Body(Struct, gc=False):
    participantId: Any = None  # noqa: N815 - as on the wire
    sessionId: Any = None  # noqa: N815
    eventTime: Any = None  # noqa: N815


class _Detail(Struct, gc=False):
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    eventId: Any = None  # noqa: N815
    id: Any = None


class _Document(Struct, gc=False):
    id: Any = None
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    detail: _Detail | None = None


_read = msgspec.json.Decoder(_Document).decode


def identity(body: bytes) -> str:
    """The event in a forwarded body. Raises ValueError for what is no JSON object."""
    try:
        document = _read(body)
    except msgspec.ValidationError:
        return _content(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}") from None
    detail = document.detail
    inner = detail if detail is not None else document
    if inner.topicName and inner.eventBody is not None:
        return _genesys(inner.topicName, inner.eventBody) or _content(body)
    own = detail.eventId or detail.id if detail is not None else document.id
    return str(own) if own else _content(body)


def mark(identity: str) -> bytes:
    """A short name for an identity: a million of them fit into memory."""
    return blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


def _genesys(topic: str, body: _Body) -> str:
    if not (body.participantId and body.sessionId and body.eventTime):
        return ""
    return f"{topic}|{body.participantId}|{body.sessionId}|{body.eventTime}"


def _content(body: bytes) -> str:
    return f"content {blake2b(body, digest_size=MARK_BYTES).hexdigest()}"
