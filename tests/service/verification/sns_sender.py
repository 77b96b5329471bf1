"""A stand-in for Amazon SNS: it signs with a certificate of its own and hands that out when asked.

What it signs is written out here by hand and not taken from the code under test.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from semel.ports import Verifier
from semel.verifiers import verifier

NOW = 1_800_000_000.0  # 2027-01-15
TOPIC = "arn:aws:sns:us-west-2:123456789012:MyTopic"
CERTIFICATE_URL = "https://sns.us-west-2.amazonaws.com/SimpleNotificationService-f3ecfb7224c7233fe7bb5f59f96de52f.pem"
CONFIRM_URL = f"https://sns.us-west-2.amazonaws.com/?Action=ConfirmSubscription&TopicArn={TOPIC}&Token=2336412f37fb687f"

NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
    "TopicArn": TOPIC,
    "Message": '{"id":"e-1","type":"interaction.created"}',
    "Timestamp": "2012-05-02T00:54:06.655Z",
}
CONFIRMATION = {
    "Type": "SubscriptionConfirmation",
    "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b",
    "Token": "2336412f37fb687f",
    "TopicArn": TOPIC,
    "Message": "You have chosen to subscribe to the topic.",
    "SubscribeURL": CONFIRM_URL,
    "Timestamp": "2012-04-26T20:45:04.751Z",
}


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


def certificate(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None,
    begins_s: float = NOW - 86_400,
    ends_s: float = NOW + 86_400,
) -> bytes:
    key = key or rsa_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(epoch + timedelta(seconds=begins_s))
    builder = builder.not_valid_after(epoch + timedelta(seconds=ends_s))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def signed_text(message: dict[str, str]) -> str:
    if message["Type"] == "Notification":
        subject = f"Subject\n{message['Subject']}\n" if "Subject" in message else ""
        return (
            f"Message\n{message['Message']}\nMessageId\n{message['MessageId']}\n{subject}"
            f"Timestamp\n{message['Timestamp']}\nTopicArn\n{message['TopicArn']}\nType\nNotification\n"
        )
    return (
        f"Message\n{message['Message']}\nMessageId\n{message['MessageId']}\nSubscribeURL\n{message['SubscribeURL']}\n"
        f"Timestamp\n{message['Timestamp']}\nToken\n{message['Token']}\nTopicArn\n{message['TopicArn']}\n"
        f"Type\n{message['Type']}\n"
    )


def sign(message: dict[str, str], version: str = "2", key: rsa.RSAPrivateKey | None = None) -> dict[str, Any]:
    algorithm = hashes.SHA1() if version == "1" else hashes.SHA256()
    signature = (key or rsa_key()).sign(signed_text(message).encode(), padding.PKCS1v15(), algorithm)
    return {
        "SigningCertURL": CERTIFICATE_URL,
        **message,
        "SignatureVersion": version,
        "Signature": b64encode(signature).decode(),
    }


def posted(message: dict[str, Any]) -> bytes:
    """Spelled as SNS does: with spaces and line breaks."""
    return json.dumps(message, indent=2, separators=(",", " : ")).encode()


class Host:
    """Hands out certificates, and remembers who asked for what."""

    def __init__(self, pem: bytes | Exception | None = None) -> None:
        self.answer: bytes | Exception = certificate() if pem is None else pem
        self.asked: list[str] = []
        self.gate: asyncio.Event | None = None  # answers only when it is open

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def sns(host: Host, *topics: str, now: Callable[[], float] = lambda: NOW) -> Verifier:
    return verifier("sns", secrets=[], topics=topics or (TOPIC,), now=now, fetch=host.fetch)
