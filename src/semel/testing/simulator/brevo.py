"""Brevo: JSON, an API key in a header, and a UUID in the JSON as idempotency key. The response to a known key is an
error without the reference. Rate limits are in its own headers, without Retry-After."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, mail
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage

SECRET = "xkeysib-brevo-secret"
_STATUSES = {"accepted": "request", "delivered": "delivered", "undelivered": "hard_bounce"}


class BrevoDialect(Dialect):
    name = "brevo"
    prefix = "br-"
    path = "/v3/smtp/email"
    header = "api-key"
    credentials = SECRET

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        (to,), (tag,) = body["to"], body["tags"]
        if not body["sender"]["email"]:
            raise ValueError("the sender is missing")
        key = body["headers"]["idempotencyKey"]
        if str(UUID(key)) != key:
            raise ValueError("the key is not a UUID")
        text, html = body.get("textContent"), body.get("htmlContent")
        return mail(to["email"], body["subject"], text, html, key=UUID(key).hex, ours=tag)

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(201, {"messageId": reference})

    def repeated(self, message: SimulatedMessage, reference: str, same: bool) -> SimulatedResponse:
        return as_json(400, {"code": "duplicate_parameter", "message": "Idempotency key already in use"})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"code": "simulated", "message": reason})

    def retry_headers(self, after_s: float) -> Mapping[str, str]:
        limit = {"x-sib-ratelimit-limit": "1000", "x-sib-ratelimit-remaining": "0"}
        return {**limit, "x-sib-ratelimit-reset": f"{after_s:.0f}"}

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        event = {
            "event": _STATUSES[status],
            "email": message.to,
            "message-id": reference,
            "tags": [message.ours],
            "ts_event": 1_790_000_000,
        }
        return "application/json", msgspec.json.encode(event)
