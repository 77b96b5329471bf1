"""Asking a verifier from a test that is no coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from semel.ports import Verifier


def verified(verifier: Verifier, body: bytes, **headers: str | bytes) -> bool:
    """Header names are given with underscores: `webhook_id="…"`."""
    given = {
        name.replace("_", "-").encode(): value.encode("latin-1") if isinstance(value, str) else value
        for name, value in headers.items()
    }
    return asyncio.run(verifier.verify(given, body))


def altered(raw: bytes) -> Iterable[bytes]:
    """The same bytes with one bit changed, at a few places, one byte missing, one added."""
    for at in sorted({0, len(raw) // 2, len(raw) - 1}):
        yield raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    yield raw[:-1]
    yield raw + b"\n"


def short(value: object) -> str:
    """The id of a parameter: neither a megabyte long nor random, which xdist refuses."""
    return ascii(value)[:30]
