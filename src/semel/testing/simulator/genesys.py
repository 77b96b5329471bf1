"""Genesys Cloud: a token by client credentials, limits in headers, and five ways to reach a customer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from semel.testing.simulator.dialect import Dialect, basic, careless, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

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


class Genesys(Dialect):
    name = "genesys"
    prefix = "conversation-"

    def other(self, request: Request, state: State) -> Response | None:
        if request.path == "/oauth/token":
            return self._token(request, state)
        token = state.tokens.get(self.name)
        if token is None or given(request) != f"Bearer {token}":
            return self.refused(401, careless(given(request)))
        if (found := _CONTACT.fullmatch(request.path)) is not None and request.method == "GET":
            return self._contact(found["id"], state)
        if request.method == "POST" and request.path in (MESSAGES, EMAILS, CALLBACKS, CALLS, KEYED):
            return None
        if request.method == "POST" and CONTACTS.fullmatch(request.path):
            return None
        return self.refused(404, "not found")

    def _token(self, request: Request, state: State) -> Response:
        if given(request) != basic(CLIENT, SECRET) or request.form().get("grant_type") != "client_credentials":
            return self.refused(401, careless(given(request)))
        return as_json(200, {"access_token": state.grant(self.name), "token_type": "bearer", "expires_in": 86_400})

    def _contact(self, id: str, state: State) -> Response:
        for one in state.phone:
            if one.provider == self.name and one.key == id:
                return as_json(200, {"id": id})
        return self.refused(404, "no such contact")

    def read(self, request: Request) -> Message:
        try:
            return _read(request, request.json())
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise ValueError(f"bad request: {error}") from None

    def accepted(self, message: Message, reference: str) -> Response:
        if message.callback == CALLBACKS:
            return as_json(200, {"conversation": {"id": reference}, "callbackIdentifiers": []})
        return as_json(202, {"id": message.key or reference, "conversationId": reference})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"message": reason, "code": "simulated", "status": status, "contextId": "-"})

    def about(self, state: State) -> Mapping[str, str]:
        budget = state.budgets.get(self.name)
        if budget is None:
            return {}
        return {
            "inin-ratelimit-count": str(budget.count),
            "inin-ratelimit-allowed": str(budget.allowed),
            "inin-ratelimit-reset": f"{budget.reset_s:g}",
        }


def _read(request: Request, said: Any) -> Message:
    match request.path:
        case path if path == MESSAGES:
            if said["toAddressMessengerType"] not in MESSENGERS or not said["fromAddress"]:
                raise ValueError("the addresses are not valid")
            if "textBody" not in said and "messagingTemplate" not in said:
                raise ValueError("there is neither textBody nor messagingTemplate")
            return Message(said["toAddress"], said.get("textBody", ""))
        case path if path == EMAILS:
            to, *_ = said["toAddresses"]
            if not said["fromAddress"]["email"] or said["senderType"] not in ("Outbound", "Inbound"):
                raise ValueError("the sender is not valid")
            return Message(
                to["email"], said.get("textBody", ""), subject=said["subject"], html=said.get("htmlBody", "")
            )
        case path if path == CALLBACKS:
            number, *_ = said["callbackNumbers"]
            if not (said.get("queueId") or said.get("routingData", {}).get("queueId")):
                raise ValueError("there is no queue")
            data = said.get("data") or {}
            # The callback's answer has another shape, which its path identifies.
            return Message(number, data.get("notes", ""), ours=data.get(REFERENCE, ""), callback=CALLBACKS)
        case path if path == CALLS:
            return Message(said["phoneNumber"], "")
        case path if path == KEYED:
            data = said.get("data") or said
            return Message(_number(data), data.get("text", ""), key=said["idempotencyKey"])
    contact, *_ = said
    if contact["contactListId"] not in request.path:
        raise ValueError("another list")
    id = contact.get("id", "")
    if id and request.query != {"doNotQueue": "true", "clearSystemData": "false"}:
        raise ValueError("a contact that is written twice would be called twice")
    return Message(_number(contact["data"]), contact["data"].get("text", ""), key=id, ours=id)


def _number(data: Mapping[str, Any]) -> str:
    """A contact list names its columns as it likes: the first value that looks like a number."""
    if to := data.get("to") or data.get("phone"):
        return str(to)
    return next(str(value) for value in data.values() if _NUMBER.fullmatch(str(value)))
