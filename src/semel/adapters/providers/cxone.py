"""NICE CXone: digital messages, and an event endpoint that takes a key in its body.

What the body of a digital message looks like is not among our facts: it is a document with gaps, which the settings can
replace (`body`). So is how its status comes back: there are no callbacks here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from semel.adapters.providers.auth import Auth, Hidden, Token, basic
from semel.adapters.providers.filling import check, fill, with_key
from semel.adapters.providers.posting import HttpProvider, Request, field, json_body, key_of
from semel.adapters.providers.saying import text_of
from semel.adapters.wire.answers import Answered
from semel.adapters.wire.client import Client
from semel.adapters.wire.place import place_of
from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch
from semel.values.sending import Contract

PER_SECOND = 100.0  # 6,000 a minute for each tenant
TEXT_MAX = 2000  # characters; not among our facts, so `text_max` changes it
SIGN_IN_SHARE = 1 / 3  # of a send's time
BODY: Mapping[str, Any] = {
    "messageContent": {"type": "TEXT", "payload": {"text": "{body}"}},
    "recipients": [{"idOnExternalPlatform": "{recipient}"}],
    "thread": {"idOnExternalPlatform": "{id}"},
}
"""Our id is the thread's: who looks for a message by its thread finds it."""


def access_key(
    name: str,
    token_url: str,
    key_id: str,
    secret: Hidden,
    *,
    client_id: str = "",
    client_secret: Hidden | None = None,
    timeout_s: float,
    allow: Sequence[str] = (),
) -> Token:
    """The password grant of a back-end application: the access key is the user."""
    takes_s = timeout_s * SIGN_IN_SHARE
    proof = {} if client_secret is None else {"Authorization": basic(client_id, client_secret)}
    return Token(
        Client(place_of(name, token_url), allow, takes_s),
        token_url,
        lambda: {"grant_type": "password", "username": key_id, "password": secret.reveal()},
        takes_s=takes_s,
        headers=lambda: proof,
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
        check(self._body, f"provider {self.contract.name!r}: body")
        self._path = f"/dfo/3.0/channels/{quote(channel, safe='')}/outbound"
        self._sender = sender
        self._text_max = text_max
        self._reference_at = reference_at.split(".")

    def write(self, dispatch: Dispatch) -> Request:
        text_of(dispatch, "cxone", self._text_max)
        return Request(self._path, json_body(fill(self._body, dispatch, self._sender)))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)


class CxoneEvents(HttpProvider):
    """Only a person can know for how long the endpoint honours its key: without `key_window` the key is sent, and not
    relied on."""

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

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        if not isinstance(said.body, Mapping):
            raise ConfigError("an event is a document: the body has to be one")
        return Request(self._path, json_body(with_key(said.body, self._key_path, key_of(dispatch))))

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)
