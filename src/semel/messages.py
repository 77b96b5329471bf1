"""Bodies given to `app.process`, whatever a caller has in hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from semel.values.errors import MalformedEvent
from semel.values.reading import Reading

Body: TypeAlias = bytes | bytearray | memoryview | str | Mapping[str, Any]


class Message(Struct, frozen=True):
    """A body given to `process`, with what came beside it."""

    body: bytes
    tenant: str = ""
    reading: Reading | None = None  # None: the app's own
    headers: Mapping[str, str] | None = None


def to_bytes(body: Body) -> bytes:
    """The bytes of whatever a caller has in hand."""
    if isinstance(body, bytes):
        return body
    try:
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, Mapping):
            return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEvent(f"the body cannot be written as JSON: {error}") from None
    raise MalformedEvent(f"a body is bytes, str or a dict, not {type(body).__name__}")
