"""Telnyx: SMS, with an Idempotency-Key that is honoured for 24 hours.

A repeated request must have the same bytes, or Telnyx answers 422. The path and the body fields follow Telnyx's public
reference; `path` and `extra` change them. A request has no field for a reference of the sender. The notification id is
therefore part of the webhook URL, and Telnyx repeats that URL in the signed body of its webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.http_client.client import Answered
from semel.providers import callbacks
from semel.providers.auth import Auth
from semel.providers.callbacks import delivery_reports, parse_json, text_at, to_milliseconds, value_at
from semel.providers.http import JsonProvider, field, idempotency_key
from semel.providers.rendering import choose_sender, message_text
from semel.values.delivery_state import Contract, Key, Reported
from semel.values.errors import MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch

URL_MAX = 2_000  # characters
TEXT_MAX = 1530  # characters: ten parts; unverified, `text_max` changes it
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
        """`callback`: Semel's URL for webhooks. If it is empty, Telnyx calls the URL of the messaging profile."""
        super().__init__(url, auth, **more)
        callbacks.check_callback_url(callback, self.contract.name)
        self._callback = callback
        self.by_reference = not callback  # without it the callbacks have no notification id
        self._text_max = text_max

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        message: dict[str, Any] = {
            "from": choose_sender(dispatch, "telnyx", self._sender),
            "to": dispatch.notification.recipient,
            "text": message_text(dispatch, "telnyx", self._text_max),
        }
        if self._callback:
            message["webhook_url"] = callbacks.add_id(self._callback, idempotency_key(dispatch))
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "data", "id")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "telnyx")
        message = value_at(payload, "data", "payload")
        if not isinstance(message, dict):
            raise MalformedEvent("not a callback of Telnyx: expected an object with data.payload")
        if not text_at(payload, "data", "event_type").startswith("message.") or message.get("direction") == "inbound":
            return []
        return delivery_reports(
            self.contract.name,
            REPORTS,
            text_at(message, "to", "status"),
            id=callbacks.id_from_url(text_at(message, "webhook_url", longest=URL_MAX)),
            reference=text_at(message, "id"),
            at_ms=to_milliseconds(value_at(payload, "data", "occurred_at")),
        )
