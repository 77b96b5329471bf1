"""Genesys Cloud: messages and mails without an agent, contacts in a list, callbacks.

It has no idempotency for what it sends. Two of its ways can be repeated all the same: a contact's id is ours to choose,
and an endpoint in its style can take a key in the body, if a person declares for how long it is honoured. 429 means
not executed; 502, 503, 504 and no answer mean unknown. Paths are our facts' (domain §4); fields of the bodies are those
of its public models, and `extra` adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from semel.adapters.providers.auth import Auth, Hidden, NoAccess, Token, basic
from semel.adapters.providers.filling import with_key
from semel.adapters.providers.posting import ASKED_ELSEWHERE, HttpProvider, Request, field, json_body, key_of
from semel.adapters.providers.saying import bare_number, mail_of, named_address, sender_of, text_of, texts_of
from semel.adapters.wire.answers import Answered
from semel.adapters.wire.client import Client
from semel.adapters.wire.place import place_of
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Unclear
from semel.values.sending import Contract, Key

SMS_MAX, MESSAGE_MAX = 765, 2000  # characters, of its public models
USED_UP_MAX_S = 300.0  # the most that a header can make us wait
SIGN_IN_SHARE = 1 / 3  # of a send's time
DAY_S = 86_400.0


def client_credentials(
    name: str, login_url: str, client_id: str, secret: Hidden, *, timeout_s: float, allow: Sequence[str] = ()
) -> Token:
    """`login_url`: https://login.{region}."""
    takes_s = timeout_s * SIGN_IN_SHARE
    return Token(
        Client(place_of(name, login_url), allow, takes_s),
        f"{login_url.rstrip('/')}/oauth/token",
        lambda: {"grant_type": "client_credentials"},
        takes_s=takes_s,
        headers=lambda: {"Authorization": basic(client_id, secret)},
        secrets=(secret,),
    )


class Genesys(HttpProvider):
    """What its ways share."""

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        sender: str = "",
        extra: Mapping[str, Any] | None = None,
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """`url`: https://api.{region}. `extra`: fields that are added to each body."""
        super().__init__(url, auth, contract=contract, allow=allow)
        self._sender = sender
        self._extra = dict(extra or {})

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    def used_up_s(self, headers: Mapping[str, str]) -> float:
        """Its headers count the requests of a minute, and say in how many seconds the count begins anew."""
        try:
            count, allowed = int(headers["inin-ratelimit-count"]), int(headers["inin-ratelimit-allowed"])
            reset_s = float(headers["inin-ratelimit-reset"])
        except (KeyError, ValueError):
            return 0.0
        return min(reset_s, USED_UP_MAX_S) if count >= allowed > 0 and reset_s > 0 else 0.0


class GenesysMessage(Genesys):
    """SMS, and messages of its open or third-party channels."""

    CONTRACT: ClassVar[Contract] = Contract(name="genesys", channels=("sms", "message"))

    def __init__(self, url: str, auth: Auth, *, messenger: str = "sms", text_max: int = 0, **more: Any) -> None:
        """`messenger`: the type of the recipient's address, as Genesys names it."""
        super().__init__(url, auth, **more)
        self._messenger = messenger
        self._text_max = text_max or (SMS_MAX if messenger == "sms" else MESSAGE_MAX)

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        document: dict[str, Any] = {
            "fromAddress": sender_of(dispatch, "genesys", self._sender),
            "toAddress": bare_number(said.recipient) if self._messenger == "whatsapp" else said.recipient,
            "toAddressMessengerType": self._messenger,
        }
        if said.template:
            parameters = texts_of(said.data, "the template's data")
            document["messagingTemplate"] = {
                "responseId": said.template,
                "bodyParameters": [{"id": id, "value": value} for id, value in parameters.items()],
            }
        else:
            document["textBody"] = text_of(dispatch, "genesys", self._text_max)
        return Request("/api/v2/conversations/messages/agentless", json_body({**self._extra, **document}))


class GenesysEmail(Genesys):
    CONTRACT: ClassVar[Contract] = Contract(name="genesys-email", channels=("email",))

    def __init__(self, url: str, auth: Auth, *, sender_type: str = "Outbound", **more: Any) -> None:
        super().__init__(url, auth, **more)
        self._sender_type = sender_type

    def write(self, dispatch: Dispatch) -> Request:
        mail = mail_of(dispatch, "genesys", self._sender)
        document: dict[str, Any] = {
            "senderType": self._sender_type,
            "fromAddress": named_address(mail.sender),
            "toAddresses": [{"email": mail.to}],
            "subject": mail.subject,
        }
        if mail.text:
            document["textBody"] = mail.text
        if mail.html:
            document["htmlBody"] = mail.html
        return Request("/api/v2/conversations/emails/agentless", json_body({**self._extra, **document}))


