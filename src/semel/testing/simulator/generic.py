"""A user's own endpoint: an idempotency key in a header or in the body, and callbacks with its own statuses."""

from __future__ import annotations

from typing import Any

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect
from semel.testing.simulator.http import HttpRequest
from semel.testing.simulator.state import SimulatedMessage

SECRET = "generic-secret"
_STATUSES = {"accepted": "queued", "delivered": "done", "undelivered": "lost"}


class GenericDialect(Dialect):
    name = "http"
    prefix = "h-"
    path = "/messages"
    header = "x-api-key"
    credentials = SECRET

    def read(self, request: HttpRequest) -> SimulatedMessage:
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        body: Any = request.form() if is_form else request.json()
        key = request.headers.get("idempotency-key") or body.get("meta", {}).get("key", "")
        return SimulatedMessage(body["to"], body["text"], key, body["reference"])

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        report = {"about": {"reference": message.ours, "id": reference}, "state": _STATUSES[status]}
        return "application/json", msgspec.json.encode(report)
