"""Amazon SNS over HTTP(S): RSA signatures, with a certificate at a URL that the message names.

The signature is a member of the body. So a few members are decoded before the verification, and the whole body is
parsed strictly after it. The age of a message is not checked: SNS retries for up to an hour with the same Timestamp,
and may delay messages to limit their rate. The ledger detects a copy as a duplicate. Raw message delivery must be off,
because SNS does not sign it.
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
from semel.verifiers.shared_secret import ExplainedVerifier
from semel.verifiers.sns_message import canonical, read, skim, sns_origin

# The certificates of SNS are fetched when first needed and then kept.
#
# The message names its certificate, so every unsigned message could cause a fetch. Therefore the fetches per minute are
# limited, concurrent messages share one fetch, and a failed fetch is not repeated at once. A message that exceeds these
# limits is not refused as forged: its verification is unavailable.

Fetch = Callable[[str], Awaitable[bytes]]

CERTIFICATES_MAX = 64  # a region uses one at a time, and a new one about once a year
CERTIFICATE_MAX_BYTES = 16 * 1024  # they have 2 KB
FETCHES_MAX = 20  # per FETCHES_WITHIN_S; this also limits concurrent fetches
FETCHES_WITHIN_S = 60.0
FETCH_TIMEOUT_S = 5.0  # SNS waits 15 s for an answer
ABSENT_S = 60.0  # before a URL without a certificate is fetched again
FAILED_S = 2.0  # before a failed fetch is repeated: the network may recover; SNS retries after 20 s

_BEGIN = b"-----BEGIN CERTIFICATE-----"
_KEY_MIN_BITS, _KEY_MAX_BITS = 2048, 8192  # SNS uses 2048; a huge key would make verifying slow
_HASHES: dict[str, type[hashes.SHA1 | hashes.SHA256]] = {"1": hashes.SHA1, "2": hashes.SHA256}


class Certificate:
    """A public key and its validity period.

    Its chain is not verified: it was fetched over TLS from the SNS host, from a path that only SNS can write.
    """

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
    """Parse a certificate. It must be at the start of the file; the library would find one anywhere in a response."""
    if len(pem) > CERTIFICATE_MAX_BYTES or not pem.lstrip().startswith(_BEGIN):
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
        if not isinstance(key, RSAPublicKey) or not _KEY_MIN_BITS <= key.key_size <= _KEY_MAX_BITS:
            return None
        return Certificate(certificate, key)
    except Exception:  # the library raises many kinds for an invalid certificate
        return None


class _FailedFetch(Struct, frozen=True):
    """A fetch that returned no certificate."""

    problem: str  # empty: there is no certificate at the URL
    failed_at_s: float
    until_s: float  # not repeated before

    def counts(self, now_s: float) -> bool:
        return self.failed_at_s <= now_s < self.until_s  # a clock that was set back ends it too


class Certificates:
    """Certificates by URL. The caller checks the URL."""

    def __init__(self, fetch: Fetch, now: Callable[[], float]) -> None:
        self._fetch = fetch
        self._now = now
        self._known: OrderedDict[str, Certificate] = OrderedDict()  # least recently used first
        self._failed: OrderedDict[str, _FailedFetch] = OrderedDict()  # oldest first
        self._running: dict[str, asyncio.Task[Certificate | _FailedFetch]] = {}
        self._begun_s: deque[float] = deque(maxlen=FETCHES_MAX)

    async def get(self, url: str) -> Certificate | None:
        """Return the certificate at a URL, or None if there is none. Raises VerifierUnavailable."""
        if (known := self._known.get(url)) is not None:
            self._known.move_to_end(url)
            return known
        failure = self._failed.get(url)
        result = failure if failure is not None and failure.counts(self._now()) else await self._fetch_shared(url)
        if isinstance(result, Certificate):
            return result
        if result.problem:
            raise VerifierUnavailable(f"the certificate {url} could not be fetched: {result.problem}")
        return None

    async def _fetch_shared(self, url: str) -> Certificate | _FailedFetch:
        """Fetch once for all concurrent callers. The cancellation of one caller does not end the fetch."""
        running = self._running.get(url)
        if running is None:
            now_s = self._now()
            if len(self._begun_s) == FETCHES_MAX and 0 <= now_s - self._begun_s[0] < FETCHES_WITHIN_S:
                raise VerifierUnavailable(
                    f"the certificate {url} was not fetched: the limit is {FETCHES_MAX} fetches in "
                    f"{FETCHES_WITHIN_S:.0f} s"
                )
            self._begun_s.append(now_s)
            running = self._running[url] = asyncio.create_task(self._run(url))
            running.add_done_callback(lambda _: self._running.pop(url, None))
        return await asyncio.shield(running)

    async def _run(self, url: str) -> Certificate | _FailedFetch:
        problem = ""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                pem = await self._fetch(url)
            if (certificate := read_certificate(pem)) is not None:
                self._known[url] = certificate
                if len(self._known) > CERTIFICATES_MAX:
                    self._known.popitem(last=False)
                return certificate
        except Exception as error:  # any error of the client: the message may still be genuine
            problem = f"{type(error).__name__}: {error}"
        now_s = self._now()
        failure = self._failed[url] = _FailedFetch(problem, now_s, now_s + (FAILED_S if problem else ABSENT_S))
        self._failed.move_to_end(url)
        if len(self._failed) > FETCHES_MAX:  # older ones are past ABSENT_S
            self._failed.popitem(last=False)
        return failure


SIGNATURE_MAX_CHARS = 1368  # 1024 bytes, for the longest accepted key

# A file name without a query: the API on the same host answers a query with text that its caller chooses.
_FILE = re.compile(r"[A-Za-z0-9_-]{1,100}\.pem")


class SnsVerifier(ExplainedVerifier):
    """Messages of these topics, signed by SNS of their region."""

    def __init__(self, topics: Sequence[str], fetch: Fetch, now: Callable[[], float]) -> None:
        self._origins: dict[str, str] = {}
        for topic in topics:
            origin = sns_origin(topic)
            if origin is None:
                raise ConfigError(
                    f"verify: topic {topic!r}: expected the full ARN of an SNS topic, "
                    "for example arn:aws:sns:eu-central-1:123456789012:my-topic"
                )
            self._origins[topic] = origin
        self._certificates = Certificates(fetch, now)
        self._now = now

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        """Raises VerifierUnavailable if the certificate cannot be fetched: the message may be genuine."""
        try:
            fields = skim(body)
        except MalformedEvent:
            return "not a message of SNS (raw message delivery must be off)"
        origin = self._origins.get(fields["TopicArn"])
        url = fields.get("SigningCertURL", "")
        signature = _decoded(fields.get("Signature", ""))
        version = fields.get("SignatureVersion", "")
        if origin is None:
            return "it belongs to a topic that `topics` does not list"
        if not signature or version not in ("1", "2"):
            return "Signature or SignatureVersion is missing, or has the wrong form"
        if not url.startswith(origin) or not _FILE.fullmatch(url, len(origin)):
            return "SigningCertURL is not a URL of SNS in the topic's region"
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
    """Decode base64; empty if it is invalid or too long."""
    if len(signature) > SIGNATURE_MAX_CHARS:
        return b""
    try:
        return b64decode(signature, validate=True)
    except ValueError:
        return b""
