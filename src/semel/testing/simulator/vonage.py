"""Vonage: JSON, Basic, and a reference of ours that every status echoes. Numbers begin with their country: a plus sign
is refused."""

from __future__ import annotations

import re

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, basic, careless, document, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

KEY, SECRET = "vonage-key", "vonage-secret"
_NUMBER = re.compile(r"[1-9][0-9]{0,14}", re.ASCII)
_WORDS = {"accepted": "submitted", "delivered": "delivered", "undelivered": "rejected"}


class Vonage(Dialect):
    name = "vonage"
    prefix = "vo-"

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/v1/messages"):
            return self.refused(404, "not found")
        if given(request) != basic(KEY, SECRET):
            return self.refused(401, careless(given(request)))
        return None

    def read(self, request: Request) -> Message:
        said = document(request)
        try:
            if (said["channel"], said["message_type"]) != ("sms", "text") or not said["from"] or not said["text"]:
                raise ValueError("channel, from or text is not valid")
            if _NUMBER.fullmatch(said["to"]) is None or said["from"].startswith("+"):
                raise ValueError("to or from is not valid: a number begins with its country, without + or 00")
            return Message(f"+{said['to']}", said["text"], ours=said["client_ref"])  # the phone it rings at
        except (KeyError, TypeError) as error:
            raise ValueError(f"missing: {error}") from None

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(202, {"message_uuid": reference})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"title": "simulated", "detail": reason})

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        told = {
            "message_uuid": reference,
            "to": message.to.removeprefix("+"),
            "timestamp": "2026-05-01T14:00:00.000Z",
            "status": _WORDS[word],
            "client_ref": message.ours,
            "channel": "sms",
        }
        return "application/json", msgspec.json.encode(told)
