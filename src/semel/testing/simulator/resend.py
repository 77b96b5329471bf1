"""Resend: JSON, Bearer, an Idempotency-Key. A key of its API that is wrong is answered 403, one that is missing 401."""

from __future__ import annotations

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, careless, document, given, mail
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

SECRET = "re_resend-secret"
KEY_MAX = 256
_WORDS = {"accepted": "email.sent", "delivered": "email.delivered", "undelivered": "email.bounced"}


class Resend(Dialect):
    name = "resend"
    prefix = "re-"
    differs = 409

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/emails"):
            return self.refused(404, "not found")
        if not given(request):
            return self.refused(401, "Missing API key in the authorization header")
        if given(request) != f"Bearer {SECRET}":
            wrong = {"statusCode": 403, "name": "invalid_api_key", "message": careless(given(request))}
            return as_json(403, wrong)
        return None

    def read(self, request: Request) -> Message:
        said, key = document(request), request.headers.get("idempotency-key", "")
        if len(key) > KEY_MAX:
            raise ValueError("the key is too long")
        try:
            (to,), (tag,) = said["to"], said["tags"]
            if not said["from"]:
                raise ValueError("there is no sender")
            return mail(to, said["subject"], said.get("text"), said.get("html"), key=key, ours=tag["value"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"missing: {error}") from None

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"statusCode": status, "name": "simulated", "message": reason})

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        data = {"email_id": reference, "to": [message.to], "tags": {"semel_id": message.ours}}
        event = {"type": _WORDS[word], "created_at": "2026-02-22T23:41:12.126Z", "data": data}
        return "application/json", msgspec.json.encode(event)
