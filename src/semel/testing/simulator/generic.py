"""A user's own endpoint: an idempotency key in a header or in the body, and callbacks with its own words."""

from __future__ import annotations

from typing import Any

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, careless, document, given
from semel.testing.simulator.http import Request, Response
from semel.testing.simulator.state import Message, State

SECRET = "generic-secret"
_WORDS = {"accepted": "queued", "delivered": "done", "undelivered": "lost"}


class Generic(Dialect):
    name = "http"
    prefix = "h-"

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/messages"):
            return self.refused(404, "not found")
        if given(request, "x-api-key") != SECRET:
            return self.refused(401, careless(given(request, "x-api-key")))
        return None

    def read(self, request: Request) -> Message:
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        said: Any = request.form() if is_form else document(request)
        try:
            key = request.headers.get("idempotency-key") or said.get("meta", {}).get("key", "")
            return Message(said["to"], said["text"], key, said["reference"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"missing: {error}") from None

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        told = {"about": {"reference": message.ours, "id": reference}, "state": _WORDS[word]}
        return "application/json", msgspec.json.encode(told)
