"""Resend: JSON, Bearer, an Idempotency-Key. A wrong API key is answered with 403, a missing one with 401."""

from __future__ import annotations

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, header_of, mail, unknown_credentials
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

SECRET = "re_resend-secret"
KEY_MAX = 256
_STATUSES = {"accepted": "email.sent", "delivered": "email.delivered", "undelivered": "email.bounced"}


class ResendDialect(Dialect):
    name = "resend"
    prefix = "re-"
    conflict_status = 409

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        if (request.method, request.path) != ("POST", "/emails"):
            return self.refused(404, "not found")
        if not header_of(request):
            return self.refused(401, "Missing API key in the authorization header")
        if header_of(request) != f"Bearer {SECRET}":
            wrong = {"statusCode": 403, "name": "invalid_api_key", "message": unknown_credentials(header_of(request))}
            return as_json(403, wrong)
        return None

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body, key = request.json(), request.headers.get("idempotency-key", "")
        if len(key) > KEY_MAX:
            raise ValueError("the key is too long")
        (to,), (tag,) = body["to"], body["tags"]
        if not body["from"]:
            raise ValueError("the sender is missing")
        return mail(to, body["subject"], body.get("text"), body.get("html"), key=key, ours=tag["value"])

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"statusCode": status, "name": "simulated", "message": reason})

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        data = {"email_id": reference, "to": [message.to], "tags": {"semel_id": message.ours}}
        event = {"type": _STATUSES[status], "created_at": "2026-02-22T23:41:12.126Z", "data": data}
        return "application/json", msgspec.json.encode(event)
