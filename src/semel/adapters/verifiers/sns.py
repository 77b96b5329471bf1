"""Amazon SNS over HTTP(S): RSA signatures, and a certificate at an address that the message names.

The signature is inside of the body. So a few members are decoded before it is verified, and the whole body is parsed
strictly after that.
How old a message is does not matter: SNS tries again for up to an hour with the same Timestamp, and may hold messages
back to keep to a rate, so no age is safe to refuse. A copy is known again by the ledger. Raw message delivery has to
be off, since SNS does not sign it.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence

from semel.adapters.verifiers.certificates import Certificates, Fetch
from semel.adapters.verifiers.sns_message import canonical, home, read, skim
from semel.values.errors import ConfigError, MalformedEvent

SIGNATURE_MAX_CHARS = 1368  # 1024 bytes, as of the longest key that is taken

# A file's name alone, nothing to ask by: the API on the same host answers a query with texts of its caller's choice.
_FILE = re.compile(r"[A-Za-z0-9_-]{1,100}\.pem")


class Sns:
    """Messages of these topics, signed by the SNS of their region."""

    covers_headers = False

    def __init__(self, topics: Sequence[str], fetch: Fetch, now: Callable[[], float]) -> None:
        self._homes: dict[str, str] = {}
        for topic in topics:
            address = home(topic)
            if address is None:
                raise ConfigError(
                    f"verify: topic {topic!r}: expected the whole ARN of an SNS topic, "
                    "such as arn:aws:sns:eu-central-1:123456789012:my-topic"
                )
            self._homes[topic] = address
        self._certificates = Certificates(fetch, now)
        self._now = now

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        """Raises VerifierUnavailable when the certificate could not be had: that is not the sender's doing."""
        return not await self.objection(headers, body)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        try:
            fields = skim(body)
        except MalformedEvent:
            return "no message of SNS (is raw message delivery off?)"
        address = self._homes.get(fields["TopicArn"])
        url = fields.get("SigningCertURL", "")
        signature = _decoded(fields.get("Signature", ""))
        version = fields.get("SignatureVersion", "")
        if address is None:
            return "it is of a topic that `topics` does not name"
        if not signature or version not in ("1", "2"):
            return "Signature or SignatureVersion is missing, or has another form"
        if not url.startswith(address) or not _FILE.fullmatch(url, len(address)):
            return "SigningCertURL does not lead to the SNS of its region"
        certificate = await self._certificates.get(url)
        if certificate is None:
            return "there is no certificate at its SigningCertURL"
        if not certificate.signed(canonical(fields), signature, version, self._now()):
            return "the signature differs, or its certificate is not valid now"
        try:
            read(body)
        except MalformedEvent as error:
            return str(error)
        return ""


def _decoded(signature: str) -> bytes:
    """Empty when it is no base64, or too much of it."""
    if len(signature) > SIGNATURE_MAX_CHARS:
        return b""
    try:
        return b64decode(signature, validate=True)
    except ValueError:
        return b""
