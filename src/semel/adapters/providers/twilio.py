"""Twilio: SMS. It has no idempotency: after an unknown outcome its own list is looked at, and its callbacks name us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import parse_qs, quote, urlencode

import msgspec
from msgspec import Struct

from semel.adapters.providers.auth import Auth, NoAccess
from semel.adapters.providers.posting import HttpProvider, Request, field
from semel.adapters.wire.answers import Answered
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Unclear, Witness
from semel.values.sending import Contract, Reported

REPORTS: dict[str, Reported] = {
    "accepted": "accepted",
    "queued": "accepted",
    "sending": "accepted",
    "sent": "accepted",
    "delivered": "delivered",
    "undelivered": "undelivered",
    "failed": "undelivered",
}


class _Message(Struct):
    sid: str
    to: str = ""
    body: str = ""
    date_created: str = ""


class _Page(Struct):
    messages: list[_Message] = []
    next_page_uri: str | None = None


_page = msgspec.json.Decoder(_Page).decode


class Twilio(HttpProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="twilio", channels=("sms",), looks_up=True, settle_s=120.0)

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        account: str,
        sender: str,
        callback: str = "",
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """`callback`: the URL of Semel that Twilio tells what became of a message; our id is added to it."""
        super().__init__(url, auth, contract=contract, allow=allow)
        self._path = f"/2010-04-01/Accounts/{quote(account, safe='')}/Messages.json"
        self._sender = sender
        self._callback = callback

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        if not isinstance(said.body, str) or not said.body:
            raise ConfigError("twilio sends texts: the body has to be one")
        form = {"To": said.recipient, "From": said.sender or self._sender, "Body": said.body}
        if self._callback:
            form["StatusCallback"] = f"{self._callback}?id={dispatch.id.hex()}"
        return Request(self._path, urlencode(form), "application/x-www-form-urlencoded")

    def reference(self, answer: Answered) -> str:
        return field(answer, "sid")

    def reports(self, headers: Mapping[str, str], body: bytes) -> list[Witness]:
        form = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        status = form.get("MessageStatus") or form.get("SmsStatus") or ""
        if status not in REPORTS or "MessageSid" not in form:
            raise MalformedEvent("no status callback of Twilio: MessageSid and MessageStatus are missing or unknown")
        return [Witness(REPORTS[status], None, self.contract.name, form["MessageSid"], evidence=f"callback: {status}")]

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        """Its list has no id of ours: a message with this text to this number since the crossing is this one."""
        said = dispatch.notification
        since = datetime.fromtimestamp(dispatch.standing.doubt_ms / 1000, UTC)
        query = {"To": said.recipient, "DateSent>": since.strftime("%Y-%m-%d"), "PageSize": "200"}
        try:
            answer = await self.ask(f"{self._path}?{urlencode(query)}", None, {}, "GET")
        except NoAccess as error:
            return Unclear(str(error))
        if not isinstance(answer, Answered) or answer.status != 200 or answer.body is None:
            return Unclear("its list of messages could not be read")
        try:
            page = _page(answer.body)
        except msgspec.DecodeError:
            return Unclear("its list of messages cannot be understood")
        for message in page.messages:
            if message.body == said.body and message.to == said.recipient:
                return Found(message.sid)
        return Unclear("its list has more pages than one") if page.next_page_uri else Absent()
