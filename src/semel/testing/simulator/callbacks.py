"""Status callbacks of a provider: sent once, twice, late, out of order or never, and signed as the provider signs."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args
from urllib.parse import parse_qsl, urldefrag, urlsplit

import msgspec
from msgspec import Struct

from semel.testing.simulator import twilio
from semel.testing.simulator.dialect import Dialect
from semel.testing.simulator.state import SimulatedMessage

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Mode: TypeAlias = Literal["never", "once", "twice", "late", "out of order"]
MODES: tuple[str, ...] = get_args(Mode)
Ending: TypeAlias = Literal["delivered", "undelivered"]
PATIENCE_S = 30.0


class CallbackPlan(Struct, frozen=True):
    """The plan of a provider's callbacks."""

    mode: Mode
    url: str = ""  # if the request has no callback URL
    late_s: float = 0.5
    ending: Ending = "delivered"


class SentCallback(Struct, frozen=True):
    """One callback, its status word, and the HTTP status of the answer; 0 if there was none."""

    provider: str
    reference: str
    word: str
    status: int


class CallbackSender:
    def __init__(self) -> None:
        self.plans: dict[str, CallbackPlan] = {}
        self.called: list[SentCallback] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, dialect: Dialect, message: SimulatedMessage, reference: str) -> None:
        plan = self.plans.get(dialect.name)
        if plan is None or plan.mode == "never" or not (message.callback or plan.url):
            return
        task = asyncio.create_task(self._send(plan, dialect, message, reference))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, plan: CallbackPlan, dialect: Dialect, message: SimulatedMessage, reference: str) -> None:
        statuses = ["accepted", plan.ending]
        match plan.mode:
            case "late":
                await asyncio.sleep(plan.late_s)
            case "twice":
                statuses = [status for status in statuses for _ in range(2)]
            case "out of order":
                statuses.reverse()
        for status in statuses:
            callback = dialect.callback(message, reference, status)
            if callback is None:
                return
            url, (content_type, body) = message.callback or plan.url, callback
            headers = {"Content-Type": content_type, **signature(dialect.name, url, body)}
            answer = await _post(url, headers, body)
            self.called.append(SentCallback(dialect.name, reference, status, answer))


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    """Post a callback. Returns the HTTP status, or 0 without an answer."""
    parts = urlsplit(url)
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    usual = {"Host": parts.netloc, "Content-Length": str(len(body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**usual, **headers}.items())
    head = f"POST {target} HTTP/1.1\r\n{lines}\r\n"
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(head.encode("latin-1") + body)
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
        return int(line.split(b" ")[1])
    except (OSError, TimeoutError, ValueError, IndexError):
        return 0


# Signatures of callbacks, written by hand from each provider's documentation (docs/callbacks.md), with public secrets
# that the same page lists. SES does not sign: SNS delivers its events with a certificate of Amazon's, which a
# simulator cannot have.

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VONAGE = "the-signature-secret-of-a-vonage-account"
BREVO = "Bearer a-token-that-brevo-was-given"
HMAC = "the-secret-of-your-own-endpoint"


class SigningInput(NamedTuple):
    """The inputs of a signature. Tests change one of them."""

    at_s: float
    other: bool = False  # with another secret


@cache
def p256(other: bool) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # imported on use: most signatures do not need it

    return ec.derive_private_key(7_777 + other, ec.SECP256R1())


@cache
def ed25519_key(other: bool) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return ed25519.Ed25519PrivateKey.from_private_bytes(bytes([other] * 32))


def public_keys() -> dict[str, str]:
    """The public keys as the providers show them, for `secrets`."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = p256(False).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    raw = ed25519_key(False).public_key().public_bytes_raw()
    return {"sendgrid": _base64(der), "telnyx": _base64(raw)}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _twilio(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    fields = "".join(name + value for name, value in sorted(parse_qsl(body.decode("latin-1"), keep_blank_values=True)))
    digest = hmac.digest(b"another" if ink.other else twilio.SECRET.encode(), (url + fields).encode(), "sha1")
    return {"X-Twilio-Signature": _base64(digest)}


def _sendgrid(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    at = str(int(ink.at_s))
    return {
        "X-Twilio-Email-Event-Webhook-Signature": _base64(p256(ink.other).sign(at.encode() + body, ECDSA(SHA256()))),
        "X-Twilio-Email-Event-Webhook-Timestamp": at,
    }


def _telnyx(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    at = str(int(ink.at_s))
    signature = ed25519_key(ink.other).sign(at.encode() + b"|" + body)
    return {"Telnyx-Signature-Ed25519": _base64(signature), "Telnyx-Timestamp": at}


def _resend(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    at, id = str(int(ink.at_s)), "msg_1"
    key = b"another" if ink.other else base64.b64decode(WHSEC.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{at}.".encode() + body, "sha256")
    return {"Svix-Id": id, "Svix-Timestamp": at, "Svix-Signature": "v1," + _base64(digest)}


def _vonage(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    def part(claims: Any) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=").decode()

    claims = {"iat": int(ink.at_s), "jti": "1", "iss": "Vonage", "payload_hash": hashlib.sha256(body).hexdigest()}
    signed = f"{part({'typ': 'JWT', 'alg': 'HS256'})}.{part(claims)}"
    digest = hmac.digest(b"another" if ink.other else VONAGE.encode(), signed.encode(), "sha256")
    return {"Authorization": f"Bearer {signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"}


def _brevo(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    return {"Authorization": "Bearer another" if ink.other else BREVO}


def _hmac(url: str, body: bytes, ink: SigningInput) -> dict[str, str]:
    key = b"another" if ink.other else HMAC.encode()
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(key, body, "sha256").hexdigest()}


SIGNERS: dict[str, Callable[[str, bytes, SigningInput], dict[str, str]]] = {
    "twilio": _twilio,
    "sendgrid": _sendgrid,
    "resend": _resend,
    "telnyx": _telnyx,
    "vonage": _vonage,
    "brevo": _brevo,
    "http": _hmac,
}


def signature(kind: str, url: str, body: bytes, ink: SigningInput | None = None) -> Mapping[str, str]:
    """The signature headers of a callback to `url`; empty for a provider that does not sign. The fragment of a URL
    is not sent and not signed."""
    sign = SIGNERS.get(kind)
    return sign(urldefrag(url).url, body, ink or SigningInput(time.time())) if sign else {}
