"""NICE CXone: a token by the password grant of an access key, digital messages, events with a key in the body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semel.testing.simulator.dialect import Dialect, header_of, unknown_credentials
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

KEY_ID, SECRET = "cxone-key", "cxone-secret"
EVENTS = "/api/v2/events"
RECIPIENTS = ("to", "recipient", "phone", "phoneNumber", "contactId")
_OUTBOUND = re.compile(r"/dfo/3\.0/channels/[^/]+/outbound")


class CxoneDialect(Dialect):
    name = "cxone"
    prefix = "cx-"

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        if request.path == "/auth/token":
            form = request.form()  # client_id, client_secret and scope are optional
            if (form.get("grant_type"), form.get("username"), form.get("password")) != ("password", KEY_ID, SECRET):
                return self.refused(401, unknown_credentials(form.get("password", "")))
            return as_json(200, {"access_token": state.grant(self.name), "expires_in": "3600"})
        token = state.tokens.get(self.name)
        if token is None or header_of(request) != f"Bearer {token}":
            return self.refused(401, unknown_credentials(header_of(request)))
        if request.method == "POST" and (request.path == EVENTS or _OUTBOUND.fullmatch(request.path)):
            return None
        return self.refused(404, "not found")

    def read(self, request: HttpRequest) -> SimulatedMessage:
        body = request.json()
        if request.path == EVENTS:
            return _event(body)
        to, *_ = body.get("recipients") or body["endUserRecipients"]
        thread = (body.get("thread") or {}).get("idOnExternalPlatform", "")
        return SimulatedMessage(to["idOnExternalPlatform"], _text(body["messageContent"]), ours=thread)


def _text(content: Mapping[str, Any]) -> str:
    """The text of a plain message, of an element of a rich message, or the fallback text."""
    payload = content["payload"]
    texts = [
        payload.get("text"),
        *(element.get("text") for element in payload.get("elements", ())),
        content.get("fallbackText"),
    ]
    return next((text for text in texts if text), "")


def _event(body: Mapping[str, Any]) -> SimulatedMessage:
    """The fields are at the top, or in `data` or `payload`; the key is always at the top."""
    inner: Mapping[str, Any] = body.get("data") or body.get("payload") or body
    recipient = next((str(inner[name]) for name in RECIPIENTS if inner.get(name)), "")
    if not recipient:
        raise ValueError(f"no recipient: expected one of {', '.join(RECIPIENTS)}")
    return SimulatedMessage(recipient, str(inner.get("text", "")), key=body["idempotencyKey"])
