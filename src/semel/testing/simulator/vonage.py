"""Vonage: JSON, Basic credentials, and a client reference that every status repeats. A number starts with its country
code; a plus sign is refused."""

from __future__ import annotations

import re

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, basic
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage

KEY, SECRET = "vonage-key", "vonage-secret"
_NUMBER = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)
_STATUSES = {"accepted": "submitted", "delivered": "delivered", "undelivered": "rejected"}


class VonageDialect(Dialect):
    name = "vonage"
    prefix = "vo-"
    path = "/v1/messages"
    credentials = basic(KEY, SECRET)

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        if (body["channel"], body["message_type"]) != ("sms", "text") or not body["from"] or not body["text"]:
            raise ValueError("channel, from or text is not valid")
        if _NUMBER.fullmatch(body["to"]) is None or body["from"].startswith("+"):
            raise ValueError("to or from is not valid: a number starts with its country code, without + or 00")
        return SimulatedMessage(f"+{body['to']}", body["text"], ours=body["client_ref"])

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(202, {"message_uuid": reference})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"title": "simulated", "detail": reason})

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        report = {
            "message_uuid": reference,
            "to": message.to.removeprefix("+"),
            "timestamp": "2026-05-01T14:00:00.000Z",
            "status": _STATUSES[status],
            "client_ref": message.ours,
            "channel": "sms",
        }
        return "application/json", msgspec.json.encode(report)
