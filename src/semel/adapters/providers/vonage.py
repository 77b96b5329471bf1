"""Vonage: SMS and messages. It has no idempotency; `client_ref` is ours, and is echoed in every status. A number begins
with its country there, without a plus sign.

The path and the fields of the body are those of its public reference; `path` and `extra` change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers.application import Application
from semel.adapters.providers.auth import Auth, Basic
from semel.adapters.providers.posting import JsonProvider, field, key_of
from semel.adapters.providers.reading import milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import bare_number, sender_of, text_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Contract, Reported

ACCOUNT, APPLICATION = ("api_key", "api_secret"), ("application_id", "private_key")
TEXT_MAX = 1000  # characters, of its public reference for SMS; `text_max` changes it
REPORTS: dict[str, Reported] = {
    "submitted": "accepted",
    "delivered": "delivered",
    "read": "delivered",
    "rejected": "undelivered",
    "undeliverable": "undelivered",
}


def access(name: str, options: Mapping[str, Any]) -> Auth:
    """By an account, or by an application: only what is sent with an application's token is called back. Raises
    ConfigError."""
    given = [pair for pair in (ACCOUNT, APPLICATION) if any(one in options for one in pair)]
    if len(given) != 1 or not all(one in options for one in given[0]):
        raise ConfigError(f"provider {name!r}: give api_key and api_secret, or application_id and private_key")
    user, secret = (options[one] for one in given[0])
    return Basic(user, secret) if given == [ACCOUNT] else Application(name, user, secret)


class Vonage(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="vonage", channels=("sms", "message"))
    PATH: ClassVar[str] = "/v1/messages"

    def __init__(self, url: str, auth: Auth, *, messenger: str = "sms", text_max: int = TEXT_MAX, **more: Any) -> None:
        """`messenger`: its channel, as Vonage names it."""
        super().__init__(url, auth, **more)
        self._messenger = messenger
        self._text_max = text_max

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        message: dict[str, Any] = {
            "channel": self._messenger,
            "message_type": "text",
            "from": bare_number(sender_of(dispatch, "vonage", self._sender)),
            "to": bare_number(dispatch.notification.recipient),
            "text": text_of(dispatch, "vonage", self._text_max),
            "client_ref": key_of(dispatch),
        }
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "message_uuid")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "vonage")
        if not isinstance(told, dict) or not text(told, "status"):
            raise MalformedEvent("no status of Vonage: expected an object with a status")
        return witnesses(
            self.contract.name,
            REPORTS,
            text(told, "status"),
            id=ours(told.get("client_ref")),
            reference=text(told, "message_uuid"),
            at_ms=milliseconds(told.get("timestamp")),
        )
