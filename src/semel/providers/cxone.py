"""NICE CXone: digital messages, and an event endpoint that takes a key in its body.

The body of a digital message is unverified. It is a document with placeholders, which the option `body` replaces.
Status callbacks of CXone are unverified too, so there are none here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from urllib.parse import quote

from semel.http_client.client import Answered, Client
from semel.http_client.resolver import server_address
from semel.providers.auth import OAuthToken, basic_header
from semel.providers.http import HttpProvider, StoredRequest, field, idempotency_key, json_body
from semel.providers.options import (
    Document,
    HttpOptions,
    KeyPath,
    KeyWindow,
    SecretValue,
    Sender,
    Text,
    TextMax,
    UnverifiedPath,
)
from semel.providers.rendering import check_template, fill_template, insert_key, message_text
from semel.values.delivery_state import Contract
from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch

PER_SECOND = 100.0  # 6,000 a minute for each tenant
TEXT_MAX = 2000  # characters; unverified, `text_max` changes it
SIGN_IN_SHARE = 1 / 3  # of a send's timeout
BODY: Mapping[str, Any] = {
    "messageContent": {"type": "TEXT", "payload": {"text": "{body}"}},
    "recipients": [{"idOnExternalPlatform": "{recipient}"}],
    "thread": {"idOnExternalPlatform": "{id}"},
}
"""The thread's id is the notification id, so that a message can be found by its thread."""


class CxoneOptions(HttpOptions, frozen=True, kw_only=True):
    url: Annotated[Text, "URL of the tenant's API"]
    token_url: Annotated[Text, "token endpoint for the access key"]
    access_key_id: Annotated[Text, "of a back-end application"]
    access_key_secret: Annotated[SecretValue, "of that key"]
    client_id: Annotated[Text, "of the application, if its token request needs one"] = ""
    client_secret: Annotated[SecretValue, "of the application"] | None = None
    reference_at: Annotated[Text, "path of the message id in the response; the default is unverified"] = "id"

    def auth(self, contract: Contract) -> OAuthToken:
        """The password grant of a back-end application, with the access key as the user. Raises ConfigError."""
        secret, client_secret = self.access_key_secret, self.client_secret
        if bool(self.client_id) != (client_secret is not None):
            raise ConfigError(f"provider {contract.name!r}: client_id and client_secret belong together")
        budget_s = contract.timeout_s * SIGN_IN_SHARE
        headers = {} if client_secret is None else {"Authorization": basic_header(self.client_id, client_secret)}
        return OAuthToken(
            Client(server_address(contract.name, self.token_url), self.allow, budget_s),
            self.token_url,
            lambda: {"grant_type": "password", "username": self.access_key_id, "password": secret.reveal()},
            budget_s=budget_s,
            headers=lambda: headers,
            secrets=(secret,) if client_secret is None else (secret, client_secret),
        )


class CxoneDigitalOptions(CxoneOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    text_max: TextMax = TEXT_MAX
    channel: Annotated[Text, "id of the digital channel"]
    body: Annotated[Document, "document with placeholders; the default is unverified"] | None = None


class CxoneDigital(HttpProvider[CxoneDigitalOptions]):
    OPTIONS: ClassVar[type[CxoneDigitalOptions]] = CxoneDigitalOptions
    CONTRACT: ClassVar[Contract] = Contract(name="cxone", channels=("message", "sms"), per_second=PER_SECOND)

    def __init__(self, options: CxoneDigitalOptions, contract: Contract) -> None:
        super().__init__(options, contract, options.url, options.auth(contract))
        self._body = BODY if options.body is None else options.body
        check_template(self._body, f"provider {contract.name!r}: body")
        self._path = f"/dfo/3.0/channels/{quote(options.channel, safe='')}/outbound"

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        message_text(dispatch, "cxone", self._options.text_max)
        return StoredRequest(self._path, json_body(fill_template(self._body, dispatch, self._options.sender)))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._options.reference_at.split("."))


class CxoneEventsOptions(CxoneOptions, frozen=True, kw_only=True):
    key_window: KeyWindow | None = None
    path: UnverifiedPath = "/api/v2/events"
    key_path: KeyPath = "idempotencyKey"


class CxoneEvents(HttpProvider[CxoneEventsOptions]):
    """An event endpoint with a key in the body. CXone does not document how long the key is honoured: without
    `key_window` Semel sends the key but does not rely on it."""

    CONTRACT: ClassVar[Contract] = Contract(name="cxone-events", channels=("event",), per_second=PER_SECOND)

    OPTIONS: ClassVar[type[CxoneEventsOptions]] = CxoneEventsOptions

    def __init__(self, options: CxoneEventsOptions, contract: Contract) -> None:
        super().__init__(options, contract, options.url, options.auth(contract))

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification = dispatch.notification
        if not isinstance(notification.body, Mapping):
            raise ConfigError("cxone-events: the body of an event must be an object")
        document = insert_key(notification.body, self._options.key_path, idempotency_key(dispatch))
        return StoredRequest(self._options.path, json_body(document))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._options.reference_at.split("."))
