"""Telnyx: JSON, Bearer, an Idempotency-Key. A repeated request must have the same bytes. A request has no field for the
notification id; a callback contains the URL that it calls."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage

SECRET = "KEYtelnyx-secret"
FIELDS = frozenset(("from", "to", "text", "webhook_url", "messaging_profile_id", "type"))  # the fields that tests use
_STATUSES = {"accepted": "sent", "delivered": "delivered", "undelivered": "delivery_failed"}


class TelnyxDialect(Dialect):
    name = "telnyx"
    prefix = "tx-"
    path = "/v2/messages"
    credentials = f"Bearer {SECRET}"

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        if unknown := body.keys() - FIELDS:
            raise ValueError(f"unknown field {min(unknown)}")
        if not body["to"].startswith("+") or not body["text"] or not body["from"]:
            raise ValueError("to, from or text is not valid")
        key = request.headers.get("idempotency-key", "")
        url = body.get("webhook_url", "")
        return SimulatedMessage(body["to"], body["text"], key, parse_qs(urlsplit(url).query).get("id", [""])[0], url)

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(200, {"data": {"id": reference, "record_type": "message"}})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"errors": [{"code": str(status), "detail": reason}]})

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        to = [{"phone_number": message.to, "status": _STATUSES[status]}]
        payload = {
            "id": reference,
            "direction": "outbound",
            "to": to,
            "tags": [],
            "webhook_url": message.callback or None,
        }
        kind = "message.sent" if status == "accepted" else "message.finalized"
        data = {"event_type": kind, "id": reference, "occurred_at": "2026-01-23T18:10:02.574Z", "payload": payload}
        return "application/json", msgspec.json.encode({"data": data})
