"""How each provider signs its callbacks, written out by hand from what it says of itself (docs/callbacks.md)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.service.verification.sns_sender import NOTIFICATION, TOPIC, posted, sign

from semel.testing.simulator.dialects import twilio

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VONAGE = "the-signature-secret-of-a-vonage-account"
BREVO = "Bearer a-token-that-brevo-was-given"
HMAC = "a-secret-of-somebody's-own-endpoint"


class Signed(NamedTuple):
    """A callback as it goes over the wire."""

    query: str
    headers: Mapping[str, str]
    body: bytes


class Ink(NamedTuple):
    """What somebody signs with; tests change a part of it."""

    at_s: float
    other: bool = False  # with another secret


@cache
def p256(other: bool) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(7_777 + other, ec.SECP256R1())


@cache
def ed25519_key(other: bool) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([other] * 32))


def public_keys() -> dict[str, str]:
    der = p256(False).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    raw = ed25519_key(False).public_key().public_bytes_raw()
    return {"sendgrid": base64.b64encode(der).decode(), "telnyx": base64.b64encode(raw).decode()}


def public_url(name: str) -> str:
    """What providers were told: a proxy stands before us, and calls us by another one."""
    return f"https://semel.example.com/callbacks/{name}"


def _twilio(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    fields = "".join(name + value for name, value in sorted(parse_qsl(body.decode("latin-1"), keep_blank_values=True)))
    text = f"{url}?{query}{fields}" if query else url + fields
    digest = hmac.digest(b"another" if ink.other else twilio.SECRET.encode(), text.encode(), "sha1")
    return {"X-Twilio-Signature": base64.b64encode(digest).decode()}


def _sendgrid(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    at = str(int(ink.at_s))
    signature = p256(ink.other).sign(at.encode() + body, ec.ECDSA(SHA256()))
    return {
        "X-Twilio-Email-Event-Webhook-Signature": base64.b64encode(signature).decode(),
        "X-Twilio-Email-Event-Webhook-Timestamp": at,
    }


def _telnyx(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    at = str(int(ink.at_s))
    signature = ed25519_key(ink.other).sign(at.encode() + b"|" + body)
    return {"Telnyx-Signature-Ed25519": base64.b64encode(signature).decode(), "Telnyx-Timestamp": at}


def _resend(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    at, id = str(int(ink.at_s)), "msg_1"
    key = b"another" if ink.other else base64.b64decode(WHSEC.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")
    return {"Svix-Id": id, "Svix-Timestamp": at, "Svix-Signature": "v1," + base64.b64encode(digest).decode()}


def _vonage(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    def part(said: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()

    claims = {"iat": int(ink.at_s), "jti": "1", "iss": "Vonage", "payload_hash": hashlib.sha256(body).hexdigest()}
    signed = f"{part({'typ': 'JWT', 'alg': 'HS256'})}.{part(claims)}"
    digest = hmac.digest(b"another" if ink.other else VONAGE.encode(), signed.encode(), "sha256")
    return {"Authorization": f"Bearer {signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"}


def _brevo(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    return {"Authorization": "Bearer another" if ink.other else BREVO}


def _hmac(url: str, query: str, body: bytes, ink: Ink) -> dict[str, str]:
    key = b"another" if ink.other else HMAC.encode()
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(key, body, "sha256").hexdigest()}


HANDS: dict[str, Callable[[str, str, bytes, Ink], dict[str, str]]] = {
    "twilio": _twilio,
    "sendgrid": _sendgrid,
    "resend": _resend,
    "telnyx": _telnyx,
    "vonage": _vonage,
    "brevo": _brevo,
    "http": _hmac,
    "http-reference": _hmac,
}


def signed(name: str, content_type: str, body: bytes, query: str = "", ink: Ink | None = None) -> Signed:
    """A callback of this provider, as it sends it."""
    kind = {"Content-Type": content_type}
    with_what = ink or Ink(time.time())
    if name == "ses":  # SNS brings it, in an envelope
        message = {**NOTIFICATION, "TopicArn": TOPIC, "Message": body.decode("utf-8", "replace")}
        envelope = sign(message)
        if with_what.other:
            envelope["Signature"] = base64.b64encode(b"\0" * 256).decode()
        return Signed(query, kind, posted(envelope))
    return Signed(query, {**kind, **HANDS[name](public_url(name), query, body, with_what)}, body)
