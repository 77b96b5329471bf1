"""SendGrid: mail, without idempotency keys.

The notification id is sent as a custom argument and is returned by the event webhook. The path and the body fields
follow SendGrid's public reference; `path` and `extra` change them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from semel.http_client.client import Answered
from semel.providers.auth import HeaderAuth
from semel.providers.callbacks import EVENTS_MAX, delivery_reports, parse_id, parse_json, text_at, to_milliseconds
from semel.providers.http import EVIDENCE_CHARS, JsonProvider, idempotency_key, rate_limit_reset_s
from semel.providers.options import JsonOptions, MailSender, SecretValue
from semel.providers.rendering import build_mail, named_address
from semel.values.delivery_state import Contract, Reported
from semel.values.errors import MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch

ARGUMENT = "semel_id"
REPORTS: dict[str, Reported] = {
    "processed": "accepted",
    "deferred": "accepted",
    "delivered": "delivered",
    "open": "delivered",
    "click": "delivered",
    "spamreport": "delivered",  # reported by the recipient
    "unsubscribe": "delivered",
    "group_unsubscribe": "delivered",
    "bounce": "undelivered",
    "dropped": "undelivered",
}


class SendGridOptions(JsonOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    api_key: Annotated[SecretValue, "SG.…"]


class SendGrid(JsonProvider[SendGridOptions]):
    OPTIONS: ClassVar[type[SendGridOptions]] = SendGridOptions
    URL: ClassVar[str] = "https://api.sendgrid.com"
    CONTRACT: ClassVar[Contract] = Contract(name="sendgrid", channels=("email",))
    PATH: ClassVar[str] = "/v3/mail/send"
    CREDENTIAL_STATUSES: ClassVar[frozenset[int]] = frozenset({401, 403})  # 403 is also a temporary block

    def __init__(self, options: SendGridOptions, contract: Contract) -> None:
        super().__init__(options, contract, HeaderAuth({"Authorization": options.api_key}, scheme="Bearer "))

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        notification = dispatch.notification
        mail = build_mail(dispatch, "sendgrid", self._options.sender, templates=True)
        to: dict[str, Any] = {"to": [{"email": mail.to}], "custom_args": {ARGUMENT: idempotency_key(dispatch)}}
        document: dict[str, Any] = {"from": named_address(mail.sender), "personalizations": [to]}
        if mail.subject:
            document["subject"] = mail.subject
        if notification.template:
            document["template_id"] = notification.template
            to["dynamic_template_data"] = notification.data
        else:
            kinds = (("text/plain", mail.text), ("text/html", mail.html))
            document["content"] = [{"type": kind, "value": value} for kind, value in kinds if value]
        return document

    def reference(self, answer: Answered) -> str:
        return answer.headers.get("x-message-id", "")[:EVIDENCE_CHARS]

    def rate_limited_for_s(self, headers: Mapping[str, str]) -> float:
        return rate_limit_reset_s(headers, "x-ratelimit-remaining", "x-ratelimit-reset", now_s=time.time())

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "sendgrid")
        too_many = not isinstance(payload, list) or len(payload) > EVENTS_MAX
        if too_many or not all(isinstance(event, dict) for event in payload):
            raise MalformedEvent("not a callback of SendGrid: expected a list of objects")
        return [report for event in payload for report in self._delivery_reports(event)]

    def _delivery_reports(self, event: Mapping[str, Any]) -> list[DeliveryReport]:
        reference = text_at(event, "sg_message_id").partition(".")[0]  # the machine's name follows the dot
        return delivery_reports(
            self.contract.name,
            REPORTS,
            text_at(event, "event"),
            id=parse_id(event.get(ARGUMENT)),
            reference=reference,
            at_ms=to_milliseconds(event.get("timestamp")),
        )
