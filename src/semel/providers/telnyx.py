"""Telnyx: SMS, with an Idempotency-Key that is honoured for 24 hours.

A repeated request must have the same bytes, or Telnyx answers 422. The path and the body fields follow Telnyx's public
reference; `path` and `extra` change them. A request has no field for a reference of the sender. The notification id is
therefore part of the webhook URL, and Telnyx repeats that URL in the signed body of its webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from semel.http_client.client import Answered
from semel.providers import callbacks
from semel.providers.auth import HeaderAuth
from semel.providers.callbacks import delivery_reports, parse_json, text_at, to_milliseconds, value_at
from semel.providers.http import JsonProvider, field, idempotency_key
from semel.providers.options import JsonOptions, KeyWindow, SecretValue, Sender, Text, TextMax
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


class TelnyxOptions(JsonOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    text_max: TextMax = TEXT_MAX
    key_window: KeyWindow | None = None
    api_key: Annotated[SecretValue, "KEY…"]
    callback: Annotated[Text, "Semel's URL for webhooks; the messaging profile's by default"] = ""


class Telnyx(JsonProvider[TelnyxOptions]):
    OPTIONS: ClassVar[type[TelnyxOptions]] = TelnyxOptions
    URL: ClassVar[str] = "https://api.telnyx.com"
    CONTRACT: ClassVar[Contract] = Contract(
        name="telnyx", channels=("sms",), key=Key(header="Idempotency-Key", window_s=86_400.0)
    )
    PATH: ClassVar[str] = "/v2/messages"

    def __init__(self, options: TelnyxOptions, contract: Contract) -> None:
        super().__init__(options, contract, HeaderAuth({"Authorization": options.api_key}, scheme="Bearer "))
        callbacks.check_callback_url(options.callback, contract.name)
        self.by_reference = not options.callback  # without it the callbacks have no notification id

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        message: dict[str, Any] = {
            "from": choose_sender(dispatch, "telnyx", self._options.sender),
            "to": dispatch.notification.recipient,
            "text": message_text(dispatch, "telnyx", self._options.text_max),
        }
        if self._options.callback:
            message["webhook_url"] = callbacks.add_id(self._options.callback, idempotency_key(dispatch))
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
