"""NICE CXone: a token by the password grant of an access key, digital messages, events with a key in the body."""

from __future__ import annotations

import re

import msgspec

from semel.testing.simulator.dialects import Dialect
from semel.testing.simulator.dialects.proof import careless, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

KEY_ID, SECRET = "cxone-key", "cxone-secret"
EVENTS = "/api/v2/events"
_OUTBOUND = re.compile(r"/dfo/3\.0/channels/[^/]+/outbound")


class Cxone(Dialect):
    name = "cxone"
    prefix = "cx-"

    def other(self, request: Request, state: State) -> Response | None:
        if request.path == "/auth/token":
            if request.form() != {"grant_type": "password", "username": KEY_ID, "password": SECRET}:
                return self.refused(401, careless(request.form().get("password", "")))
            return as_json(200, {"access_token": state.grant(self.name), "expires_in": "3600"})
        token = state.tokens.get(self.name)
        if token is None or given(request) != f"Bearer {token}":
            return self.refused(401, careless(given(request)))
        if request.method == "POST" and (request.path == EVENTS or _OUTBOUND.fullmatch(request.path)):
            return None
        return self.refused(404, "not found")

    def read(self, request: Request) -> Message:
        try:
            said = request.json()
            if request.path == EVENTS:
                return Message(said["to"], said["text"], key=said["idempotencyKey"])
            (to,) = said["recipients"]
            text = said["messageContent"]["payload"]["text"]
            return Message(to["idOnExternalPlatform"], text, ours=said["thread"]["idOnExternalPlatform"])
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise ValueError(f"bad request: {error}") from None
