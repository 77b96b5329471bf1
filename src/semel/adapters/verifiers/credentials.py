"""A secret that is sent along as it is: a static header, or HTTP Basic. EventBridge API destinations know both.

Nothing binds it to the body, so it is only as good as the TLS around it. Digests are compared instead of the values,
so that time does not tell how long a secret is either.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256

from semel.adapters.verifiers.comparing import any_same, header, wrong

API_KEY_HEADER = b"x-api-key"

_BASIC = re.compile(rb"[Bb][Aa][Ss][Ii][Cc] +([A-Za-z0-9+/]+={0,2})")


class StaticHeader:
    """`X-Api-Key: <secret>`, or the same in a header of another name."""

    covers_headers = True  # whoever knows it wrote the whole request

    def __init__(self, secrets: Sequence[bytes], name: bytes = API_KEY_HEADER) -> None:
        self._digests = [sha256(secret).digest() for secret in secrets]
        self._name = name

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return any_same(self._digests, sha256(header(headers, self._name)).digest())

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        if await self.verify(headers, body):
            return ""
        known = self._name in headers
        return f"the header {self._name.decode()} has another secret" if known else wrong(headers, self._name)


class Basic:
    """`Authorization: Basic <base64 of username:secret>`, both in UTF-8."""

    challenge = b'Basic realm="semel", charset="UTF-8"'  # for WWW-Authenticate of a 401
    covers_headers = True  # whoever knows it wrote the whole request

    def __init__(self, secrets: Sequence[bytes], username: bytes) -> None:
        self._digests = [sha256(b64encode(username + b":" + secret)).digest() for secret in secrets]

    async def verify(self, headers: Mapping[bytes, bytes], body: bytes) -> bool:
        return not await self.objection(headers, body)

    async def objection(self, headers: Mapping[bytes, bytes], body: bytes) -> str:
        match = _BASIC.fullmatch(header(headers, b"authorization"))
        if match is None:
            return wrong(headers, b"authorization")
        same = any_same(self._digests, sha256(match[1]).digest())
        return "" if same else "another username or secret in authorization"
