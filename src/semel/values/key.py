"""The identity of one effect, as 16 bytes.

The digest covers length-prefixed parts, so that ("ab", "c") and ("a", "bc") are two keys. The namespace (tenant and
handler) is hashed once per handler; a key then costs one copy and one update.
"""

from __future__ import annotations

from hashlib import blake2b, sha256

import msgspec

DIGEST_BYTES = 16


_length_prefixed = msgspec.msgpack.Encoder().encode  # MessagePack: every part has its length before it


class Namespace:
    """Digests the keys of one tenant and handler."""

    __slots__ = ("_prefix",)

    def __init__(self, tenant: str, handler: str) -> None:
        self._prefix = blake2b(_length_prefixed((tenant, handler)), digest_size=DIGEST_BYTES)

    def digest(self, parts: tuple[str, ...]) -> bytes:
        hashed = self._prefix.copy()
        hashed.update(_length_prefixed(parts))
        return hashed.digest()

    def fallback_digest(self, known: tuple[str, ...], content: bytes) -> bytes:
        """For an event whose key cannot be computed. Keys are flat sequences of texts and this is a nested one, so that
        no key has the same encoding."""
        hashed = self._prefix.copy()
        hashed.update(_length_prefixed((known, content)))
        return hashed.digest()


def content_digest(content: bytes) -> bytes:
    """Fingerprint of a canonical payload."""
    return sha256(content).digest()[:DIGEST_BYTES]  # faster than BLAKE2 here: processors have instructions for it
