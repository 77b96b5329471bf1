"""Genesys Cloud: messages and mails without an agent, contacts in a list, callbacks.

Genesys has no idempotency keys for sends. Two of its resources can still be repeated safely: the id of a contact is
chosen by the sender, and an endpoint in the same style may take a key in the body if the operator sets how long it is
honoured. 429 means not executed; 502, 503, 504 and no response mean unknown. The body fields follow the public models,
and `extra` adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from semel.http_client.client import Answered, Client
from semel.http_client.resolver import place_of
from semel.providers.auth import Auth, CredentialsError, OAuthToken, basic_header
from semel.providers.http import SENT_BY_FORMER_PROVIDER, HttpProvider, Request, field, idempotency_key, json_body
from semel.providers.rendering import (
    as_texts,
    bare_number,
    build_mail,
    choose_sender,
    insert_key,
    message_text,
    named_address,
)
from semel.values.delivery_state import Contract, Key
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS
from semel.values.outbox import Absent, Dispatch, Found, LookedUp, Unclear
from semel.values.secret import Secret

SMS_MAX, MESSAGE_MAX = 765, 2000  # characters, of its public models
RATE_LIMIT_WAIT_MAX_S = 300.0  # a header cannot pause a provider for longer
SIGN_IN_SHARE = 1 / 3  # of a send's timeout
DAY_S = 86_400.0


def client_credentials(
    name: str, login_url: str, client_id: str, secret: Secret, *, timeout_s: float, allow: Sequence[str] = ()
) -> OAuthToken:
    """`login_url`: https://login.{region}."""
    budget_s = timeout_s * SIGN_IN_SHARE
    return OAuthToken(
        Client(place_of(name, login_url), allow, budget_s),
        f"{login_url.rstrip('/')}/oauth/token",
        lambda: {"grant_type": "client_credentials"},
        budget_s=budget_s,
        headers=lambda: {"Authorization": basic_header(client_id, secret)},
        secrets=(secret,),
    )


class Genesys(HttpProvider):
    """Base of the Genesys providers: sender, extra fields, reference and rate limit."""

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
        """`url`: https://api.{region}. `extra`: fields that are added to every body."""
        super().__init__(url, auth, contract=contract, allow=allow)
        self._sender = sender
        self._extra = dict(extra or {})

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    def rate_limited_for_s(self, headers: Mapping[str, str]) -> float:
        """The headers have the requests of the current minute and the seconds until the count resets."""
        try:
            count, allowed = int(headers["inin-ratelimit-count"]), int(headers["inin-ratelimit-allowed"])
            reset_s = float(headers["inin-ratelimit-reset"])
        except (KeyError, ValueError):
            return 0.0
        return min(reset_s, RATE_LIMIT_WAIT_MAX_S) if count >= allowed > 0 and reset_s > 0 else 0.0


class GenesysMessage(Genesys):
    """SMS, and messages of open or third-party channels."""

    CONTRACT: ClassVar[Contract] = Contract(name="genesys", channels=("sms", "message"))

    def __init__(self, url: str, auth: Auth, *, messenger: str = "sms", text_max: int = 0, **more: Any) -> None:
        """`messenger`: the type of the recipient's address, by Genesys's name."""
        super().__init__(url, auth, **more)
        self._messenger = messenger
        self._text_max = text_max or (SMS_MAX if messenger == "sms" else MESSAGE_MAX)

    def build_request(self, dispatch: Dispatch) -> Request:
        notification = dispatch.notification
        document: dict[str, Any] = {
            "fromAddress": choose_sender(dispatch, "genesys", self._sender),
            "toAddress": bare_number(notification.recipient)
            if self._messenger == "whatsapp"
            else notification.recipient,
            "toAddressMessengerType": self._messenger,
        }
        if notification.template:
            parameters = as_texts(notification.data, "the template's data")
            document["messagingTemplate"] = {
                "responseId": notification.template,
                "bodyParameters": [{"id": id, "value": value} for id, value in parameters.items()],
            }
        else:
            document["textBody"] = message_text(dispatch, "genesys", self._text_max)
        return Request("/api/v2/conversations/messages/agentless", json_body({**self._extra, **document}))


