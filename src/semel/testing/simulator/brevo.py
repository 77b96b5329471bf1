"""Brevo: JSON, a key in a header, and an idempotency key in the JSON: a UUID, and who comes with one that is known is
told so and nothing else. Its limits are in headers of its own, without a Retry-After."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, careless, document, given, mail
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

SECRET = "xkeysib-brevo-secret"
_WORDS = {"accepted": "request", "delivered": "delivered", "undelivered": "hard_bounce"}


class Brevo(Dialect):
    name = "brevo"
    prefix = "br-"

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/v3/smtp/email"):
            return self.refused(404, "not found")
        if given(request, "api-key") != SECRET:
            return self.refused(401, careless(given(request, "api-key")))
        return None

    def read(self, request: Request) -> Message:
        said = document(request)
        try:
            (to,), (tag,) = said["to"], said["tags"]
            if not said["sender"]["email"]:
                raise ValueError("there is no sender")
            key = said["headers"]["idempotencyKey"]
            if str(UUID(key)) != key:
                raise ValueError("the key is no UUID")
            text, html = said.get("textContent"), said.get("htmlContent")
            return mail(to["email"], said["subject"], text, html, key=UUID(key).hex, ours=tag)
        except (KeyError, TypeError) as error:
            raise ValueError(f"missing: {error}") from None

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(201, {"messageId": reference})

    def repeated(self, message: Message, reference: str, same: bool) -> Response:
        return as_json(400, {"code": "duplicate_parameter", "message": "Idempotency key already in use"})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"code": "simulated", "message": reason})

    def wait(self, after_s: float) -> Mapping[str, str]:
        limit = {"x-sib-ratelimit-limit": "1000", "x-sib-ratelimit-remaining": "0"}
        return {**limit, "x-sib-ratelimit-reset": f"{after_s:.0f}"}

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        event = {
            "event": _WORDS[word],
            "email": message.to,
            "message-id": reference,
            "tags": [message.ours],
            "ts_event": 1_790_000_000,
        }
        return "application/json", msgspec.json.encode(event)
