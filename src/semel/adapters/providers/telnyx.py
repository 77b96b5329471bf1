"""Telnyx: SMS. It honours an Idempotency-Key for 24 hours; the body has to be the same to the byte, or it answers 422.

The path and the fields of the body are those of its public reference; `path` and `extra` change them. A request has no
field for a reference of ours: our id is in the URL that it is told to call, and that URL is in the body of its
webhooks, which is signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers import addressing
from semel.adapters.providers.auth import Auth
from semel.adapters.providers.posting import JsonProvider, field, key_of
from semel.adapters.providers.reading import at, milliseconds, parsed, text, witnesses
from semel.adapters.providers.saying import sender_of, text_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Contract, Key, Reported

URL_MAX = 2_000  # characters
TEXT_MAX = 1530  # characters: ten parts; not among our facts, so `text_max` changes it
REPORTS: dict[str, Reported] = {
    "queued": "accepted",
    "sending": "accepted",
    "sent": "accepted",
    "delivery_unconfirmed": "accepted",
    "delivered": "delivered",
    "expired": "undelivered",
    "sending_failed": "undelivered",
    "delivery_failed": "undelivered",
}


class Telnyx(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(
        name="telnyx", channels=("sms",), key=Key(header="Idempotency-Key", window_s=86_400.0)
    )
    PATH: ClassVar[str] = "/v2/messages"

    def __init__(self, url: str, auth: Auth, *, callback: str = "", text_max: int = TEXT_MAX, **more: Any) -> None:
        """`callback`: the URL that it tells what became of a message; empty: that of its messaging profile."""
        super().__init__(url, auth, **more)
        addressing.check(callback, self.contract.name)
        self._callback = callback
        self.by_reference = not callback  # then its callbacks do not have our id
        self._text_max = text_max

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        message: dict[str, Any] = {
            "from": sender_of(dispatch, "telnyx", self._sender),
            "to": dispatch.notification.recipient,
            "text": text_of(dispatch, "telnyx", self._text_max),
        }
        if self._callback:
            message["webhook_url"] = addressing.with_id(self._callback, key_of(dispatch))
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "data", "id")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "telnyx")
        message = at(told, "data", "payload")
        if not isinstance(message, dict):
            raise MalformedEvent("no event of Telnyx: expected an object with data.payload")
        if not text(told, "data", "event_type").startswith("message.") or message.get("direction") == "inbound":
            return []
        return witnesses(
            self.contract.name,
            REPORTS,
            text(message, "to", "status"),
            id=addressing.id_in(text(message, "webhook_url", longest=URL_MAX)),
            reference=text(message, "id"),
            at_ms=milliseconds(at(told, "data", "occurred_at")),
        )
