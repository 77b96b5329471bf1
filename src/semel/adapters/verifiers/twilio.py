"""Twilio: HMAC-SHA1 over the URL that it called, and the fields of the form.

The URL is part of what is signed, so that its query may be believed, which has our id. It is the one that Twilio was
told, and not the one that arrives here behind a proxy: whoever configures us says which. The names and values of a form
are written one after the other without anything between them; of a body that is no form the query has the digest.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import digest
from urllib.parse import parse_qsl, urlsplit

from semel.adapters.verifiers.comparing import any_same, header
from semel.values.errors import ConfigError

QUERY = b":query"
"""Where whoever asks puts the query of the URL, as it came. No header can have this name."""
QUERY_MAX_BYTES = 4096
FIELDS_MAX = 200  # a status callback has about twenty

_SIGNATURE = re.compile(rb"[A-Za-z0-9+/]{27}=")
_BODY_DIGEST = re.compile(rb"(?:^|&)bodySHA256=([0-9a-f]{64})(?=&|$)")
_PORTS = {"https": 443, "http": 80}


class Twilio:
    """`X-Twilio-Signature: <base64>`."""

    covers_headers = False
    covers_query = True

    def __init__(self, secrets: Sequence[bytes], url: str) -> None:
        """`url`: what Twilio was told, without the query. It signs a usual port, or leaves it out: both are taken."""
        self._secrets = tuple(secrets)
        self._urls = _spellings(url)

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        given, query = header(headers, b"x-twilio-signature"), headers.get(QUERY, b"")
        if _SIGNATURE.fullmatch(given) is None or len(query) > QUERY_MAX_BYTES:
            return False
        said = _said(query, body)
        if said is None:
            return False
        asked = b"?" + query if query else b""
        expected = [
            b64encode(digest(secret, url + asked + said, "sha1")) for secret in self._secrets for url in self._urls
        ]
        return any_same(expected, given)


def _said(query: bytes, body: bytes) -> bytes | None:
    """What stands behind the URL in the signed text; None: this body is not signed."""
    if (found := _BODY_DIGEST.search(query)) is not None:
        return b"" if any_same([sha256(body).hexdigest().encode()], found[1]) else None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        return None
    if len(dict(fields)) < len(fields):  # nobody would know which one of them counts
        return None
    return "".join(name + value for name, value in sorted(fields)).encode()


def _spellings(url: str) -> list[bytes]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _PORTS or not parts.hostname or not url.isascii() or parts.query or parts.fragment:
        raise ConfigError(
            "verify: scheme 'twilio' needs a `url`: the one that Twilio was told, such as "
            "https://semel.example.com/callbacks/twilio, without what is added behind a question mark"
        )
    usual = _PORTS[parts.scheme]
    others = {None: f"{parts.netloc}:{usual}", usual: parts.netloc.removesuffix(f":{usual}")}
    spelt = [url] if port not in others else [url, parts._replace(netloc=others[port]).geturl()]
    return [one.encode() for one in spelt]
