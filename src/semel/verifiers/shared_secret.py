"""Verifiers with shared secrets: static header, HTTP Basic and HMAC, compared in constant time."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest, digest

DIFFERS = "the signature differs: another secret, or the body was changed on its way"
HEADER_MAX_BYTES = 4096  # the longest genuine value is a list of a few signatures, 50 bytes each


def header(headers: Mapping[bytes, bytes], name: bytes) -> bytes:
    """Value of a header. A missing or oversized header is empty, and an empty value never verifies."""
    value = headers.get(name, b"")
    return value if len(value) <= HEADER_MAX_BYTES else b""


def wrong(headers: Mapping[bytes, bytes], name: bytes) -> str:
    """Reason why a header cannot verify with any secret. It never contains the value."""
    problem = "is missing" if name not in headers else "does not have the form of this scheme"
    return f"the header {name.decode('ascii', 'replace')} {problem}"


def untimely(name: bytes, age_s: float, most_s: float, ahead_s: float) -> str:
    """Reason to refuse a signed time; empty: it is neither too old nor in the future."""
    if age_s > most_s:
        return f"its time ({name.decode()}) is more than {most_s:g} s ago: the request is late, or a copy"
    if age_s < -ahead_s:
        return f"its time ({name.decode()}) is more than {ahead_s:g} s ahead: check the clock of this machine"
    return ""


def any_same(expected: Iterable[bytes], received: bytes) -> bool:
    """True if one value matches. All are compared, so that the duration does not reveal which one."""
    same = False
    for value in expected:
        same |= compare_digest(value, received)
    return same


class ExplainedVerifier(ABC):
    """A verifier that accepts a delivery if it has no objection to it."""

    covers_headers = False

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return not await self.objection(headers, body)

    @abstractmethod
    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Return why the delivery is refused; empty: it is accepted."""


# A secret that the request contains unchanged: a static header, or HTTP Basic. EventBridge API destinations use both.
#
# It is not bound to the body, so it is only as safe as the TLS connection. Digests are compared instead of the values,
# so that the duration does not reveal the length of a secret either.

API_KEY_HEADER = b"x-api-key"

_BASIC = re.compile(rb"[Bb][Aa][Ss][Ii][Cc] +([A-Za-z0-9+/]+={0,2})")


class StaticHeaderVerifier(ExplainedVerifier):
    """`X-Api-Key: <secret>`, or the same in a header with another name."""

    covers_headers = True  # the sender who knows the secret wrote the whole request

    def __init__(self, secrets: Sequence[bytes], name: bytes = API_KEY_HEADER) -> None:
        self._digests = [sha256(secret).digest() for secret in secrets]
        self._name = name

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        if any_same(self._digests, sha256(header(headers, self._name)).digest()):
            return ""
        if self._name not in headers:
            return wrong(headers, self._name)
        return f"the header {self._name.decode()} has another secret"


class BasicVerifier(ExplainedVerifier):
    """`Authorization: Basic <base64 of username:secret>`, both in UTF-8."""

    challenge = b'Basic realm="semel", charset="UTF-8"'  # for WWW-Authenticate of a 401
    covers_headers = True  # as for StaticHeader

    def __init__(self, secrets: Sequence[bytes], username: bytes) -> None:
        self._digests = [sha256(b64encode(username + b":" + secret)).digest() for secret in secrets]

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = _BASIC.fullmatch(header(headers, b"authorization"))
        if match is None:
            return wrong(headers, b"authorization")
        same = any_same(self._digests, sha256(match[1]).digest())
        return "" if same else "the username or the secret in authorization differs"


# HMAC-SHA256 of the body, in one header: as Genesys Open Messaging writes it, and as GitHub does.
#
# Both use the same header and the same prefix, one with base64 and the other with hex. Neither signs a time, so a copy
# of a request stays valid: the ledger detects it as a duplicate.

SIGNATURE_HEADER = b"x-hub-signature-256"

_BASE64 = re.compile(rb"sha256=([A-Za-z0-9+/]{43}=)")
_HEX = re.compile(rb"sha256=([0-9A-Fa-f]{64})")
_HEX_ALONE = re.compile(rb"(?:sha256=)?([0-9A-Fa-f]{64})")


class GenesysVerifier(ExplainedVerifier):
    """`X-Hub-Signature-256: sha256=<base64>`."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = tuple(secrets)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = _BASE64.fullmatch(header(headers, SIGNATURE_HEADER))
        if match is None:
            return wrong(headers, SIGNATURE_HEADER)
        # Compared as text: four base64 texts decode to the same digest, and the sender writes only one of them.
        same = any_same([b64encode(digest(secret, body, "sha256")) for secret in self._secrets], match[1])
        return "" if same else DIFFERS


class HmacHexVerifier(ExplainedVerifier):
    """`X-Hub-Signature-256: sha256=<hex>`. In a header with another name the prefix is optional."""

    def __init__(self, secrets: Sequence[bytes], name: bytes = SIGNATURE_HEADER) -> None:
        self._secrets = tuple(secrets)
        self._name = name
        self._form = _HEX if name == SIGNATURE_HEADER else _HEX_ALONE

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = self._form.fullmatch(header(headers, self._name))
        if match is None:
            return wrong(headers, self._name)
        received = bytes.fromhex(match[1].decode("ascii"))
        return "" if any_same([digest(secret, body, "sha256") for secret in self._secrets], received) else DIFFERS