class GenesysContacts(Genesys):
    """A contact in a list, for a campaign to act on. Its id is ours, so that it is written once, however often."""

    CONTRACT: ClassVar[Contract] = Contract(
        name="genesys-contacts",
        channels=CHANNELS,
        key=Key(path="id", window_s=DAY_S),  # a contact does not forget its id; the list may be emptied
        looks_up=True,
        settle_s=60.0,
    )

    def __init__(self, url: str, auth: Auth, *, contact_list: str, column: str = "", **more: Any) -> None:
        """`column`: where the recipient goes, besides the columns of the notification's data or body."""
        super().__init__(url, auth, **more)
        self._list = contact_list
        self._column = column
        self._path = f"/api/v2/outbound/contactlists/{quote(contact_list, safe='')}/contacts"

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        given = said.body if isinstance(said.body, Mapping) else said.data
        columns = texts_of(given, "the contact's columns")
        if self._column:
            columns[self._column] = said.recipient
        if not columns:
            raise ConfigError("a contact has columns: give them as the body, or as data")
        contact = {**self._extra, "id": key_of(dispatch), "contactListId": self._list, "data": columns}
        query = urlencode({"doNotQueue": "true", "clearSystemData": "false"})
        return Request(f"{self._path}?{query}", f"[{json_body(contact)}]")

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        if (left := self.may_have_left(dispatch)) is None:
            return Unclear(ASKED_ELSEWHERE)
        contacts = left.path.partition("?")[0]  # of the list that it went to
        try:
            answer = await self.ask(f"{contacts}/{key_of(dispatch)}", None, {}, "GET")
        except NoAccess as error:
            return Unclear(str(error))
        match answer:
            case Answered(status=200) if field(answer, "id") == key_of(dispatch):
                return Found(key_of(dispatch))
            case Answered(status=404):  # whoever says so: what follows is the same contact again
                return Absent()
            case Answered():
                return Unclear(self.told(answer))
        return Unclear("the contact list could not be read")


class GenesysCallback(Genesys):
    """A callback in a queue. Our reference is in its data, and comes back as an attribute of the conversation."""

    CONTRACT: ClassVar[Contract] = Contract(name="genesys-callback", channels=("voice",))

    def __init__(self, url: str, auth: Auth, *, queue: str, reference_name: str = "semelId", **more: Any) -> None:
        super().__init__(url, auth, **more)
        self._queue = queue
        self._reference_name = reference_name

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        data = texts_of(said.data, "the callback's data")
        if said.template or not (said.body is None or isinstance(said.body, str)):
            raise ConfigError("a callback has a text as its body (it becomes the notes), and data")
        if said.body:
            data.setdefault("notes", said.body)
        document = {
            **self._extra,
            "queueId": self._queue,
            "callbackNumbers": [said.recipient],
            "data": {**data, self._reference_name: key_of(dispatch)},
        }
        if said.sender or self._sender:
            document["callerId"] = said.sender or self._sender
        return Request("/api/v2/conversations/callbacks", json_body(document))

    def reference(self, answer: Answered) -> str:
        return field(answer, "conversation", "id")


class GenesysKeyed(Genesys):
    """An endpoint that takes a key in its body. Only a person can know for how long it honours it: without
    `key_window` the key is sent, and not relied on."""

    CONTRACT: ClassVar[Contract] = Contract(name="genesys-keyed", channels=CHANNELS)

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        path: str = "/api/v2/outbound/contacts",
        key_path: str = "idempotencyKey",
        recipient_name: str = "",
        **more: Any,
    ) -> None:
        super().__init__(url, auth, **more)
        self._path = path
        self._key_path = key_path
        self._recipient_name = recipient_name

    def write(self, dispatch: Dispatch) -> Request:
        said = dispatch.notification
        if not isinstance(said.body, Mapping):
            raise ConfigError("the body is the document that is posted: it has to be one")
        document = {**self._extra, **said.body}
        if self._recipient_name:
            document[self._recipient_name] = said.recipient
        return Request(self._path, json_body(with_key(document, self._key_path, key_of(dispatch))))
