"""HMAC-SHA256 over the body, in one header: as Genesys Open Messaging writes it, and as GitHub does.

Both use the same header and the same prefix, one with base64 and the other with hex. Neither signs a time, so that a
copy verifies for ever: knowing it again is the ledger's work.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hmac import digest

from semel.adapters.verifiers.comparing import DIFFERS, any_same, header, wrong

SIGNATURE_HEADER = b"x-hub-signature-256"

_BASE64 = re.compile(rb"sha256=([A-Za-z0-9+/]{43}=)")
_HEX = re.compile(rb"sha256=([0-9A-Fa-f]{64})")
_HEX_ALONE = re.compile(rb"(?:sha256=)?([0-9A-Fa-f]{64})")


class Genesys:
    """`X-Hub-Signature-256: sha256=<base64>`."""

    covers_headers = False

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return not await self.objection(headers, body)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = _BASE64.fullmatch(header(headers, SIGNATURE_HEADER))
        if match is None:
            return wrong(headers, SIGNATURE_HEADER)
        # Compared as text: four spellings of base64 decode to the same digest, and only one of them is the sender's.
        same = any_same([b64encode(digest(secret, body, "sha256")) for secret in self._secrets], match[1])
        return "" if same else DIFFERS


class HmacHex:
    """`X-Hub-Signature-256: sha256=<hex>`. In a header of another name the prefix may be missing: senders with
    headers of their own often leave it out."""

    covers_headers = False

    def __init__(self, secrets: Sequence[bytes], name: bytes = SIGNATURE_HEADER) -> None:
        self._secrets = tuple(secrets)
        self._name = name
        self._form = _HEX if name == SIGNATURE_HEADER else _HEX_ALONE

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return not await self.objection(headers, body)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = self._form.fullmatch(header(headers, self._name))
        if match is None:
            return wrong(headers, self._name)
        given = bytes.fromhex(match[1].decode("ascii"))
        return "" if any_same([digest(secret, body, "sha256") for secret in self._secrets], given) else DIFFERS