class GenesysEmail(Genesys):
    CONTRACT: ClassVar[Contract] = Contract(name="genesys-email", channels=("email",))

    def __init__(self, url: str, auth: Auth, *, sender_type: str = "Outbound", **more: Any) -> None:
        super().__init__(url, auth, **more)
        self._sender_type = sender_type

    def build_request(self, dispatch: Dispatch) -> Request:
        mail = build_mail(dispatch, "genesys", self._sender)
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
    """A contact in a contact list, for a campaign. The contact's id is the notification id, so repeated writes create
    one contact."""

    CONTRACT: ClassVar[Contract] = Contract(
        name="genesys-contacts",
        channels=CHANNELS,
        key=Key(path="id", window_s=DAY_S),  # a contact keeps its id, but the list may be emptied
        looks_up=True,
        settle_s=60.0,
    )

    def __init__(self, url: str, auth: Auth, *, contact_list: str, column: str = "", **more: Any) -> None:
        """`column`: the column for the recipient, besides the columns of the notification's data or body."""
        super().__init__(url, auth, **more)
        self._list = contact_list
        self._column = column
        self._path = f"/api/v2/outbound/contactlists/{quote(contact_list, safe='')}/contacts"

    def build_request(self, dispatch: Dispatch) -> Request:
        notification = dispatch.notification
        fields = notification.body if isinstance(notification.body, Mapping) else notification.data
        columns = as_texts(fields, "the contact's columns")
        if self._column:
            columns[self._column] = notification.recipient
        if not columns:
            raise ConfigError("genesys-contacts: a contact needs columns: pass them as the body or as data")
        contact = {**self._extra, "id": idempotency_key(dispatch), "contactListId": self._list, "data": columns}
        query = urlencode({"doNotQueue": "true", "clearSystemData": "false"})
        return Request(f"{self._path}?{query}", f"[{json_body(contact)}]")

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        if (stored := self.stored_request(dispatch)) is None:
            return Unclear(SENT_BY_FORMER_PROVIDER)
        contacts = stored.path.partition("?")[0]  # of the list that the contact was written to
        try:
            answer = await self.call(f"{contacts}/{idempotency_key(dispatch)}", None, {}, "GET")
        except CredentialsError as error:
            return Unclear(str(error))
        match answer:
            case Answered(status=200) if field(answer, "id") == idempotency_key(dispatch):
                return Found(idempotency_key(dispatch))
            case Answered(status=404):  # also safe if a proxy sent it: the retry writes the same contact
                return Absent()
            case Answered():
                return Unclear(self.evidence(answer))
        return Unclear("the contact list could not be read")


class GenesysCallback(Genesys):
    """A callback in a queue. The notification id is in its data and becomes an attribute of the conversation."""

    CONTRACT: ClassVar[Contract] = Contract(name="genesys-callback", channels=("voice",))

    def __init__(self, url: str, auth: Auth, *, queue: str, reference_name: str = "semelId", **more: Any) -> None:
        super().__init__(url, auth, **more)
        self._queue = queue
        self._reference_name = reference_name

    def build_request(self, dispatch: Dispatch) -> Request:
        notification = dispatch.notification
        data = as_texts(notification.data, "the callback's data")
        if notification.template or not (notification.body is None or isinstance(notification.body, str)):
            raise ConfigError("genesys-callback: the body must be a text, and templates are not supported")
        if notification.body:
            data.setdefault("notes", notification.body)
        document = {
            **self._extra,
            "queueId": self._queue,
            "callbackNumbers": [notification.recipient],
            "data": {**data, self._reference_name: idempotency_key(dispatch)},
        }
        if notification.sender or self._sender:
            document["callerId"] = notification.sender or self._sender
        return Request("/api/v2/conversations/callbacks", json_body(document))

    def reference(self, answer: Answered) -> str:
        return field(answer, "conversation", "id")


class GenesysKeyed(Genesys):
    """An endpoint that takes a key in its body. How long the key is honoured is not documented: without `key_window`
    Semel sends the key but does not rely on it."""

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

    def build_request(self, dispatch: Dispatch) -> Request:
        notification = dispatch.notification
        if not isinstance(notification.body, Mapping):
            raise ConfigError("genesys-keyed: the body must be an object, the document to post")
        document = {**self._extra, **notification.body}
        if self._recipient_name:
            document[self._recipient_name] = notification.recipient
        return Request(self._path, json_body(insert_key(document, self._key_path, idempotency_key(dispatch))))
