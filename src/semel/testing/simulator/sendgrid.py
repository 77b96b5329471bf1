"""SendGrid: JSON with personalizations, 202 without a body, an id in a header, events in lists."""

from __future__ import annotations

import time

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, careless, document, given, mail
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

SECRET = "SG.sendgrid-secret"
_WORDS = {"accepted": "processed", "delivered": "delivered", "undelivered": "bounce"}


class SendGrid(Dialect):
    name = "sendgrid"
    prefix = "sg"

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/v3/mail/send"):
            return self.refused(404, "not found")
        if given(request) != f"Bearer {SECRET}":
            return self.refused(401, careless(given(request)))
        return None

    def read(self, request: Request) -> Message:
        said = document(request)
        try:
            (one,) = said["personalizations"]
            (to,) = one["to"]
            parts = {part["type"]: part["value"] for part in said["content"]}
            if not said["from"]["email"]:
                raise ValueError("there is no sender")
            ours = one["custom_args"]["semel_id"]
            text, html = parts.get("text/plain"), parts.get("text/html")
            return mail(to["email"], said["subject"], text, html, ours=ours)
        except (KeyError, TypeError) as error:
            raise ValueError(f"missing: {error}") from None

    def accepted(self, message: Message, reference: str) -> Response:
        return Response(202, b"", {"X-Message-Id": reference})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"errors": [{"message": reason, "field": None, "help": None}]})

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        event = {
            "email": message.to,
            "timestamp": int(time.time()),
            "event": _WORDS[word],
            "sg_event_id": f"{reference}-{word}",
            "sg_message_id": f"{reference}.filter-0",
            "semel_id": message.ours,
        }
        return "application/json", msgspec.json.encode([event])
