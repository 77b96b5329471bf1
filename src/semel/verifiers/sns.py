"""Amazon SNS over HTTP(S): RSA signatures, and a certificate at an address that the message names.

The signature is inside of the body. So a few members are decoded before it is verified, and the whole body is parsed
strictly after that.
How old a message is does not matter: SNS tries again for up to an hour with the same Timestamp, and may hold messages
back to keep to a rate, so no age is safe to refuse. A copy is known again by the ledger. Raw message delivery has to
be off, since SNS does not sign it.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64decode
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Struct

from semel.values.errors import ConfigError, MalformedEvent, VerifierUnavailable
from semel.verifiers.sns_message import canonical, home, read, skim

# The certificates that SNS signs with: fetched when first needed, kept, and never fetched faster than anyone needs.
#
# Who posts to us names the certificate, so that every unsigned message could make us fetch one. Therefore few fetches
# are made in a minute, whatever is asked for, several messages wait for one fetch, and what failed is not tried again
# at once. What is refused by these limits is not called forged: nobody knows.

Fetch = Callable[[str], Awaitable[bytes]]

CERTIFICATES_MAX = 64  # a region has one at a time, and a new one about once a year
CERTIFICATE_MAX_BYTES = 16 * 1024  # they have 2 KB
FETCHES_MAX = 20  # in each FETCHES_WITHIN_S, which bounds also how many run at a time
FETCHES_WITHIN_S = 60.0
FETCH_TIMEOUT_S = 5.0  # SNS waits 15 s for an answer
ABSENT_S = 60.0  # nothing is there, and nothing will come soon
FAILED_S = 2.0  # the network may be back at once; SNS tries again after 20 s

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_KEY_MIN_BITS, _KEY_MAX_BITS = 2048, 8192  # SNS uses 2048; a huge key would make verifying slow
_HASHES: dict[str, type[hashes.SHA1 | hashes.SHA256]] = {"1": hashes.SHA1, "2": hashes.SHA256}


class Certificate:
    """A public key, and the time in which it counts.

    Its chain is not followed: it came over TLS from the one host, and from a path there which only SNS can fill."""

    def __init__(self, certificate: x509.Certificate, key: RSAPublicKey) -> None:
        self._key = key
        self._begins_s = certificate.not_valid_before_utc.timestamp()
        self._ends_s = certificate.not_valid_after_utc.timestamp()

    def signed(self, content: bytes, signature: bytes, version: str, now_s: float) -> bool:
        """True when this certificate, valid now, signed the content."""
        algorithm = _HASHES.get(version)
        if algorithm is None or not self._begins_s <= now_s <= self._ends_s:
            return False
        try:
            self._key.verify(signature, content, PKCS1v15(), algorithm())
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
            return False
        return True


def read_certificate(pem: bytes) -> Certificate | None:
    """The certificate in a file. It has to begin the file: other parsers look for one inside of any answer."""
    if len(pem) > CERTIFICATE_MAX_BYTES or not pem.lstrip().startswith(_BEGIN):
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        if not isinstance(key, RSAPublicKey) or not _KEY_MIN_BITS <= key.key_size <= _KEY_MAX_BITS:
            return None
        return Certificate(certificate, key)
    except Exception:  # of many kinds, and all say that the bytes are no certificate
        return None


class _Miss(Struct, frozen=True):
    """A fetch that brought no certificate."""

    problem: str  # empty: there is none
    began_s: float
    until_s: float  # not tried again before

    def counts(self, now_s: float) -> bool:
        return self.began_s <= now_s < self.until_s  # a clock that was set back ends it too


class Certificates:
    """Certificates by their address. The address is checked by whoever asks."""

    def __init__(self, fetch: Fetch, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._known: OrderedDict[str, Certificate] = OrderedDict()  # the longest unused first
        self._missed: OrderedDict[str, _Miss] = OrderedDict()  # the oldest first
        self._running: dict[str, asyncio.Task[Certificate | _Miss]] = {}
        self._begun_s: deque[float] = deque(maxlen=FETCHES_MAX)

    async def get(self, url: str) -> Certificate | None:
        """None: there is none at this address. Raises VerifierUnavailable when nobody can tell at the moment."""
        if (known := self._known.get(url)) is not None:
            self._known.move_to_end(url)
            return known
        missed = self._missed.get(url)
        found = missed if missed is not None and missed.counts(self._now()) else await self._fetched(url)
        if isinstance(found, Certificate):
            return found
        if found.problem:
            raise VerifierUnavailable(f"the certificate {url} could not be fetched: {found.problem}")
        return None

    async def _fetched(self, url: str) -> Certificate | _Miss:
        """All who wait for an address share one fetch; that one of them goes away does not end it."""
        running = self._running.get(url)
        if running is None:
            self._spend(url)
            running = self._running[url] = asyncio.create_task(self._run(url))
            running.add_done_callback(lambda _: self._running.pop(url, None))
        return await asyncio.shield(running)

    def _spend(self, url: str) -> None:
        now_s = self._now()
        if len(self._begun_s) == FETCHES_MAX and 0 <= now_s - self._begun_s[0] < FETCHES_WITHIN_S:
            raise VerifierUnavailable(
                f"the certificate {url} was not fetched: {FETCHES_MAX} were asked for within {FETCHES_WITHIN_S:.0f} s"
            )
        self._begun_s.append(now_s)

    async def _run(self, url: str) -> Certificate | _Miss:
        problem = ""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                pem = await self._fetch(url)
            if (certificate := read_certificate(pem)) is not None:
                self._known[url] = certificate
                if len(self._known) > CERTIFICATES_MAX:
                    self._known.popitem(last=False)
                return certificate
        except Exception as error:  # whatever the client raises, it says nothing about the message
            problem = f"{type(error).__name__}: {error}"
        now_s = self._now()
        miss = self._missed[url] = _Miss(problem, now_s, now_s + (FAILED_S if problem else ABSENT_S))
        self._missed.move_to_end(url)
        if len(self._missed) > FETCHES_MAX:  # within ABSENT_S there are not more
            self._missed.popitem(last=False)
        return miss


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
