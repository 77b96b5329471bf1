"""Twilio: a form in, JSON out, Basic credentials, a list of messages."""

from __future__ import annotations

import base64
import re
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit

from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

ACCOUNT, SECRET = "ACsimulated", "twilio-secret"
_MESSAGES = re.compile(r"/2010-04-01/Accounts/(?P<account>[^/]+)/Messages\.json")


class Twilio:
    name = "twilio"
    prefix = "SM"
    honours_keys = False

    def other(self, request: Request, state: State) -> Response | None:
        found = _MESSAGES.fullmatch(request.path)
        if found is None:
            return self.refused(404, "The requested resource was not found")
        expected = "Basic " + base64.b64encode(f"{ACCOUNT}:{SECRET}".encode()).decode()
        if request.headers.get("authorization") != expected or found["account"] != ACCOUNT:
            return self.refused(401, "Authenticate")
        if request.method == "POST":
            return None
        mine = [one for one in state.phone if one.provider == self.name and one.to == request.query.get("To", one.to)]
        listed = [
            {"sid": one.reference, "to": one.to, "body": one.text, "date_created": formatdate(one.at, usegmt=True)}
            for one in reversed(mine)
        ]
        return as_json(200, {"messages": listed[: int(request.query.get("PageSize", "50"))], "next_page_uri": None})

    def read(self, request: Request) -> Message:
        form = request.form()
        if not form.get("To", "").startswith("+") or not form.get("Body") or not form.get("From"):
            raise ValueError("The 'To', 'From' or 'Body' is not valid")
        callback = form.get("StatusCallback", "")
        ours = parse_qs(urlsplit(callback).query).get("id", [""])[0]
        return Message(form["To"], form["Body"], "", ours, callback)

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(201, {"sid": reference, "status": "queued", "to": message.to, "body": message.text})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"code": 21211, "message": reason, "status": status})
