"""Events that a webhook endpoint forwards to a broker, and the metadata that accompanies each body.

The body stays unchanged, so that other consumers can read the same queue. The metadata holds what the body lacks: the
tenant and the decode options, so that the consumer computes the same key from the message.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from semel.values.errors import MalformedEvent
from semel.values.event import PLAIN, DecodeOptions

METADATA_KEY = "semel"  # name of the message attribute or header that holds the metadata
METADATA_MAX_BYTES = 16 * 1024
UNTRUSTED_METADATA = (
    f"this message has forwarding metadata ({METADATA_KEY!r}), and this source does not trust it: set forwarded = true"
)

# Prefixes of a publisher's answer for which a retry is useless. Every other reason is temporary.
TOO_LARGE = "too large: "  # for this broker, with its metadata
UNFIT = "unfit: "  # the broker cannot carry such a body


class ForwardMetadata(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Metadata of a forwarded event. Only a source with `forwarded = true` trusts it: it can name any tenant."""

    tenant: str = ""
    decode_options: DecodeOptions = PLAIN
    headers: Mapping[str, str] | None = None  # only where they are part of the event: CloudEvents in binary mode
    trace: str = ""  # W3C traceparent of the delivery


class ForwardedEvent(Struct, frozen=True):
    """One event to publish to a broker."""

    body: bytes
    metadata: ForwardMetadata = ForwardMetadata()
    group: str = ""  # events of one group stay in order, if the broker supports it; empty: no order
    content_type: str = ""  # of the body, for other consumers; empty: unknown


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ForwardMetadata).decode


def encode_metadata(metadata: ForwardMetadata) -> str:
    return _encode(metadata).decode()


def read_metadata(text: str | bytes | None, trusted: bool) -> ForwardMetadata | None:
    """Metadata of a message, or None if it has none.

    Raises MalformedEvent, also if the source does not trust metadata. Without its metadata the event could get another
    tenant or another key, and nothing would show it.
    """
    if text is None:
        return None
    if not trusted:
        raise MalformedEvent(UNTRUSTED_METADATA)
    return decode_metadata(text)


def decode_metadata(text: str | bytes) -> ForwardMetadata:
    """Raises MalformedEvent, which does not repeat the metadata."""
    if len(text) > METADATA_MAX_BYTES:
        raise MalformedEvent(f"its forwarding metadata {METADATA_KEY!r} is longer than {METADATA_MAX_BYTES} bytes")
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise MalformedEvent(f"its forwarding metadata {METADATA_KEY!r} was not written by Semel") from None
