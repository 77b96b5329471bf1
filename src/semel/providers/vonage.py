"""Vonage: SMS and messages, without idempotency keys.

`client_ref` carries the notification id and is returned in every status. Vonage writes numbers with the country code
and without a plus sign. The path and the body fields follow Vonage's public reference; `path` and `extra` change them.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar
from uuid import uuid4

import msgspec

from semel.http_client.client import Answered
from semel.providers.auth import EARLY_S, Auth, BasicAuth, OutgoingRequest, redact_secrets
from semel.providers.callbacks import delivery_reports, parse_id, parse_json, text_at, to_milliseconds
from semel.providers.http import JsonProvider, field, idempotency_key
from semel.providers.options import JsonOptions, SecretValue, Sender, Text, TextMax
from semel.providers.rendering import bare_number, choose_sender, message_text
from semel.values.delivery_state import Contract, Reported
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch
from semel.values.secret import Secret

LIFE_S = 900.0  # as in Vonage's own libraries


class VonageJwt:
    """JSON Web Tokens that an application signs with its private key (RS256).

    Vonage sends status callbacks only for messages that were sent with such a token. A token is reused until shortly
    before it expires. `name` is the provider's name, for errors.
    """

    budget_s = 0.0

    def __init__(self, name: str, id: str, key: Secret, clock: Callable[[], float] = time.time) -> None:
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
        self._sign: Callable[[bytes], bytes] = lambda data: private.sign(data, PKCS1v15(), SHA256())
        self._id = id
        self._clock = clock
        self._token = self._previous = ""
        self._until_s = 0.0

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        now_s = self._clock()
        if now_s >= self._until_s:
            self._previous, self._token = self._token, self._signed(int(now_s))
            self._until_s = now_s + LIFE_S - EARLY_S
        return {"Authorization": f"Bearer {self._token}"}

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Discard the token only if it is the refused one: late refusals of an old token must not discard a new one."""
        if headers.get("Authorization") == f"Bearer {self._token}":
            self._until_s = 0.0

    def redact(self, text: str) -> str:
        return redact_secrets(text, self._token, self._previous)  # a response may belong to the previous token

    async def close(self) -> None:
        """Holds no resources."""

    def _signed(self, now_s: int) -> str:
        claims = {"application_id": self._id, "iat": now_s, "exp": now_s + int(LIFE_S), "jti": str(uuid4())}
        head = _base64url(msgspec.json.encode({"alg": "RS256", "typ": "JWT"}))
        signed = f"{head}.{_base64url(msgspec.json.encode(claims))}"
        return f"{signed}.{_base64url(self._sign(signed.encode()))}"


def _base64url(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


TEXT_MAX = 1000  # characters, of its public reference for SMS; `text_max` changes it
REPORTS: dict[str, Reported] = {
    "submitted": "accepted",
    "delivered": "delivered",
    "read": "delivered",
    "rejected": "undelivered",
    "undeliverable": "undelivered",
}


class VonageOptions(JsonOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    text_max: TextMax = TEXT_MAX
    api_key: Annotated[Text, "of the account; messages sent with it get no callbacks"] = ""
    api_secret: Annotated[SecretValue, "of the account"] | None = None
    application_id: Annotated[Text, "instead of api_key: the application whose status URL gets callbacks"] = ""
    private_key: Annotated[SecretValue, "of that application"] | None = None
    messenger: Annotated[Text, 'Vonage channel, such as "sms"'] = "sms"

    def auth(self, name: str) -> Auth:
        """Authentication by account or by application. Only messages sent with an application's token get callbacks.
        Raises ConfigError."""
        match self.api_key, self.api_secret, self.application_id, self.private_key:
            case str(user), Secret() as secret, "", None if user:
                return BasicAuth(user, secret)
            case "", None, str(id), Secret() as key if id:
                return VonageJwt(name, id, key)
        raise ConfigError(f"provider {name!r}: set api_key and api_secret, or application_id and private_key")


class Vonage(JsonProvider[VonageOptions]):
    OPTIONS: ClassVar[type[VonageOptions]] = VonageOptions
    URL: ClassVar[str] = "https://api.nexmo.com"
    CONTRACT: ClassVar[Contract] = Contract(name="vonage", channels=("sms", "message"))
    PATH: ClassVar[str] = "/v1/messages"

    def __init__(self, options: VonageOptions, contract: Contract) -> None:
        super().__init__(options, contract, options.auth(contract.name))

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        message: dict[str, Any] = {
            "channel": self._options.messenger,
            "message_type": "text",
            "from": bare_number(choose_sender(dispatch, "vonage", self._options.sender)),
            "to": bare_number(dispatch.notification.recipient),
            "text": message_text(dispatch, "vonage", self._options.text_max),
            "client_ref": idempotency_key(dispatch),
        }
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "message_uuid")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "vonage")
        if not isinstance(payload, dict) or not text_at(payload, "status"):
            raise MalformedEvent("not a callback of Vonage: expected an object with a status")
        return delivery_reports(
            self.contract.name,
            REPORTS,
            text_at(payload, "status"),
            id=parse_id(payload.get("client_ref")),
            reference=text_at(payload, "message_uuid"),
            at_ms=to_milliseconds(payload.get("timestamp")),
        )
