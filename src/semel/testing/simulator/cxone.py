"""NICE CXone: a token by the password grant of an access key, digital messages, events with a key in the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from semel.testing.simulator.dialect import Dialect, careless, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

KEY_ID, SECRET = "cxone-key", "cxone-secret"
EVENTS = "/api/v2/events"
RECIPIENTS = ("to", "recipient", "phone", "phoneNumber", "contactId")
_OUTBOUND = re.compile(r"/dfo/3\.0/channels/[^/]+/outbound")


class Cxone(Dialect):
    name = "cxone"
    prefix = "cx-"

    def other(self, request: Request, state: State) -> Response | None:
        if request.path == "/auth/token":
            form = request.form()  # client_id, client_secret and scope may stand beside
            if (form.get("grant_type"), form.get("username"), form.get("password")) != ("password", KEY_ID, SECRET):
                return self.refused(401, careless(form.get("password", "")))
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
                return _event(said)
            to, *_ = said.get("recipients") or said["endUserRecipients"]
            thread = (said.get("thread") or {}).get("idOnExternalPlatform", "")
            return Message(to["idOnExternalPlatform"], _text(said["messageContent"]), ours=thread)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"bad request: {error}") from None


def _text(content: Mapping[str, Any]) -> str:
    """Of a plain text, of an element of a rich message, or of a template, which has none here."""
    payload = content["payload"]
    texts = [
        payload.get("text"),
        *(one.get("text") for one in payload.get("elements", ())),
        content.get("fallbackText"),
    ]
    return next((text for text in texts if text), "")


def _event(said: Mapping[str, Any]) -> Message:
    """The members stand at the top, or in `data` or `payload`; the key is always at the top."""
    inner: Mapping[str, Any] = said.get("data") or said.get("payload") or said
    recipient = next((str(inner[name]) for name in RECIPIENTS if inner.get(name)), "")
    if not recipient:
        raise ValueError(f"no recipient: expected one of {', '.join(RECIPIENTS)}")
    return Message(recipient, str(inner.get("text", "")), key=said["idempotencyKey"])
