"""Twilio: SMS, without idempotency keys.

After an unknown outcome Semel looks the message up in Twilio's message list. Callbacks carry the notification id in
their URL.

The list does not contain the notification id. The look-up reports a message as found if it has the same text and the
same two numbers and was created during the request. If another message could match, or if a clock may be wrong, the
look-up is unclear:

    ── WIDE_S ──┬── TIGHT_S ──┬ crossing ┄ timeout ┬── TIGHT_S ──┬── settle time, WIDE_S ──
        unclear               │  exactly one: found │                    unclear
                  no message with this text in the whole range: it was not sent

The query uses the two numbers, not the date: Twilio's date filter is the date of sending, which a queued message does
not have. Twilio may change a text on its way (other quotation marks, the prefix of a trial account), and some accounts
hide it. Such a message may be the one that was sent, so the look-up is unclear.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from msgspec import Struct

from semel.http_client.client import Answered
from semel.providers import callbacks
from semel.providers.auth import BasicAuth, CredentialsError
from semel.providers.callbacks import delivery_reports, parse_form, parse_id
from semel.providers.http import SENT_BY_FORMER_PROVIDER, HttpProvider, StoredRequest, field
from semel.providers.options import HttpOptions, Positive, PublicUrl, SecretValue, Text, TextMax
from semel.providers.rendering import choose_sender, message_text
from semel.values.delivery_state import Accepted, Answer, Contract, Reported
from semel.values.errors import MalformedEvent
from semel.values.outbox import Absent, DeliveryReport, Dispatch, Found, LookedUp, Unclear

TEXT_MAX = 1600  # characters, from the public reference; `text_max` changes it
TIGHT_S = 5.0  # difference of two synchronized clocks, and rounding to whole seconds
WIDE_S = 900.0  # clocks that differ by more would have raised an alarm elsewhere
PAGES_MAX = 5
_LISTED = re.compile(r"(?:[a-z]+:)?\+[1-9][0-9]{1,14}", re.ASCII)  # a number as the list has it
_DIALLED = re.compile(r"[0-9 ()+./-]{9,}", re.ASCII)  # a number in any notation; a short code is shorter
REFERENCES_MAX = 10_000  # of this process, so that the message of another notification is not taken for this one

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
    messages: list[_Message]  # required: a response without it is not the list
    next_page_uri: str | None = None


_page = msgspec.json.Decoder(_Page).decode


class TwilioOptions(HttpOptions, frozen=True, kw_only=True):
    url: PublicUrl = "https://api.twilio.com"
    text_max: TextMax = TEXT_MAX
    account: Annotated[Text, "AC…"]
    token: Annotated[SecretValue, "the account's auth token"]
    sender: Annotated[Text, "sender number of the account"]
    callback: Annotated[Text, "Semel's URL for status callbacks; Semel adds the notification id"] = ""
    settle: Annotated[Positive, "seconds until the message list is complete"] | None = None


class Twilio(HttpProvider[TwilioOptions]):
    OPTIONS: ClassVar[type[TwilioOptions]] = TwilioOptions
    CONTRACT: ClassVar[Contract] = Contract(name="twilio", channels=("sms",), looks_up=True, settle_s=120.0)

    def __init__(self, options: TwilioOptions, contract: Contract) -> None:
        super().__init__(options, contract, options.url, BasicAuth(options.account, options.token))
        callbacks.check_callback_url(options.callback, contract.name)
        self._account += f" {options.account}"
        self._path = f"/2010-04-01/Accounts/{quote(options.account, safe='')}/Messages.json"
        self.by_reference = not options.callback  # without it callbacks, if any, have no notification id
        self._ids_by_reference: OrderedDict[str, bytes] = OrderedDict()

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification = dispatch.notification
        text = message_text(dispatch, "twilio", self._options.text_max)
        form = {
            "To": notification.recipient,
            "From": choose_sender(dispatch, "twilio", self._options.sender),
            "Body": text,
        }
        if self._options.callback:
            form["StatusCallback"] = callbacks.add_id(self._options.callback, dispatch.id.hex())
        return StoredRequest(self._path, urlencode(form), "application/x-www-form-urlencoded")

    def reference(self, answer: Answered) -> str:
        return field(answer, "sid")

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        answer = await super().send(dispatch, request)
        if isinstance(answer, Accepted):
            self._remember(answer.reference, dispatch.id)
        return answer

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_form(body, "twilio")
        status = payload.get("MessageStatus") or payload.get("SmsStatus") or ""
        reference = payload.get("MessageSid", "")
        if not status or not reference:
            raise MalformedEvent("not a callback of Twilio: MessageSid or MessageStatus is missing")
        id = parse_id(parse_form(query, "twilio").get("id"))
        return delivery_reports(self.contract.name, REPORTS, status, id=id, reference=reference)

    # --------------------------------------------------------------------------------------------------------- look-up

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        if (stored := self.stored_request(dispatch)) is None:
            return Unclear(SENT_BY_FORMER_PROVIDER)
        sent, state = dict(parse_qsl(stored.body)), dispatch.delivery_state
        to, sender, text = (sent.get(name, "") for name in ("To", "From", "Body"))
        listed = await self._list_messages(to, sender)
        if isinstance(listed, Unclear):
            return listed
        first_s, last_s = (state.doubt_ms or state.crossed_ms) / 1000, state.crossed_ms / 1000
        wide = (first_s - WIDE_S, last_s + self.contract.settle_s + WIDE_S)
        tight = (first_s - TIGHT_S, last_s + self.contract.timeout_s + TIGHT_S)
        matches: list[str] = []
        for message in listed:
            if self._ids_by_reference.get(message.sid, dispatch.id) != dispatch.id:
                continue
            if not _may_match(message.body, text):
                continue
            created_s = _seconds(message.date_created)
            if created_s is not None and not wide[0] <= created_s <= wide[1]:
                continue
            if created_s is None or not tight[0] <= created_s <= tight[1]:
                return Unclear("the message list has this text near that time, but it may be another message")
            if (message.to, message.body) != (to, text):
                return Unclear("the message list has a similar text at that time, which may be this message")
            matches.append(message.sid)
        if len(matches) > 1:
            return Unclear(f"the message list has this text {len(matches)} times at that time")
        if not matches:
            return Absent()
        self._remember(matches[0], dispatch.id)
        return Found(matches[0])

    async def _list_messages(self, to: str, sender: str) -> list[_Message] | Unclear:
        """List all messages between these numbers."""
        if _LISTED.fullmatch(to) is None or (_DIALLED.fullmatch(sender) and _LISTED.fullmatch(sender) is None):
            return Unclear("the message list has numbers as +49…, but the recipient or the sender has another format")
        path = f"{self._path}?{urlencode({'To': to, 'From': sender, 'PageSize': '200'})}"
        found: list[_Message] = []
        for _ in range(PAGES_MAX):
            page = await self._fetch_page(path)
            if isinstance(page, Unclear):
                return page
            found += page.messages
            if page.next_page_uri is None:
                return found
            path = page.next_page_uri
            if not path.startswith(f"{self._path}?"):
                return Unclear("the next page of the message list has another path")
        return Unclear(f"the message list has more than {PAGES_MAX} pages")

    async def _fetch_page(self, path: str) -> _Page | Unclear:
        try:
            answer = await self.call(path, None, {}, "GET")
        except CredentialsError as error:
            return Unclear(str(error))
        if not isinstance(answer, Answered) or answer.status != 200 or answer.body is None:
            return Unclear("the message list could not be read")
        try:
            return _page(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Unclear("the message list is malformed")

    def _remember(self, reference: str, id: bytes) -> None:
        if reference:
            self._ids_by_reference[reference] = id
            if len(self._ids_by_reference) > REFERENCES_MAX:
                self._ids_by_reference.popitem(last=False)


def _may_match(listed: str | None, sent: str) -> bool:
    """Whether a listed text may be the one that was sent. Compares letters and digits only, because Twilio may change
    punctuation, and allows a prefix. A hidden text may be any."""
    listed_letters = _alphanumeric(listed or "")
    return not listed_letters or listed_letters.endswith(_alphanumeric(sent))


def _alphanumeric(text: str) -> str:
    return "".join(char for char in text if char.isalnum())


def _seconds(date: str | None) -> float | None:
    """Parse an RFC 2822 date. A date without a zone is UTC, not the local time of this machine."""
    try:
        time = parsedate_to_datetime(date or "")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
