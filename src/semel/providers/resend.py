"""Resend: mail, with an Idempotency-Key that is honoured for 24 hours.

Resend answers a repeated request with the same id. It answers 409 while the first request is in progress, and for
another body with the same key. A 409 leaves the outcome of the first request unknown.

The path and the body fields follow Resend's public reference; `path` and `extra` change them. The notification id is
sent as a tag and is returned in the webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from semel.http_client.client import Answered
from semel.providers.auth import HeaderAuth
from semel.providers.callbacks import delivery_reports, parse_id, parse_json, text_at, to_milliseconds, value_at
from semel.providers.http import JsonProvider, field, idempotency_key, rate_limit_reset_s
from semel.providers.options import JsonOptions, KeyWindow, MailSender, SecretValue
from semel.providers.rendering import build_mail
from semel.values.delivery_state import Answer, Contract, Key, Refused, Reported
from semel.values.errors import MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch

TAG = "semel_id"
REPORTS: dict[str, Reported] = {
    "email.scheduled": "accepted",
    "email.sent": "accepted",
    "email.delivery_delayed": "accepted",
    "email.delivered": "delivered",
    "email.opened": "delivered",
    "email.clicked": "delivered",
    "email.complained": "delivered",  # reported by the recipient
    "email.bounced": "undelivered",
    "email.failed": "undelivered",
    "email.suppressed": "undelivered",
}


class ResendOptions(JsonOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    key_window: KeyWindow | None = None
    api_key: Annotated[SecretValue, "re_…"]


class Resend(JsonProvider[ResendOptions]):
    OPTIONS: ClassVar[type[ResendOptions]] = ResendOptions
    URL: ClassVar[str] = "https://api.resend.com"
    CONTRACT: ClassVar[Contract] = Contract(
        name="resend",
        channels=("email",),
        key=Key(header="Idempotency-Key", window_s=86_400.0, longest=256),
    )
    PATH: ClassVar[str] = "/emails"

    def __init__(self, options: ResendOptions, contract: Contract) -> None:
        super().__init__(options, contract, HeaderAuth({"Authorization": options.api_key}, scheme="Bearer "))

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        mail = build_mail(dispatch, "resend", self._options.sender)
        name = mail.sender.name
        message: dict[str, Any] = {
            "from": f"{name} <{mail.sender.email}>" if name else mail.sender.email,
            "to": [mail.to],
            "subject": mail.subject,
            "tags": [{"name": TAG, "value": idempotency_key(dispatch)}],
        }
        if mail.text:
            message["text"] = mail.text
        if mail.html:
            message["html"] = mail.html
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    def classify_status(self, answer: Answered) -> Answer:
        """A wrong API key is 403 and not final. A mail that the account may not send is 403 too, and final."""
        if answer.status == 403 and field(answer, "name") == "invalid_api_key":
            return Refused(self.evidence(answer), configuration=True)
        return super().classify_status(answer)

    def rate_limited_for_s(self, headers: Mapping[str, str]) -> float:
        return rate_limit_reset_s(headers, "ratelimit-remaining", "ratelimit-reset")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "resend")
        if not isinstance(payload, dict) or not isinstance(payload.get("data"), dict):
            raise MalformedEvent("not a callback of Resend: expected an object with type and data")
        return delivery_reports(
            self.contract.name,
            REPORTS,
            text_at(payload, "type"),
            id=_tagged(value_at(payload, "data", "tags")),
            reference=text_at(payload, "data", "email_id"),
            at_ms=to_milliseconds(payload.get("created_at")),
        )


def _tagged(tags: Any) -> bytes | None:
    """Read the notification id from the tags. Requests have a list of tags, webhooks an object; both are accepted."""
    if isinstance(tags, list):
        tags = {text_at(tag, "name"): text_at(tag, "value") for tag in tags if isinstance(tag, dict)}
    return parse_id(value_at(tags, TAG))
