"""Twilio: HMAC-SHA1 over the called URL and the fields of the form.

The signature covers the URL, so the query, which holds our id, can be trusted. Twilio signs the URL that it was
configured with, which a proxy may have changed on the way: so the URL is a setting. The signed text lists the names and
values of the form without separators. For any other body, the query holds a digest of it.
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
"""Name under which the caller passes the unchanged query of the URL. No header can have this name."""
QUERY_MAX_BYTES = 4096
FIELDS_MAX = 200  # a status callback has about twenty

_HEADER = b"x-twilio-signature"
_HOST = re.compile(rb"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?")
_SIGNATURE = re.compile(rb"[A-Za-z0-9+/]{27}=")
_BODY_DIGEST = re.compile(rb"(?:^|&)bodySHA256=([0-9a-f]{64})(?=&|$)")
_PORTS = {"https": 443, "http": 80}


class TwilioVerifier:
    """`X-Twilio-Signature: <base64>`."""

    covers_headers = False
    covers_query = True

    def __init__(self, secrets: Sequence[bytes], url: str) -> None:
        """`url`: the URL that Twilio calls, without the query. It is tried with and without its port, as Twilio's own
        libraries do."""
        self._secrets = tuple(secrets)
        self._urls = _spellings(url)

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        signature, query = header(headers, _HEADER), headers.get(QUERY, b"")
        return not _malformed(headers, query) and self._has_signed(self._urls, signature, _signed_suffix(query, body))

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        signature, query = header(headers, _HEADER), headers.get(QUERY, b"")
        if malformed := _malformed(headers, query):
            return malformed
        suffix = _signed_suffix(query, body)  # once, for all URLs: parsing a form takes longer than signing it
        if self._has_signed(self._urls, signature, suffix):
            return ""
        if suffix is None:
            return "the body is not a form, and the query has no digest of it"
        for url in _others(self._urls[0], header(headers, b"host"), header(headers, b"x-forwarded-host")):
            if self._has_signed([url], signature, suffix):  # the secret is right, and Twilio calls this URL
                parts = urlsplit(url.decode())
                shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a password
                return f"the signature matches {shown}: set `url` to it"
        return "the signature differs: another secret, another `url`, or a proxy that changed the query or the body"

    def _has_signed(self, urls: Sequence[bytes], signature: bytes, suffix: bytes | None) -> bool:
        if suffix is None:
            return False
        expected = (b64encode(digest(key, url + suffix, "sha1")) for key in self._secrets for url in urls)
        return any_same(expected, signature)


def _malformed(headers: Mapping[bytes, bytes], query: bytes) -> str:
    if _SIGNATURE.fullmatch(header(headers, _HEADER)) is None:
        return wrong(headers, _HEADER)
    return f"the query has more than {QUERY_MAX_BYTES:,} bytes" if len(query) > QUERY_MAX_BYTES else ""


def _others(url: bytes, *hosts: bytes) -> Iterator[bytes]:
    """URLs that Twilio may call instead: with the host names of this request, and with or without a final slash."""
    parts = urlsplit(url.decode())
    for netloc in (parts.netloc, *(host.decode("latin-1") for host in hosts if _HOST.fullmatch(host))):
        for scheme in _PORTS:
            other = parts._replace(scheme=scheme, netloc=netloc).geturl().rstrip("/")
            yield from (other.encode(), other.encode() + b"/")


def _signed_suffix(query: bytes, body: bytes) -> bytes | None:
    """The part of the signed text after the URL. None: this body is not signed."""
    suffix = b"?" + query if query else b""
    if (match := _BODY_DIGEST.search(query)) is not None:
        return suffix if any_same([sha256(body).hexdigest().encode()], match[1]) else None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError:
        return None
    if len(dict(fields)) < len(fields):  # a repeated field is ambiguous
        return None
    return suffix + "".join(name + value for name, value in sorted(fields)).encode()


def _spellings(url: str) -> list[bytes]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _PORTS or not parts.hostname or not url.isascii() or parts.query or parts.fragment:
        raise ConfigError(
            "verify: scheme 'twilio' needs `url`, the URL that Twilio calls, without its query: for example "
            "https://semel.example.com/callbacks/twilio"
        )
    other = f"{parts.netloc}:{_PORTS[parts.scheme]}" if port is None else parts.netloc.removesuffix(f":{port}")
    return [url.encode(), parts._replace(netloc=other).geturl().encode()]
