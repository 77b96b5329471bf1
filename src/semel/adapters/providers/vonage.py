"""Vonage: SMS and messages. It has no idempotency; `client_ref` is ours, and is echoed in every status.

The path and the fields of the body are those of its public reference; `path` and `extra` change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers.auth import Auth
from semel.adapters.providers.posting import JsonProvider, field, key_of
from semel.adapters.providers.reading import milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import sender_of, text_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Contract, Reported

TEXT_MAX = 1000  # characters; not among our facts, so `text_max` changes it
REPORTS: dict[str, Reported] = {
    "submitted": "accepted",
    "delivered": "delivered",
    "read": "delivered",
    "rejected": "undelivered",
    "undeliverable": "undelivered",
}


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
            "from": sender_of(dispatch, "vonage", self._sender),
            "to": dispatch.notification.recipient,
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
