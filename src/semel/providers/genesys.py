"""Genesys Cloud: messages and mails without an agent, contacts in a list, callbacks.

Genesys has no idempotency keys for sends. Two of its resources can still be repeated safely: the id of a contact is
chosen by the sender, and an endpoint in the same style may take a key in the body if the operator sets how long it is
honoured. 429 means not executed; 502, 503, 504 and no response mean unknown. The body fields follow the public models,
and `extra` adds to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from semel.http_client.client import Answered, Client
from semel.http_client.resolver import server_address
from semel.providers.auth import CredentialsError, OAuthToken, basic_header
from semel.providers.http import SENT_BY_FORMER_PROVIDER, HttpProvider, StoredRequest, field, idempotency_key, json_body
from semel.providers.options import (
    Extra,
    Host,
    HttpOptions,
    KeyPath,
    KeyWindow,
    MailSender,
    Positive,
    SecretValue,
    Sender,
    Text,
    TextMax,
    UnverifiedPath,
)
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

SMS_MAX, MESSAGE_MAX = 765, 2000  # characters, of its public models
RATE_LIMIT_WAIT_MAX_S = 300.0  # a header cannot pause a provider for longer
SIGN_IN_SHARE = 1 / 3  # of a send's timeout
DAY_S = 86_400.0


class GenesysOptions(HttpOptions, frozen=True, kw_only=True):
    region: Annotated[Host, "domain of the region, such as mypurecloud.de"] = ""
    url: Annotated[Text, "https://api.…; the region's by default"] = ""
    login_url: Annotated[Text, "https://login.…; the region's by default"] = ""
    client_id: Annotated[Text, "of an OAuth client with client credentials"]
    client_secret: Annotated[SecretValue, "of that client"]
    extra: Extra = msgspec.field(default_factory=dict)


GenesysOptionsT = TypeVar("GenesysOptionsT", bound=GenesysOptions)


class Genesys(HttpProvider[GenesysOptionsT]):
    """Base of the Genesys providers: authentication with client credentials, extra fields, reference and rate limit."""

    def __init__(self, options: GenesysOptionsT, contract: Contract) -> None:
        if not (options.region or (options.url and options.login_url)):
            raise ConfigError(f"provider {contract.name!r}: region is missing: its domain, such as mypurecloud.de")
        login_url = options.login_url or f"https://login.{options.region}"
        budget_s = contract.timeout_s * SIGN_IN_SHARE
        auth = OAuthToken(
            Client(server_address(contract.name, login_url), options.allow, budget_s),
            f"{login_url.rstrip('/')}/oauth/token",
            lambda: {"grant_type": "client_credentials"},
            budget_s=budget_s,
            headers=lambda: {"Authorization": basic_header(options.client_id, options.client_secret)},
            secrets=(options.client_secret,),
        )
        super().__init__(options, contract, options.url or f"https://api.{options.region}", auth)

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


class GenesysMessageOptions(GenesysOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    text_max: TextMax | None = None
    messenger: Annotated[Text, 'type of the recipient\'s address, such as "sms"'] = "sms"


class GenesysMessage(Genesys[GenesysMessageOptions]):
    """SMS, and messages of open or third-party channels."""

    OPTIONS: ClassVar[type[GenesysMessageOptions]] = GenesysMessageOptions
    CONTRACT: ClassVar[Contract] = Contract(name="genesys", channels=("sms", "message"))

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification, messenger = dispatch.notification, self._options.messenger
        document: dict[str, Any] = {
            "fromAddress": choose_sender(dispatch, "genesys", self._options.sender),
            "toAddress": bare_number(notification.recipient) if messenger == "whatsapp" else notification.recipient,
            "toAddressMessengerType": messenger,
        }
        if notification.template:
            parameters = as_texts(notification.data, "the template's data")
            document["messagingTemplate"] = {
                "responseId": notification.template,
                "bodyParameters": [{"id": id, "value": value} for id, value in parameters.items()],
            }
        else:
            text_max = self._options.text_max or (SMS_MAX if messenger == "sms" else MESSAGE_MAX)
            document["textBody"] = message_text(dispatch, "genesys", text_max)
        return StoredRequest("/api/v2/conversations/messages/agentless", json_body({**self._options.extra, **document}))


class GenesysEmailOptions(GenesysOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    sender_type: Annotated[Text, "direction of the mail: Outbound or Inbound"] = "Outbound"


class GenesysEmail(Genesys[GenesysEmailOptions]):
    OPTIONS: ClassVar[type[GenesysEmailOptions]] = GenesysEmailOptions
    CONTRACT: ClassVar[Contract] = Contract(name="genesys-email", channels=("email",))

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        mail = build_mail(dispatch, "genesys", self._options.sender)
        document: dict[str, Any] = {
            "senderType": self._options.sender_type,
            "fromAddress": named_address(mail.sender),
            "toAddresses": [{"email": mail.to}],
            "subject": mail.subject,
        }
        if mail.text:
            document["textBody"] = mail.text
        if mail.html:
            document["htmlBody"] = mail.html
        return StoredRequest("/api/v2/conversations/emails/agentless", json_body({**self._options.extra, **document}))


class GenesysContactsOptions(GenesysOptions, frozen=True, kw_only=True):
    key_window: KeyWindow | None = None
    contact_list: Annotated[Text, "id of the contact list"]
    column: Annotated[Text, "column for the recipient"] = ""
    settle: Annotated[Positive, "seconds until a written contact can be read"] | None = None


class GenesysContacts(Genesys[GenesysContactsOptions]):
    """A contact in a contact list, for a campaign. The contact's id is the notification id, so repeated writes create
    one contact."""

    OPTIONS: ClassVar[type[GenesysContactsOptions]] = GenesysContactsOptions
    CONTRACT: ClassVar[Contract] = Contract(
        name="genesys-contacts",
        channels=CHANNELS,
        key=Key(path="id", window_s=DAY_S),  # a contact keeps its id, but the list may be emptied
        looks_up=True,
        settle_s=60.0,
    )

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification = dispatch.notification
        fields = notification.body if isinstance(notification.body, Mapping) else notification.data
        columns = as_texts(fields, "the contact's columns")
        if self._options.column:
            columns[self._options.column] = notification.recipient
        if not columns:
            raise ConfigError("genesys-contacts: a contact needs columns: pass them as the body or as data")
        contact_list = self._options.contact_list
        key = idempotency_key(dispatch)
        contact = {**self._options.extra, "id": key, "contactListId": contact_list, "data": columns}
        path = f"/api/v2/outbound/contactlists/{quote(contact_list, safe='')}/contacts"
        query = urlencode({"doNotQueue": "true", "clearSystemData": "false"})
        return StoredRequest(f"{path}?{query}", f"[{json_body(contact)}]")

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


class GenesysCallbackOptions(GenesysOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    queue: Annotated[Text, "id of the queue"]
    reference_name: Annotated[Text, "name of the notification id in the callback's data"] = "semelId"


class GenesysCallback(Genesys[GenesysCallbackOptions]):
    """A callback in a queue. The notification id is in its data and becomes an attribute of the conversation."""

    OPTIONS: ClassVar[type[GenesysCallbackOptions]] = GenesysCallbackOptions
    CONTRACT: ClassVar[Contract] = Contract(name="genesys-callback", channels=("voice",))

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification = dispatch.notification
        data = as_texts(notification.data, "the callback's data")
        if notification.template or not (notification.body is None or isinstance(notification.body, str)):
            raise ConfigError("genesys-callback: the body must be a text, and templates are not supported")
        if notification.body:
            data.setdefault("notes", notification.body)
        document = {
            **self._options.extra,
            "queueId": self._options.queue,
            "callbackNumbers": [notification.recipient],
            "data": {**data, self._options.reference_name: idempotency_key(dispatch)},
        }
        if notification.sender or self._options.sender:
            document["callerId"] = notification.sender or self._options.sender
        return StoredRequest("/api/v2/conversations/callbacks", json_body(document))

    def reference(self, answer: Answered) -> str:
        return field(answer, "conversation", "id")


class GenesysKeyedOptions(GenesysOptions, frozen=True, kw_only=True):
    key_window: KeyWindow | None = None
    path: UnverifiedPath = "/api/v2/outbound/contacts"
    key_path: KeyPath = "idempotencyKey"
    recipient_name: Annotated[Text, "field for the recipient in the body"] = ""


class GenesysKeyed(Genesys[GenesysKeyedOptions]):
    """An endpoint that takes a key in its body. How long the key is honoured is not documented: without `key_window`
    Semel sends the key but does not rely on it."""

    OPTIONS: ClassVar[type[GenesysKeyedOptions]] = GenesysKeyedOptions
    CONTRACT: ClassVar[Contract] = Contract(name="genesys-keyed", channels=CHANNELS)

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        notification = dispatch.notification
        if not isinstance(notification.body, Mapping):
            raise ConfigError("genesys-keyed: the body must be an object, the document to post")
        document = {**self._options.extra, **notification.body}
        if self._options.recipient_name:
            document[self._options.recipient_name] = notification.recipient
        return StoredRequest(
            self._options.path, json_body(insert_key(document, self._options.key_path, idempotency_key(dispatch)))
        )
