"""What all schemes with shared secrets do alike: look at a header, compare without telling anything by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hmac import compare_digest

DIFFERS = "the signature differs: another secret, or the body was changed on its way"
HEADER_MAX_BYTES = 4096  # the longest honest value is a list of a few signatures, 50 bytes each


def header(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    """The value of a header. One that is missing or absurdly long is empty, and that verifies nowhere."""
    value = headers.get(name, b"")
    return value if len(value) <= HEADER_MAX_BYTES else b""


def wrong(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """What is to be said of a header that cannot verify, whatever its secret is. Its value stays where it is."""
    what = "is missing" if name not in headers else "does not have the form of this scheme"
    return f"the header {name.decode('ascii', 'replace')} {what}"


def untimely(name: bytes, age_s: float, most_s: float, ahead_s: float) -> str:
    """What is to be said of a time that was signed; empty: it is neither too old nor of tomorrow."""
    if age_s > most_s:
        return f"its time ({name.decode()}) is more than {most_s:g} s ago: it came late, or is a copy"
    if age_s < -ahead_s:
        return f"its time ({name.decode()}) is more than {ahead_s:g} s ahead: is the clock here right?"
    return ""


def any_same(expected: Iterable[bytes], given: bytes) -> bool:
    """True when one of them is the given one. All are compared, so that time does not tell which one it was."""
    same = False
    for one in expected:
        same |= compare_digest(one, given)
    return same
