"""Twilio: a form in, JSON out, Basic credentials, a list of messages in pages. A message in its queue has no
sending date, so a query by that date does not list it."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from urllib.parse import parse_qs, urlencode, urlsplit

from semel.testing.simulator.dialect import Callback, Dialect, basic, careless, given
from semel.testing.simulator.http import Request, Response, as_json
from semel.testing.simulator.state import Message, State

ACCOUNT, SECRET = "ACsimulated", "twilio-secret"
_MESSAGES = re.compile(r"/2010-04-01/Accounts/(?P<account>[^/]+)/Messages\.json")
QUEUED_S = 3_600.0  # a queue of Twilio's may be hours long
_WORDS = {"accepted": "sent", "delivered": "delivered", "undelivered": "undelivered"}


class Twilio(Dialect):
    name = "twilio"
    prefix = "SM"

    def other(self, request: Request, state: State) -> Response | None:
        found = _MESSAGES.fullmatch(request.path)
        if found is None:
            return self.refused(404, "The requested resource was not found")
        if given(request) != basic(ACCOUNT, SECRET) or found["account"] != ACCOUNT:
            return self.refused(401, careless(given(request)))
        return None if request.method == "POST" else self._page(request, state)

    def _page(self, request: Request, state: State) -> Response:
        """The newest first."""
        mine = [one for one in state.phone if one.provider == self.name]
        if "To" in request.query:
            mine = [one for one in mine if one.to == request.query["To"]]
        if "From" in request.query:
            mine = [one for one in mine if one.sender == request.query["From"]]
        if any(name.startswith("DateSent") for name in request.query):
            mine = [one for one in mine if time.time() - one.at > QUEUED_S]
        listed = [
            {
                "sid": one.reference,
                "to": one.to,
                "from": one.sender,
                "body": one.text,
                "date_created": formatdate(one.at, usegmt=True),
                "date_sent": None,
                "status": "queued",
            }
            for one in reversed(mine)
        ]
        size, page = int(request.query.get("PageSize", "50")), int(request.query.get("Page", "0"))
        more = len(listed) > size * (page + 1)
        following = f"{request.path}?{urlencode({**request.query, 'Page': page + 1})}" if more else None
        return as_json(200, {"messages": listed[size * page : size * (page + 1)], "next_page_uri": following})

    def read(self, request: Request) -> Message:
        form = request.form()
        if not form.get("To", "").startswith("+") or not form.get("Body") or not form.get("From"):
            raise ValueError("The 'To', 'From' or 'Body' is not valid")
        callback = form.get("StatusCallback", "")
        ours = parse_qs(urlsplit(callback).query).get("id", [""])[0]
        return Message(form["To"], form["Body"], "", ours, callback, sender=form["From"])

    def accepted(self, message: Message, reference: str) -> Response:
        return as_json(201, {"sid": reference, "status": "queued", "to": message.to, "body": message.text})

    def refused(self, status: int, reason: str) -> Response:
        return as_json(status, {"code": 21211, "message": reason, "status": status})

    def callback(self, message: Message, reference: str, word: str) -> Callback | None:
        form = {"MessageSid": reference, "MessageStatus": _WORDS[word], "To": message.to, "AccountSid": ACCOUNT}
        return "application/x-www-form-urlencoded", urlencode(form).encode()
