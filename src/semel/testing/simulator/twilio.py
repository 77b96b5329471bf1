"""Twilio: form requests, JSON responses, Basic credentials, and a paged message list. A queued message has no sending
date, so a query by that date does not list it."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from urllib.parse import parse_qs, urlencode, urlsplit

from semel.testing.simulator.dialect import Callback, Dialect, basic, header_of, unknown_credentials
from semel.testing.simulator.http import HttpRequest, SimulatedResponse, as_json
from semel.testing.simulator.state import SimulatedMessage, SimulatorState

ACCOUNT, SECRET = "ACsimulated", "twilio-secret"
_MESSAGES = re.compile(r"/2010-04-01/Accounts/(?P<account>[^/]+)/Messages\.json")
QUEUED_S = 3_600.0  # a queue of Twilio may be hours long
_STATUSES = {"accepted": "sent", "delivered": "delivered", "undelivered": "undelivered"}


class TwilioDialect(Dialect):
    name = "twilio"
    prefix = "SM"

    def other(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse | None:
        found = _MESSAGES.fullmatch(request.path)
        if found is None:
            return self.refused(404, "The requested resource was not found")
        if header_of(request) != basic(ACCOUNT, SECRET) or found["account"] != ACCOUNT:
            return self.refused(401, unknown_credentials(header_of(request)))
        return None if request.method == "POST" else self._page(request, state)

    def _page(self, request: HttpRequest, state: SimulatorState) -> SimulatedResponse:
        """The message list, newest first."""
        messages = [message for message in state.phone if message.provider == self.name]
        if "To" in request.query:
            messages = [message for message in messages if message.to == request.query["To"]]
        if "From" in request.query:
            messages = [message for message in messages if message.sender == request.query["From"]]
        if any(name.startswith("DateSent") for name in request.query):
            messages = [message for message in messages if time.time() - message.at > QUEUED_S]
        listed = [
            {
                "sid": message.reference,
                "to": message.to,
                "from": message.sender,
                "body": message.text,
                "date_created": formatdate(message.at, usegmt=True),
                "date_sent": None,
                "status": "queued",
            }
            for message in reversed(messages)
        ]
        size, page = int(request.query.get("PageSize", "50")), int(request.query.get("Page", "0"))
        more = len(listed) > size * (page + 1)
        following = f"{request.path}?{urlencode({**request.query, 'Page': page + 1})}" if more else None
        return as_json(200, {"messages": listed[size * page : size * (page + 1)], "next_page_uri": following})

    def read(self, request: HttpRequest) -> SimulatedMessage:
        form = request.form()
        if not form.get("To", "").startswith("+") or not form.get("Body") or not form.get("From"):
            raise ValueError("The 'To', 'From' or 'Body' is not valid")
        callback = form.get("StatusCallback", "")
        ours = parse_qs(urlsplit(callback).query).get("id", [""])[0]
        return SimulatedMessage(form["To"], form["Body"], "", ours, callback, sender=form["From"])

    def accepted(self, message: SimulatedMessage, reference: str) -> SimulatedResponse:
        return as_json(201, {"sid": reference, "status": "queued", "to": message.to, "body": message.text})

    def refused(self, status: int, reason: str) -> SimulatedResponse:
        return as_json(status, {"code": 21211, "message": reason, "status": status})

    def callback(self, message: SimulatedMessage, reference: str, status: str) -> Callback | None:
        form = {"MessageSid": reference, "MessageStatus": _STATUSES[status], "To": message.to, "AccountSid": ACCOUNT}
        return "application/x-www-form-urlencoded", urlencode(form).encode()
