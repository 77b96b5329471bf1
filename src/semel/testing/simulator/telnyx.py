"""Telnyx: JSON, Bearer, an Idempotency-Key whose body has to be the same to the byte. A request has no field for a
reference of ours; what is called back has the URL that was to be called."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import msgspec

from semel.testing.simulator.dialect import Callback, Dialect, careless, document, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

SECRET = "KEYtelnyx-secret"
FIELDS = frozenset(("from", "to", "text", "webhook_url", "messaging_profile_id", "type"))  # some of those that it has
_WORDS = {"accepted": "sent", "delivered": "delivered", "undelivered": "delivery_failed"}


class Telnyx(Dialect):
    name = "telnyx"
    prefix = "tx-"

    def other(self, request: Request, state: State) -> Response | None:
        if (request.method, request.path) != ("POST", "/v2/messages"):
            return self.refused(404, "not found")
        if given(request) != f"Bearer {SECRET}":
            return self.refused(401, careless(given(request)))
        return None

    def read(self, request: Request) -> Message:
        said = document(request)
        try:
            if unknown := said.keys() - FIELDS:
                raise ValueError(f"there is no {min(unknown)}")
            if not said["to"].startswith("+") or not said["text"] or not said["from"]:
                raise ValueError("to, from or text is not valid")
            key = request.headers.get("idempotency-key", "")
            url = said.get("webhook_url", "")
            return Message(said["to"], said["text"], key, parse_qs(urlsplit(url).query).get("id", [""])[0], url)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"missing: {error}") from None

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(200, {"data": {"id": reference, "record_type": "message"}})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"errors": [{"code": str(status), "detail": reason}]})

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        to = [{"phone_number": message.to, "status": _WORDS[word]}]
        payload = {
            "id": reference,
            "direction": "outbound",
            "to": to,
            "tags": [],
            "webhook_url": message.callback or None,
        }
        kind = "message.sent" if word == "accepted" else "message.finalized"
        data = {"event_type": kind, "id": reference, "occurred_at": "2026-01-23T18:10:02.574Z", "payload": payload}
        return "application/json", msgspec.json.encode({"data": data})
