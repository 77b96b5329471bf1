"""Brevo: mail, with an idempotency key in the body.

The key is `headers.idempotencyKey` in the JSON, a UUID. Brevo documents a window of 30 minutes, and 15 minutes on an
older page. Semel relies on the shorter one.

Brevo answers a known key with the error `duplicate_parameter`, without the reference of the first request. After an
unknown outcome, that error proves that the first request was accepted. Brevo does not document whether it also
remembers keys of refused requests. After a refusal the error therefore stays unknown, however often it is repeated.

The path and the body fields follow Brevo's public reference; `path` and `extra` change them. The notification id is
also sent as a tag and is returned in the webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from uuid import UUID

from semel.http_client.client import Answered
from semel.providers.auth import HeaderAuth
from semel.providers.callbacks import EVENTS_MAX, delivery_reports, parse_id, parse_json, text_at, to_milliseconds
from semel.providers.http import JsonProvider, field, idempotency_key, rate_limit_reset_s
from semel.providers.options import JsonOptions, KeyWindow, MailSender, SecretValue
from semel.providers.rendering import build_mail, named_address
from semel.values.delivery_state import Accepted, Answer, Contract, DeliveryState, Key, Reported, Unknown
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch

WINDOW_S = 15 * 60.0
DUPLICATE_KEY = "duplicate_parameter: Brevo has seen this key before"
_REFUSED_REASON = re.compile(r"duplicate_parameter|4(?!29)[0-9]{2}\b")  # matches the reason of a delivery state
REPORTS: dict[str, Reported] = {
    "request": "accepted",
    "deferred": "accepted",
    "delivered": "delivered",
    "opened": "delivered",
    "unique_opened": "delivered",
    "proxy_open": "delivered",
    "unique_proxy_open": "delivered",
    "click": "delivered",
    "spam": "delivered",  # reported by the recipient
    "complaint": "delivered",
    "unsubscribed": "delivered",
    "hard_bounce": "undelivered",
    "soft_bounce": "undelivered",
    "invalid_email": "undelivered",
    "blocked": "undelivered",
    "error": "undelivered",
}


class BrevoOptions(JsonOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    key_window: KeyWindow | None = None
    api_key: Annotated[SecretValue, "xkeysib-…"]


class Brevo(JsonProvider[BrevoOptions]):
    OPTIONS: ClassVar[type[BrevoOptions]] = BrevoOptions
    URL: ClassVar[str] = "https://api.brevo.com"
    CONTRACT: ClassVar[Contract] = Contract(
        name="brevo", channels=("email",), key=Key(path="headers.idempotencyKey", window_s=WINDOW_S)
    )
    PATH: ClassVar[str] = "/v3/smtp/email"

    def __init__(self, options: BrevoOptions, contract: Contract) -> None:
        super().__init__(options, contract, HeaderAuth({"api-key": options.api_key}))

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        notification = dispatch.notification
        mail = build_mail(dispatch, "brevo", self._options.sender, templates=True)
        message: dict[str, Any] = {
            "sender": named_address(mail.sender),
            "to": [{"email": mail.to}],
            "headers": {"idempotencyKey": str(UUID(bytes=dispatch.id))},
            "tags": [idempotency_key(dispatch)],
        }
        if notification.template:
            if not (notification.template.isascii() and notification.template.isdigit()):
                raise ConfigError("brevo: a template is a number")
            message |= {"templateId": int(notification.template), "params": notification.data}
        if mail.subject:
            message["subject"] = mail.subject
        if mail.text:
            message["textContent"] = mail.text
        if mail.html:
            message["htmlContent"] = mail.html
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "messageId")

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        answer = await super().send(dispatch, request)
        if answer == Unknown(DUPLICATE_KEY) and _never_refused(dispatch.delivery_state):
            return Accepted(evidence=DUPLICATE_KEY)
        return answer

    def classify_status(self, answer: Answered) -> Answer:
        if 400 <= answer.status < 500 and field(answer, "code") == "duplicate_parameter":
            return Unknown(DUPLICATE_KEY)
        return super().classify_status(answer)

    def rate_limited_for_s(self, headers: Mapping[str, str]) -> float:
        return rate_limit_reset_s(headers, "x-sib-ratelimit-remaining", "x-sib-ratelimit-reset")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "brevo")
        events = payload if isinstance(payload, list) else [payload]  # a webhook created with `batched` sends a list
        if len(events) > EVENTS_MAX or not all(isinstance(event, dict) and text_at(event, "event") for event in events):
            raise MalformedEvent("not a callback of Brevo: expected an object with an event, or a list of them")
        return [report for event in events for report in self._delivery_reports(event)]

    def _delivery_reports(self, event: Mapping[str, Any]) -> list[DeliveryReport]:
        tags = event.get("tags")
        ids = [id for tag in (tags if isinstance(tags, list) else []) if (id := parse_id(tag)) is not None]
        return delivery_reports(
            self.contract.name,
            REPORTS,
            text_at(event, "event"),
            id=ids[0] if len(ids) == 1 else None,
            reference=text_at(event, "message-id"),
            at_ms=to_milliseconds(event.get("ts_event")),
        )


def _never_refused(state: DeliveryState) -> bool:
    """Whether no earlier request with this key is known to have been refused: the first one has an unknown outcome, and
    the latest one got neither this error nor a refusal. A 429 does not matter: the rate limit applies before Brevo
    reads the key, and it does not count as an attempt."""
    first = state.doubt_ms == state.keyed_ms or state.attempts == 1
    return state.doubt_ms > 0 and first and _REFUSED_REASON.match(state.reason) is None
