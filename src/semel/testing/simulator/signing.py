"""How each provider signs its callbacks, written out by hand from what it says of itself (docs/callbacks.md), with
secrets that everybody knows: whoever hears the simulator is told them by that page.

SES does not sign: SNS brings its events, by a certificate of Amazon's, which nobody here can have.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urldefrag

import msgspec

from semel.testing.simulator.dialects import twilio

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VONAGE = "the-signature-secret-of-a-vonage-account"
BREVO = "Bearer a-token-that-brevo-was-given"
HMAC = "the-secret-of-your-own-endpoint"


class Ink(NamedTuple):
    """What somebody signs with; tests change a part of it."""

    at_s: float
    other: bool = False  # with another secret


@cache
def p256(other: bool) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # when it is needed: most callbacks are signed without

    return ec.derive_private_key(7_777 + other, ec.SECP256R1())


@cache
def ed25519_key(other: bool) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([other] * 32))


def public_keys() -> dict[str, str]:
    """As the providers show them: what is put into `secrets`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = p256(False).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    raw = ed25519_key(False).public_key().public_bytes_raw()
    return {"sendgrid": _base64(der), "telnyx": _base64(raw)}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _twilio(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    fields = "".join(name + value for name, value in sorted(parse_qsl(body.decode("latin-1"), keep_blank_values=True)))
    digest = hmac.digest(b"another" if ink.other else twilio.SECRET.encode(), (url + fields).encode(), "sha1")
    return {"X-Twilio-Signature": _base64(digest)}


def _sendgrid(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    at = str(int(ink.at_s))
    return {
        "X-Twilio-Email-Event-Webhook-Signature": _base64(p256(ink.other).sign(at.encode() + body, ECDSA(SHA256()))),
        "X-Twilio-Email-Event-Webhook-Timestamp": at,
    }


def _telnyx(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    at = str(int(ink.at_s))
    signature = ed25519_key(ink.other).sign(at.encode() + b"|" + body)
    return {"Telnyx-Signature-Ed25519": _base64(signature), "Telnyx-Timestamp": at}


def _resend(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    at, id = str(int(ink.at_s)), "msg_1"
    key = b"another" if ink.other else base64.b64decode(WHSEC.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")
    return {"Svix-Id": id, "Svix-Timestamp": at, "Svix-Signature": "v1," + _base64(digest)}


def _vonage(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    def part(said: Any) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(said)).rstrip(b"=").decode()

    claims = {"iat": int(ink.at_s), "jti": "1", "iss": "Vonage", "payload_hash": hashlib.sha256(body).hexdigest()}
    signed = f"{part({'typ': 'JWT', 'alg': 'HS256'})}.{part(claims)}"
    digest = hmac.digest(b"another" if ink.other else VONAGE.encode(), signed.encode(), "sha256")
    return {"Authorization": f"Bearer {signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"}


def _brevo(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    return {"Authorization": "Bearer another" if ink.other else BREVO}


def _hmac(url: str, body: bytes, ink: Ink) -> dict[str, str]:
    key = b"another" if ink.other else HMAC.encode()
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(key, body, "sha256").hexdigest()}


HANDS: dict[str, Callable[[str, bytes, Ink], dict[str, str]]] = {
    "twilio": _twilio,
    "sendgrid": _sendgrid,
    "resend": _resend,
    "telnyx": _telnyx,
    "vonage": _vonage,
    "brevo": _brevo,
    "http": _hmac,
}


def signature(kind: str, url: str, body: bytes, ink: Ink | None = None) -> Mapping[str, str]:
    """The headers by which a provider of this kind proves that it calls `url`; none where it does not. What stands
    behind a # is for the caller, and no part of the URL that is called."""
    hand = HANDS.get(kind)
    return hand(urldefrag(url).url, body, ink or Ink(time.time())) if hand else {}
