"""Vonage: a JSON Web Token in the Authorization header, signed with HMAC-SHA256, with a digest of the body."""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from hmac import digest

import msgspec
from msgspec import Struct

from semel.verifiers.shared_secret import ExplainedVerifier, any_same, header, untimely, wrong

TOLERANCE_S = 300
RETRIED_S = 86_400  # Vonage retries for a day; whether a retry has a new signature is undocumented

_TOKEN = re.compile(rb"[Bb]earer +([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")


class _Head(Struct):
    alg: str


class _Claims(Struct):
    iat: float
    payload_hash: str  # without it, nothing would bind the token to this body
    exp: float | None = None


_head = msgspec.json.Decoder(_Head).decode
_claims = msgspec.json.Decoder(_Claims).decode


class VonageVerifier(ExplainedVerifier):
    """`Authorization: Bearer <token>`."""

    def __init__(self, secrets: Sequence[bytes], now: Callable[[], float]) -> None:
        self._secrets = tuple(secrets)
        self._now = now

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        token = _TOKEN.fullmatch(header(headers, b"authorization"))
        if token is None:
            return wrong(headers, b"authorization")
        signed = token[1] + b"." + token[2]
        expected = [urlsafe_b64encode(digest(secret, signed, "sha256")).rstrip(b"=") for secret in self._secrets]
        if not any_same(expected, token[3]):
            return "the signature of the token differs: another secret"
        try:  # only a genuine token is parsed
            head, claims = _head(_decoded(token[1])), _claims(_decoded(token[2]))
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, RecursionError):
            return "the token lacks a claim, or cannot be parsed"
        if head.alg != "HS256":
            return "the token has another algorithm than HS256"
        now_s = self._now()
        if claims.exp is not None and now_s > claims.exp + TOLERANCE_S:
            return "the token has expired"
        if not -TOLERANCE_S <= now_s - claims.iat <= RETRIED_S + TOLERANCE_S:  # also if iat is NaN
            return untimely(b"iat", now_s - claims.iat, RETRIED_S + TOLERANCE_S, TOLERANCE_S) or "iat is not a time"
        body_digest = claims.payload_hash.lower().encode("utf-8", "replace")
        same = any_same([sha256(body).hexdigest().encode()], body_digest)
        return "" if same else "the token belongs to another body"


def _decoded(part: bytes) -> bytes:
    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
