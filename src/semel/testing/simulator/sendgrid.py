"""SendGrid: JSON with personalizations, 202 without a body, an id in a header, events in lists."""

from __future__ import annotations

import time

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, mail
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage

SECRET = "SG.sendgrid-secret"
_STATUSES = {"accepted": "processed", "delivered": "delivered", "undelivered": "bounce"}


class SendGridDialect(Dialect):
    name = "sendgrid"
    prefix = "sg"
    path = "/v3/mail/send"
    credentials = f"Bearer {SECRET}"

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        (personalization,) = body["personalizations"]
        (to,) = personalization["to"]
        parts = {part["type"]: part["value"] for part in body["content"]}
        if not body["from"]["email"]:
            raise ValueError("the sender is missing")
        text, html = parts.get("text/plain"), parts.get("text/html")
        return mail(to["email"], body["subject"], text, html, ours=personalization["custom_args"]["semel_id"])

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return SimulatedResponse(202, b"", {"X-Message-Id": reference})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"errors": [{"message": reason, "field": None, "help": None}]})

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        event = {
            "email": message.to,
            "timestamp": int(time.time()),
            "event": _STATUSES[status],
            "sg_event_id": f"{reference}-{status}",
            "sg_message_id": f"{reference}.filter-0",
            "semel_id": message.ours,
        }
        return "application/json", msgspec.json.encode([event])
