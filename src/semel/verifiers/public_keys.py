"""Signatures with a public key: SendGrid (ECDSA) and Telnyx (Ed25519). Both sign a time together with the body.

The secret in the settings is the public key, as the provider shows it: base64 on one line.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from semel.values.errors import ConfigError
from semel.verifiers.shared_secret import DIFFERS, ExplainedVerifier, header, untimely, wrong

TOLERANCE_S = 300  # in both directions, as in Telnyx's own libraries
RETRIED_S = 86_400  # SendGrid retries for a day; whether a retry has a new signature is undocumented

PublicKey: TypeAlias = EllipticCurvePublicKey | Ed25519PublicKey

_TIMESTAMP = re.compile(rb"[0-9]{1,12}")


class _TimedSignature(ExplainedVerifier):
    """A signature over a time and the body, by one of several keys."""

    signature: ClassVar[bytes]  # names of headers
    time: ClassVar[bytes]
    between = b""  # separator of the time and the body
    oldest_s = TOLERANCE_S

    def __init__(self, keys: Sequence[PublicKey], now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        signature, timestamp = _decoded(header(headers, self.signature)), header(headers, self.time)
        if not signature:
            return wrong(headers, self.signature)
        if _TIMESTAMP.fullmatch(timestamp) is None:
            return wrong(headers, self.time)
        if late := untimely(self.time, self._now() - int(timestamp), self.oldest_s, TOLERANCE_S):
            return late
        signed = timestamp + self.between + body
        return "" if any(_signed(key, signature, signed) for key in self._keys) else DIFFERS


class SendGridVerifier(_TimedSignature):
    """`X-Twilio-Email-Event-Webhook-Signature: <base64>` and `…-Timestamp`, over the time and the body."""

    signature, time = b"x-twilio-email-event-webhook-signature", b"x-twilio-email-event-webhook-timestamp"
    oldest_s = RETRIED_S + TOLERANCE_S

    def __init__(self, keys: Sequence[bytes], now: Callable[[], float]) -> None:
        super().__init__([_p256(key, number) for number, key in enumerate(keys, 1)], now)


class TelnyxVerifier(_TimedSignature):
    """`Telnyx-Signature-Ed25519: <base64>` and `Telnyx-Timestamp`, over the time, "|" and the body."""

    signature, time = b"telnyx-signature-ed25519", b"telnyx-timestamp"
    between = b"|"

    def __init__(self, keys: Sequence[bytes], now: Callable[[], float]) -> None:
        super().__init__([_ed25519(key, number) for number, key in enumerate(keys, 1)], now)


def _signed(key: PublicKey, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            key.verify(signature, signed, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _decoded(signature: bytes) -> bytes:
    """Decode base64; empty if it is invalid."""
    try:
        return b64decode(signature, validate=True)
    except binascii.Error:
        return b""


def _p256(secret: bytes, number: int) -> EllipticCurvePublicKey:
    try:
        key = load_der_public_key(b64decode(secret, validate=True))
    except Exception:  # the library raises many kinds for an invalid key
        key = None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ConfigError(
            f"verify: secret {number} of scheme 'sendgrid': expected the verification key of the event webhook, "
            "as SendGrid shows it: MFkwEwYH… on one line"
        )
    return key


def _ed25519(secret: bytes, number: int) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(b64decode(secret, validate=True))
    except ValueError:  # also for invalid base64
        raise ConfigError(
            f"verify: secret {number} of scheme 'telnyx': expected the account's public key, "
            "as Telnyx shows it: 44 characters of base64"
        ) from None
