"""Any HTTP endpoint. Its options describe the request, the key and the meaning of the responses:

url, method, headers     target and credentials (headers are secrets)
body                     a document with placeholders; by default one with all fields of the notification
key_header | key_path    place of the idempotency key; Semel relies on it only with key_window
accepted                 statuses that mean accepted; 2xx by default
answers_in_html          HTML is the endpoint's own response, not a proxy's page
report_…                 paths of the notification id, the reference and the status in a callback, and its meaning
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from semel.http_client.client import Answered
from semel.providers.auth import HeaderAuth
from semel.providers.callbacks import delivery_reports, parse_form, parse_id, parse_json, text_at, value_at
from semel.providers.http import HttpProvider, StoredRequest, field, idempotency_key, json_body
from semel.providers.options import (
    Document,
    Flag,
    HttpOptions,
    KeyPath,
    KeyWindow,
    SecretHeaders,
    Sender,
    Statuses,
    Text,
)
from semel.providers.rendering import check_template, fill_template, insert_key
from semel.values.delivery_state import Accepted, Answer, Contract, Reported, Unknown
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CHANNELS
from semel.values.outbox import DeliveryReport, Dispatch

RESERVED_HEADERS = frozenset(
    ("authorization", "content-type", "content-length", "host", "connection", "transfer-encoding", "expect")
)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
FORM = "application/x-www-form-urlencoded"
BODY: Mapping[str, Any] = {
    "id": "{id}",
    "kind": "{kind}",
    "channel": "{channel}",
    "recipient": "{recipient}",
    "subject": "{subject}",
    "body": "{body}",
    "template": "{template}",
}


class GenericOptions(HttpOptions, frozen=True, kw_only=True):
    sender: Sender = ""
    key_window: KeyWindow | None = None
    url: Annotated[Text, "URL that receives the messages"]
    method: Annotated[
        Literal["POST", "PUT", "PATCH"], Meta(description="one of POST, PUT, PATCH"), "POST by default"
    ] = "POST"
    headers: Annotated[SecretHeaders, "credentials"] = msgspec.field(default_factory=dict)
    body: Annotated[Document, "document with placeholders"] | None = None
    as_form: Annotated[Flag, "send the body as a form, not as JSON"] = False
    key_header: Annotated[Text, "header for the key"] = ""
    key_path: KeyPath = ""
    accepted: Annotated[Statuses, "statuses that mean accepted; 2xx by default"] = msgspec.field(default_factory=list)
    answers_in_html: Annotated[Flag, "HTML is the endpoint's own response, not a proxy's page"] = False
    reference_at: Annotated[Text, "path of the message id in the response"] = "id"
    report_id: Annotated[Text, "path of the notification id in a callback"] = ""
    report_reference: Annotated[Text, "path of the provider's message id in a callback"] = ""
    report_status: Annotated[Text, "path of the status in a callback"] = "status"
    report_words: Annotated[
        dict[str, Reported],
        Meta(description="an object that maps each word to one of accepted, delivered, undelivered, refused"),
        "meaning of each status",
    ] = msgspec.field(default_factory=dict)


class Generic(HttpProvider[GenericOptions]):
    OPTIONS: ClassVar[type[GenericOptions]] = GenericOptions
    CONTRACT: ClassVar[Contract] = Contract(name="http", channels=CHANNELS)

    def __init__(self, options: GenericOptions, contract: Contract) -> None:
        super().__init__(options, contract, options.url, HeaderAuth(options.headers))
        self.url = options.url  # unchanged, and not stored with the request, because the path may contain a token
        where, key_header = f"provider {contract.name!r}", options.key_header
        if key_header and (_HEADER.fullmatch(key_header) is None or key_header.lower() in RESERVED_HEADERS):
            raise ConfigError(f"{where}: key_header is not the name of a header that can carry the key")
        if key_header.lower() in {header.lower() for header in options.headers}:
            raise ConfigError(f"{where}: key_header is one of its headers too; a key must differ for each message")
        if key_header and options.key_path:
            raise ConfigError(f"{where}: set key_header or key_path, not both")
        self._body = BODY if options.body is None else options.body
        check_template(self._body, f"{where}: body")
        self.answers_in_html = options.answers_in_html
        self.by_reference = not options.report_id

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        document = fill_template(self._body, dispatch, self._options.sender)
        if self._options.key_path:
            document = insert_key(document, self._options.key_path, idempotency_key(dispatch))
        if self._options.as_form:
            return StoredRequest("", urlencode(_flat(document)), FORM, self._options.method)
        return StoredRequest("", json_body(document), method=self._options.method)

    def request_headers(self, dispatch: Dispatch) -> Mapping[str, str]:
        return {self._options.key_header: idempotency_key(dispatch)} if self._options.key_header else {}

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._options.reference_at.split("."))

    def classify_status(self, answer: Answered) -> Answer:
        if not self._options.accepted:
            return super().classify_status(answer)
        if answer.status in self._options.accepted:
            return Accepted(self.reference(answer), f"{answer.status}")
        classified = super().classify_status(answer)
        return Unknown(self.evidence(answer)) if isinstance(classified, Accepted) else classified

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        is_form = headers.get("content-type", "").startswith(FORM)
        payload = parse_form(body, self.contract.name) if is_form else parse_json(body, self.contract.name)
        status = text_at(payload, *self._options.report_status.split("."))
        if not status:
            raise MalformedEvent(f"not a callback of {self.contract.name}: {self._options.report_status} is missing")
        id = parse_id(value_at(payload, *self._options.report_id.split("."))) if self._options.report_id else None
        reference = (
            text_at(payload, *self._options.report_reference.split(".")) if self._options.report_reference else ""
        )
        return delivery_reports(self.contract.name, self._options.report_words, status, id=id, reference=reference)


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ConfigError(f"a form contains texts and numbers, and {name!r} is neither")
    return {name: str(value) for name, value in document.items()}
