"""The identity of one effect, as 16 bytes.

The digest covers length-prefixed parts, so that ("ab", "c") and ("a", "bc") are two keys. The namespace (tenant and
handler) is hashed once per handler; a key then costs one copy and one update.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def netstring(parts: Sequence[str]) -> bytes:
    """Parts joined so that no two different sequences give the same bytes."""
    return "".join([f"{len(part)}:{part}," for part in parts]).encode()


class Namespace:
    """Digests the keys of one tenant and handler."""

    __slots__ = ("_prefix",)

    def __init__(self, tenant: str, handler: str) -> None:
        self._prefix = blake2b(netstring((tenant, handler)), digest_size=DIGEST_BYTES)

    def digest(self, parts: Sequence[str]) -> bytes:
        hashed = self._prefix.copy()
        hashed.update(netstring(parts))
        return hashed.digest()


def content_digest(content: bytes) -> bytes:
    """Fingerprint of a canonical payload."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
