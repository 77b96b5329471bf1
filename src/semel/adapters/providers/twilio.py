"""Twilio: SMS. It has no idempotency: after an unknown outcome its own list is looked at, and its callbacks name us.

The list has no id of ours. A message with this text, between these numbers, made while our request was on its way, is
taken for this one; where another one could be meant, or a clock be wrong, the look-up says that it cannot tell:

    ── WIDE_S ──┬── TIGHT_S ──┬ crossing ┄ timeout ┬── TIGHT_S ──┬── settle time, WIDE_S ──
      cannot tell             │  exactly one: found │                   cannot tell
                  nothing with this text in all of it: it did not leave

It is asked for by its two numbers and not by its date: that is the date of sending, and what waits in Twilio's queue
has none. A text that was changed on its way (other quotation marks, words of a trial account before it), or that an
account does not show, may be ours: nothing can be told then.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import ClassVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from msgspec import Struct

from semel.adapters.providers import addressing
from semel.adapters.providers.auth import Auth, NoAccess
from semel.adapters.providers.posting import ASKED_ELSEWHERE, HttpProvider, Request, field
from semel.adapters.providers.reading import form, ours, witnesses
from semel.adapters.providers.saying import sender_of, text_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Unclear, Witness
from semel.values.sending import Accepted, Answer, Contract, Reported

TEXT_MAX = 1600  # characters, of its public reference; `text_max` changes it
TIGHT_S = 5.0  # between two clocks that are kept, and whole seconds
WIDE_S = 900.0  # clocks that are this far apart are somebody's alarm
PAGES_MAX = 5
_LISTED = re.compile(r"(?:[a-z]+:)?\+[1-9][0-9]{1,14}", re.ASCII)  # a number as its list has it
_DIALLED = re.compile(r"[0-9 ()+./-]{9,}", re.ASCII)  # a number however it is written; a short code is shorter
KNOWN_MAX = 10_000  # references of this process, so that nobody else's message is taken for this one

REPORTS: dict[str, Reported] = {
    "accepted": "accepted",
    "scheduled": "accepted",
    "partially_delivered": "accepted",
    "queued": "accepted",
    "sending": "accepted",
    "sent": "accepted",
    "delivered": "delivered",
    "read": "delivered",
    "undelivered": "undelivered",
    "failed": "undelivered",
    "canceled": "undelivered",
}


class _Message(Struct):
    sid: str
    to: str | None = None
    body: str | None = None
    date_created: str | None = None


class _Page(Struct):
    messages: list[_Message]  # an answer without it is not this list
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
        text_max: int = TEXT_MAX,
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """`callback`: the URL of Semel that Twilio tells what became of a message; our id is added to it."""
        super().__init__(url, auth, contract=contract, allow=allow)
        addressing.check(callback, self.contract.name)
        self._who += f" {account}"
        self._path = f"/2010-04-01/Accounts/{quote(account, safe='')}/Messages.json"
        self._sender = sender
        self._callback = callback
        self.by_reference = not callback  # then its callbacks, if it makes any, do not have our id
        self._text_max = text_max
        self._whose: OrderedDict[str, bytes] = OrderedDict()

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        text = text_of(dispatch, "twilio", self._text_max)
        form = {"To": said.recipient, "From": sender_of(dispatch, "twilio", self._sender), "Body": text}
        if self._callback:
            form["StatusCallback"] = addressing.with_id(self._callback, dispatch.id.hex())
        return Request(self._path, urlencode(form), "application/x-www-form-urlencoded")

    def reference(self, answer: Answered) -> str:
        return field(answer, "sid")

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        answer = await super().send(dispatch, request)
        if isinstance(answer, Accepted):
            self._remember(answer.reference, dispatch.id)
        return answer

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = form(body, "twilio")
        status, reference = told.get("MessageStatus") or told.get("SmsStatus") or "", told.get("MessageSid", "")
        if not status or not reference:
            raise MalformedEvent("no status callback of Twilio: MessageSid or MessageStatus is missing")
        id = ours(form(query, "twilio").get("id"))
        return witnesses(self.contract.name, REPORTS, status, id=id, reference=reference)

    # ------------------------------------------------------------------------------------------------------ looking up

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        if (left := self.may_have_left(dispatch)) is None:
            return Unclear(ASKED_ELSEWHERE)
        sent, standing = dict(parse_qsl(left.body)), dispatch.standing
        to, sender, text = (sent.get(name, "") for name in ("To", "From", "Body"))
        listed = await self._listed(to, sender)
        if isinstance(listed, Unclear):
            return listed
        first_s, last_s = (standing.doubt_ms or standing.crossed_ms) / 1000, standing.crossed_ms / 1000
        wide = (first_s - WIDE_S, last_s + self.contract.settle_s + WIDE_S)
        tight = (first_s - TIGHT_S, last_s + self.contract.timeout_s + TIGHT_S)
        near: list[str] = []
        for message in listed:
            if self._whose.get(message.sid, dispatch.id) != dispatch.id or not _may_be(message.body, text):
                continue
            made_s = _seconds(message.date_created)
            if made_s is not None and not wide[0] <= made_s <= wide[1]:
                continue
            if made_s is None or not tight[0] <= made_s <= tight[1]:
                return Unclear("its list has this text at about that time, and it may be another message")
            if (message.to, message.body) != (to, text):
                return Unclear("its list has a text at that time that may be this one, and is not the same")
            near.append(message.sid)
        if len(near) > 1:
            return Unclear(f"its list has this text {len(near)} times at that time")
        if not near:
            return Absent()
        self._remember(near[0], dispatch.id)
        return Found(near[0])

    async def _listed(self, to: str, sender: str) -> list[_Message] | Unclear:
        """All messages between these numbers."""
        if _LISTED.fullmatch(to) is None or (_DIALLED.fullmatch(sender) and _LISTED.fullmatch(sender) is None):
            return Unclear("its list writes numbers as +49…, and the recipient or the sender is written otherwise")
        path = f"{self._path}?{urlencode({'To': to, 'From': sender, 'PageSize': '200'})}"
        found: list[_Message] = []
        for _ in range(PAGES_MAX):
            page = await self._one_page(path)
            if isinstance(page, Unclear):
                return page
            found += page.messages
            if page.next_page_uri is None:
                return found
            path = page.next_page_uri
            if not path.startswith(f"{self._path}?"):
                return Unclear("its list goes on at another place")
        return Unclear(f"its list has more than {PAGES_MAX} pages")

    async def _one_page(self, path: str) -> _Page | Unclear:
        try:
            answer = await self.ask(path, None, {}, "GET")
        except NoAccess as error:
            return Unclear(str(error))
        if not isinstance(answer, Answered) or answer.status != 200 or answer.body is None:
            return Unclear("its list of messages could not be read")
        try:
            return _page(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Unclear("its list of messages cannot be understood")

    def _remember(self, reference: str, id: bytes) -> None:
        if reference:
            self._whose[reference] = id
            if len(self._whose) > KNOWN_MAX:
                self._whose.popitem(last=False)


def _may_be(listed: str | None, said: str) -> bool:
    """Not by its signs, which may be changed, and with something before it; a text that is not shown may be any."""
    letters = _letters(listed or "")
    return not letters or letters.endswith(_letters(said))


def _letters(text: str) -> str:
    return "".join(char for char in text if char.isalnum())


def _seconds(date: str | None) -> float | None:
    """Of a date as mail writes it. Without a zone it is UTC, and not that of this machine."""
    try:
        read = parsedate_to_datetime(date or "")
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
