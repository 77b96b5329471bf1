"""A token that an application signs itself, with a private key: how Vonage wants to be asked by whoever is to be called
back. The same one is used until shortly before its end."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from uuid import uuid4

import msgspec

from semel.adapters.providers.auth import EARLY_S, Asked, Hidden, without
from semel.values.errors import ConfigError

LIFE_S = 900.0  # as in Vonage's own libraries


class Application:
    """JSON Web Tokens by RS256. `name`: of the provider, for errors."""

    takes_s = 0.0

    def __init__(self, name: str, id: str, key: Hidden, clock: Callable[[], float] = time.time) -> None:
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
            from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise ConfigError(f"provider {name!r}: private_key needs cryptography: install semel[service]") from error
        try:
            private = load_pem_private_key(key.reveal().encode(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, RSAPrivateKey):
            raise ConfigError(f"provider {name!r}: private_key: expected an RSA key: -----BEGIN PRIVATE KEY----- …")
        self._sign: Callable[[bytes], bytes] = lambda said: private.sign(said, PKCS1v15(), SHA256())
        self._id = id
        self._clock = clock
        self._token = self._before = ""
        self._until_s = 0.0

    async def headers(self, asked: Asked) -> Mapping[str, str]:
        now_s = self._clock()
        if now_s >= self._until_s:
            self._before, self._token = self._token, self._signed(int(now_s))
            self._until_s = now_s + LIFE_S - EARLY_S
        return {"Authorization": f"Bearer {self._token}"}

    def refused(self, headers: Mapping[str, str]) -> None:
        """Only the token that was refused is forgotten: many are told so, after there is a new one already."""
        if headers.get("Authorization") == f"Bearer {self._token}":
            self._until_s = 0.0

    def hide(self, text: str) -> str:
        return without(text, self._token, self._before)  # what is answered now may have left with the one before

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _signed(self, now_s: int) -> str:
        claims = {"application_id": self._id, "iat": now_s, "exp": now_s + int(LIFE_S), "jti": str(uuid4())}
        said = f"{_part({'alg': 'RS256', 'typ': 'JWT'})}.{_part(claims)}"
        return f"{said}.{_text(self._sign(said.encode()))}"


def _part(said: Mapping[str, object]) -> str:
    return _text(msgspec.json.encode(said))


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
