"""Standard Webhooks: one signature covers id, time and body, and is valid for five minutes."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from hmac import digest

from semel.values.errors import ConfigError
from semel.verifiers.shared_secret import DIFFERS, ExplainedVerifier, any_same, header, untimely, wrong

TOLERANCE_S = 300  # in both directions: the clocks of two machines, and a slow network
SECRET_PREFIX = b"whsec_"

_ID = re.compile(rb"[!-\-/-~]{1,255}")  # visible ASCII without a full stop, which separates the signed parts
_TIMESTAMP = re.compile(rb"[0-9]{1,12}")
_SIGNATURE = re.compile(rb"v1,([A-Za-z0-9+/]{43}=)")


class StandardWebhooksVerifier(ExplainedVerifier):
    """`webhook-id`, `webhook-timestamp`, and `webhook-signature: v1,<base64> v1,<base64> …`.

    Svix and its customers name the headers `svix-id` and so on. All three headers must use the same prefix.
    """

    def __init__(self, secrets: Sequence[bytes], now: Callable[[], float]) -> None:
        self._keys = [_key(secret, number) for number, secret in enumerate(secrets, 1)]
        self._now = now

    def message_id(self, headers: Mapping[bytes, bytes]) -> str:
        return headers[_family(headers) + b"-id"].decode("ascii")

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        kind = _family(headers)
        message_id = header(headers, kind + b"-id")
        timestamp = header(headers, kind + b"-timestamp")
        if _ID.fullmatch(message_id) is None:
            return wrong(headers, kind + b"-id")
        if _TIMESTAMP.fullmatch(timestamp) is None:
            return wrong(headers, kind + b"-timestamp")
        if late := untimely(kind + b"-timestamp", self._now() - int(timestamp), TOLERANCE_S, TOLERANCE_S):
            return late
        signed = b".".join((message_id, timestamp, body))
        expected = [b64encode(digest(key, signed, "sha256")) for key in self._keys]
        verified = listed_any = False
        for listed in header(headers, kind + b"-signature").split(b" "):
            if match := _SIGNATURE.fullmatch(listed):  # signatures of other versions are skipped
                listed_any = True
                verified |= any_same(expected, match[1])
        if not listed_any:
            return wrong(headers, kind + b"-signature")
        return "" if verified else DIFFERS


def _family(headers: Mapping[bytes, bytes]) -> bytes:
    """Prefix of the names of all three headers."""
    return b"webhook" if b"webhook-id" in headers else b"svix"


def _key(secret: bytes, number: int) -> bytes:
    """Decode the key in a secret. Base64 without the prefix is refused: any word of 4, 8, 12 … letters is valid base64,
    and a wrong key would be found only when nothing verifies."""
    try:
        key = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not key:
        raise ConfigError(
            f"verify: secret {number} of standard-webhooks: expected whsec_ and then base64, as the sender shows it; "
            "if it shows only base64, prepend whsec_"
        )
    return key
