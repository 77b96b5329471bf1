"""Vonage: a JSON Web Token in the Authorization header, by HMAC-SHA256, with the digest of the body in it."""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from hmac import digest

import msgspec
from msgspec import Struct

from semel.verifiers.shared_secret import any_same, header, untimely, wrong

TOLERANCE_S = 300
RETRIED_S = 86_400  # it comes again for a day, and does not say whether it signs anew

_TOKEN = re.compile(rb"[Bb]earer +([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]{43})")


class _Head(Struct):
    alg: str


class _Claims(Struct):
    iat: float
    payload_hash: str  # without it, nothing would bind the token to this body
    exp: float | None = None


_head = msgspec.json.Decoder(_Head).decode
_claims = msgspec.json.Decoder(_Claims).decode


class Vonage:
    """`Authorization: Bearer <token>`."""

    covers_headers = False

    def __init__(self, secrets: Sequence[bytes], now: Callable[[], float]) -> None:
        self._secrets = tuple(secrets)
        self._now = now

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return not await self.objection(headers, body)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        found = _TOKEN.fullmatch(header(headers, b"authorization"))
        if found is None:
            return wrong(headers, b"authorization")
        signed = found[1] + b"." + found[2]
        expected = [urlsafe_b64encode(digest(secret, signed, "sha256")).rstrip(b"=") for secret in self._secrets]
        if not any_same(expected, found[3]):
            return "the signature of the token differs: another secret"
        try:  # the token is genuine: now it may be read
            head, claims = _head(_decoded(found[1])), _claims(_decoded(found[2]))
        except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, RecursionError):
            return "the token lacks a claim, or cannot be read"
        if head.alg != "HS256":
            return "the token has another algorithm than HS256"
        return self._untimely(claims) or ("" if _is_about(claims, body) else "the token is about another body")

    def _untimely(self, claims: _Claims) -> str:
        now_s = self._now()
        if claims.exp is not None and now_s > claims.exp + TOLERANCE_S:
            return "the token has expired"
        if not -TOLERANCE_S <= now_s - claims.iat <= RETRIED_S + TOLERANCE_S:  # also what is no number
            return untimely(b"iat", now_s - claims.iat, RETRIED_S + TOLERANCE_S, TOLERANCE_S) or "iat is no time"
        return ""


def _is_about(claims: _Claims, body: bytes) -> bool:
    said = claims.payload_hash.lower().encode("utf-8", "replace")
    return any_same([sha256(body).hexdigest().encode()], said)


def _decoded(part: bytes) -> bytes:
    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))
