"""Who is asking: bearer tokens, of which only digests are known here."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct

from semel.settings.schema import Token
from semel.values.errors import ConfigError

TOKEN_MAX_BYTES = 512  # more is no token of ours, and need not be hashed


class Credential(Struct, frozen=True):
    """What a token stands for. The tenant of everything that is asked with it comes from here."""

    name: str
    tenant: str
    scopes: frozenset[str]


class Keyring:
    """The tokens that are let in. An empty one lets nobody in."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._known: list[tuple[bytes, Credential]] = []
        for token in tokens:
            digest = bytes.fromhex(token.digest.removeprefix("sha256:"))
            for other, credential in self._known:
                if token.name == credential.name or digest == other:
                    raise ConfigError(
                        f"tokens {credential.name!r} and {token.name!r} have the same name or the same digest: "
                        "nobody could tell which of them is meant"
                    )
            self._known.append((digest, Credential(token.name, token.tenant, frozenset(token.scopes))))

    def __len__(self) -> int:
        return len(self._known)

    def authenticate(self, header: bytes | None) -> Credential | None:
        """The credential of an Authorization header. Every digest is compared, so that time tells nothing."""
        scheme, _, text = (header or b"").partition(b" ")
        text = text.strip(b" ")
        if scheme.lower() != b"bearer" or not 0 < len(text) <= TOKEN_MAX_BYTES:
            return None
        given = sha256(text).digest()
        found: Credential | None = None
        for digest, credential in self._known:
            if hmac.compare_digest(digest, given):
                found = credential
        return found
