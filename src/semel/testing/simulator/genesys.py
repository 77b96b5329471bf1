"""Genesys Cloud: a token by client credentials, limits in headers, and five ways to reach a customer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semel.testing.simulator.dialect import Dialect, basic, header_of, unknown_credentials
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

CLIENT, SECRET = "genesys-client", "genesys-secret"
MESSAGES = "/api/v2/conversations/messages/agentless"
EMAILS = "/api/v2/conversations/emails/agentless"
CALLBACKS = "/api/v2/conversations/callbacks"
CALLS = "/api/v2/conversations/calls"
KEYED = "/api/v2/outbound/contacts"
CONTACTS = re.compile(r"/api/v2/outbound/contactlists/(?P<list>[^/]+)/contacts")
_CONTACT = re.compile(rf"{CONTACTS.pattern}/(?P<id>[^/]+)")
REFERENCE = "semelId"
MESSENGERS = ("sms", "open", "whatsapp", "line", "facebook", "twitter")
_NUMBER = re.compile(r"\+?[0-9][0-9 ()./-]{5,}")


class GenesysDialect(Dialect):
    name = "genesys"
    prefix = "conversation-"

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        if request.path == "/oauth/token":
            return self._token(request, state)
        token = state.tokens.get(self.name)
        if token is None or header_of(request) != f"Bearer {token}":
            return self.refused(401, unknown_credentials(header_of(request)))
        if (found := _CONTACT.fullmatch(request.path)) is not None and request.method == "GET":
            return self._contact(found["id"], state)
        if request.method == "POST" and request.path in (MESSAGES, EMAILS, CALLBACKS, CALLS, KEYED):
            return None
        if request.method == "POST" and CONTACTS.fullmatch(request.path):
            return None
        return self.refused(404, "not found")

    def _token(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse:
        if header_of(request) != basic(CLIENT, SECRET) or request.form().get("grant_type") != "client_credentials":
            return self.refused(401, unknown_credentials(header_of(request)))
        return as_json(200, {"access_token": state.grant(self.name), "token_type": "bearer", "expires_in": 86_400})

    def _contact(self, id: str, state: SimulatorState) -> SimulatedResponse:
        if any(message.provider == self.name and message.key == id for message in state.phone):
            return as_json(200, {"id": id})
        return self.refused(404, "no such contact")

    def read(self, request: HttpRequest) -> SimulatedMessage:
        return _read(request, request.json())

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        if message.callback == CALLBACKS:
            return as_json(200, {"conversation": {"id": reference}, "callbackIdentifiers": []})
        return as_json(202, {"id": message.key or reference, "conversationId": reference})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"message": reason, "code": "simulated", "status": status, "contextId": "-"})

    def common_headers(self, state: SimulatorState) -> Mapping[str, str]:
        budget = state.budgets.get(self.name)
        if budget is None:
            return {}
        return {
            "inin-ratelimit-count": str(budget.count),
            "inin-ratelimit-allowed": str(budget.allowed),
            "inin-ratelimit-reset": f"{budget.reset_s:g}",
        }


def _read(request: HttpRequest, body: Any) -> SimulatedMessage:
    match request.path:
        case path if path == MESSAGES:
            if body["toAddressMessengerType"] not in MESSENGERS or not body["fromAddress"]:
                raise ValueError("the addresses are not valid")
            if "textBody" not in body and "messagingTemplate" not in body:
                raise ValueError("textBody and messagingTemplate are missing")
            return SimulatedMessage(body["toAddress"], body.get("textBody", ""))
        case path if path == EMAILS:
            to, *_ = body["toAddresses"]
            if not body["fromAddress"]["email"] or body["senderType"] not in ("Outbound", "Inbound"):
                raise ValueError("the sender is not valid")
            return SimulatedMessage(
                to["email"], body.get("textBody", ""), subject=body["subject"], html=body.get("htmlBody", "")
            )
        case path if path == CALLBACKS:
            number, *_ = body["callbackNumbers"]
            if not (body.get("queueId") or body.get("routingData", {}).get("queueId")):
                raise ValueError("the queue is missing")
            data = body.get("data") or {}
            # The callback's answer has another shape, which its path identifies.
            return SimulatedMessage(number, data.get("notes", ""), ours=data.get(REFERENCE, ""), callback=CALLBACKS)
        case path if path == CALLS:
            return SimulatedMessage(body["phoneNumber"], "")
        case path if path == KEYED:
            data = body.get("data") or body
            return SimulatedMessage(_number(data), data.get("text", ""), key=body["idempotencyKey"])
    contact, *_ = body
    if contact["contactListId"] not in request.path:
        raise ValueError("another list")
    id = contact.get("id", "")
    if id and request.query != {"doNotQueue": "true", "clearSystemData": "false"}:
        raise ValueError("a contact that is written again would be called again")
    return SimulatedMessage(_number(contact["data"]), contact["data"].get("text", ""), key=id, ours=id)


def _number(data: Mapping[str, Any]) -> str:
    """The first value that looks like a phone number: the names of columns are free."""
    if to := data.get("to") or data.get("phone"):
        return str(to)
    return next(str(value) for value in data.values() if _NUMBER.fullmatch(str(value)))
