"""What all schemes with shared secrets do alike: look at a header, compare without telling anything by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hmac import compare_digest

HEADER_MAX_BYTES = 4096  # the longest honest value is a list of a few signatures, 50 bytes each


def header(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    """The value of a header. One that is missing or absurdly long is empty, and that verifies nowhere."""
    value = headers.get(name, b"")
    return value if len(value) <= HEADER_MAX_BYTES else b""


def any_same(expected: Iterable[bytes], given: bytes) -> bool:
    """True when one of them is the given one. All are compared, so that time does not tell which one it was."""
    same = False
    for one in expected:
        same |= compare_digest(one, given)
    return same
