"""NICE CXone: digital messages, and an event endpoint that takes a key in its body.

The body of a digital message is unverified. It is a document with placeholders, which the option `body` replaces.
Status callbacks of CXone are unverified too, so there are none here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from semel.http_client.client import Answered, Client
from semel.http_client.resolver import place_of
from semel.providers.auth import Auth, OAuthToken, basic_header
from semel.providers.http import HttpProvider, Request, field, idempotency_key, json_body
from semel.providers.rendering import check_template, fill_template, insert_key, message_text
from semel.values.delivery_state import Contract
from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch
from semel.values.secret import Secret

PER_SECOND = 100.0  # 6,000 a minute for each tenant
TEXT_MAX = 2000  # characters; unverified, `text_max` changes it
SIGN_IN_SHARE = 1 / 3  # of a send's timeout
BODY: Mapping[str, Any] = {
    "messageContent": {"type": "TEXT", "payload": {"text": "{body}"}},
    "recipients": [{"idOnExternalPlatform": "{recipient}"}],
    "thread": {"idOnExternalPlatform": "{id}"},
}
"""The thread's id is the notification id, so that a message can be found by its thread."""


def access_key(
    name: str,
    token_url: str,
    key_id: str,
    secret: Secret,
    *,
    client_id: str = "",
    client_secret: Secret | None = None,
    timeout_s: float,
    allow: Sequence[str] = (),
) -> OAuthToken:
    """The password grant of a back-end application, with the access key as the user."""
    budget_s = timeout_s * SIGN_IN_SHARE
    headers = {} if client_secret is None else {"Authorization": basic_header(client_id, client_secret)}
    return OAuthToken(
        Client(place_of(name, token_url), allow, budget_s),
        token_url,
        lambda: {"grant_type": "password", "username": key_id, "password": secret.reveal()},
        budget_s=budget_s,
        headers=lambda: headers,
        secrets=(secret,) if client_secret is None else (secret, client_secret),
    )


class CxoneDigital(HttpProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="cxone", channels=("message", "sms"), per_second=PER_SECOND)

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        channel: str,
        sender: str = "",
        body: Mapping[str, Any] | None = None,
        text_max: int = TEXT_MAX,
        reference_at: str = "id",
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(url, auth, contract=contract, allow=allow)
        self._body = BODY if body is None else body
        check_template(self._body, f"provider {self.contract.name!r}: body")
        self._path = f"/dfo/3.0/channels/{quote(channel, safe='')}/outbound"
        self._sender = sender
        self._text_max = text_max
        self._reference_at = reference_at.split(".")

    def build_request(self, dispatch: Dispatch) -> Request:
        message_text(dispatch, "cxone", self._text_max)
        return Request(self._path, json_body(fill_template(self._body, dispatch, self._sender)))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)


class CxoneEvents(HttpProvider):
    """An event endpoint with a key in the body. CXone does not document how long the key is honoured: without
    `key_window` Semel sends the key but does not rely on it."""

    CONTRACT: ClassVar[Contract] = Contract(name="cxone-events", channels=("event",), per_second=PER_SECOND)

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        path: str = "/api/v2/events",
        key_path: str = "idempotencyKey",
        reference_at: str = "id",
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(url, auth, contract=contract, allow=allow)
        self._path = path
        self._key_path = key_path
        self._reference_at = reference_at.split(".")

    def build_request(self, dispatch: Dispatch) -> Request:
        notification = dispatch.notification
        if not isinstance(notification.body, Mapping):
            raise ConfigError("cxone-events: the body of an event must be an object")
        return Request(self._path, json_body(insert_key(notification.body, self._key_path, idempotency_key(dispatch))))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)
