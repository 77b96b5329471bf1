"""Twilio: HMAC-SHA1 over the URL that it called, and the fields of the form.

The URL is part of what is signed, so that its query may be believed, which has our id. It is the one that Twilio was
told, and not the one that arrives here behind a proxy: whoever configures us says which. The names and values of a form
are written one after the other without anything between them; of a body that is no form the query has the digest.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from hmac import digest
from urllib.parse import parse_qsl, urlsplit

from semel.values.errors import ConfigError
from semel.verifiers.shared_secret import any_same, header, wrong

QUERY = b":query"
"""Where whoever asks puts the query of the URL, as it came. No header can have this name."""
QUERY_MAX_BYTES = 4096
FIELDS_MAX = 200  # a status callback has about twenty

_HEADER = b"x-twilio-signature"
_HOST = re.compile(rb"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?")
_SIGNATURE = re.compile(rb"[A-Za-z0-9+/]{27}=")
_BODY_DIGEST = re.compile(rb"(?:^|&)bodySHA256=([0-9a-f]{64})(?=&|$)")
_PORTS = {"https": 443, "http": 80}


class Twilio:
    """`X-Twilio-Signature: <base64>`."""

    covers_headers = False
    covers_query = True

    def __init__(self, secrets: Sequence[bytes], url: str) -> None:
        """`url`: what Twilio was told, without the query. As its libraries do, we try it with the port and without."""
        self._secrets = tuple(secrets)
        self._urls = _spellings(url)

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        given, query = header(headers, _HEADER), headers.get(QUERY, b"")
        return not _malformed(headers, query) and self._has_signed(self._urls, given, _said(query, body))

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        given, query = header(headers, _HEADER), headers.get(QUERY, b"")
        if malformed := _malformed(headers, query):
            return malformed
        said = _said(query, body)  # once, for all URLs: reading a form takes longer than signing it
        if self._has_signed(self._urls, given, said):
            return ""
        if said is None:
            return "the body is no form, and the query has no digest of it"
        for url in _others(self._urls[0], header(headers, b"host"), header(headers, b"x-forwarded-host")):
            if self._has_signed([url], given, said):  # so the secret is right, and this is what Twilio was told
                return f"the signature is that of {_shown(url)}: `url` says otherwise"
        return "the signature differs: another secret, another `url`, or a proxy that changed the query or the body"

    def _has_signed(self, urls: Sequence[bytes], given: bytes, said: bytes | None) -> bool:
        if said is None:
            return False
        return any_same((b64encode(digest(key, url + said, "sha1")) for key in self._secrets for url in urls), given)


def _malformed(headers: Mapping[bytes, bytes], query: bytes) -> str:
    if _SIGNATURE.fullmatch(header(headers, _HEADER)) is None:
        return wrong(headers, _HEADER)
    return f"the query has more than {QUERY_MAX_BYTES:,} bytes" if len(query) > QUERY_MAX_BYTES else ""


def _shown(url: bytes) -> str:
    """Without a name and a password, which it may have before its host."""
    parts = urlsplit(url.decode())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _others(url: bytes, *hosts: bytes) -> Iterator[bytes]:
    """What Twilio may have been told instead: by the names that this request has for us, with a slash or without."""
    parts = urlsplit(url.decode())
    for netloc in (parts.netloc, *(host.decode("latin-1") for host in hosts if _HOST.fullmatch(host))):
        for scheme in _PORTS:
            other = parts._replace(scheme=scheme, netloc=netloc).geturl().rstrip("/")
            yield from (other.encode(), other.encode() + b"/")


def _said(query: bytes, body: bytes) -> bytes | None:
    """What stands behind the URL in the signed text; None: this body is not signed."""
    asked = b"?" + query if query else b""
    if (found := _BODY_DIGEST.search(query)) is not None:
        return asked if any_same([sha256(body).hexdigest().encode()], found[1]) else None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        return None
    if len(dict(fields)) < len(fields):  # nobody would know which one of them counts
        return None
    return asked + "".join(name + value for name, value in sorted(fields)).encode()


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
    other = f"{parts.netloc}:{_PORTS[parts.scheme]}" if port is None else parts.netloc.removesuffix(f":{port}")
    return [url.encode(), parts._replace(netloc=other).geturl().encode()]
