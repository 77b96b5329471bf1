"""The identity of one effect, as 16 bytes.

The digest covers length-prefixed parts, so that ("ab", "c") and ("a", "bc") are two keys. The namespace (tenant and
handler) is hashed once per handler; a key then costs one copy and one update.
"""

from __future__ import annotations

import re
from hashlib import blake2b, sha256

import msgspec

from semel.values.errors import ConfigError

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


def parse_digest(text: str) -> bytes:
    """Parse a key as operators write it: the hexadecimal digits of its digest."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise ConfigError(
            f"key {text[:80]!r}: expected {2 * DIGEST_BYTES} hexadecimal digits, as `semel events list` shows them"
        )
    return digest


def split_digests(joined: bytes | None) -> list[bytes]:
    """Split digests that are stored one after the other."""
    return [joined[at : at + DIGEST_BYTES] for at in range(0, len(joined), DIGEST_BYTES)] if joined else []


# Topic patterns: `*` is one segment, `**` is the rest, `{id}` in a pattern is `*`.

_PLACEHOLDER = re.compile(r"\{[^{}.]*\}")


class Pattern:
    """One compiled pattern. Concrete topic, topic template and type are all matchable."""

    __slots__ = ("_regex", "_segments", "text")

    def __init__(self, text: str) -> None:
        if not text or text != text.strip() or ".." in f".{text}.":
            raise ConfigError(f"topic pattern {text!r}: expected segments with dots between them, `*` or `**`")
        self.text = text
        self._segments = ["*" if _PLACEHOLDER.fullmatch(part) else part for part in text.split(".")]
        for segment in self._segments:
            if "*" in segment and segment not in ("*", "**"):
                raise ConfigError(f"topic pattern {text!r}: `*` matches a whole segment, not a part of one")
        if "**" in self._segments[:-1]:
            raise ConfigError(f"topic pattern {text!r}: `**` matches the rest, so it must be the last segment")
        self._regex = re.compile(
            r"\.".join({"*": r"[^.]+", "**": r".+"}.get(part) or re.escape(part) for part in self._segments)
        )

    def matches(self, topic: str) -> bool:
        return self._regex.fullmatch(topic) is not None

    def could_match_some(self, template: str) -> bool:
        """True when some concrete topic of this template matches, though the template itself may not."""
        parts = template.split(".")
        for at, segment in enumerate(self._segments):
            if segment == "**":
                return len(parts) > at
            if at >= len(parts):
                return False
            if segment not in ("*", parts[at]) and not _PLACEHOLDER.fullmatch(parts[at]):
                return False
        return len(parts) == len(self._segments)
