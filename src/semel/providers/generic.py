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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from semel.http_client.client import Answered
from semel.providers.auth import Auth, HeaderAuth
from semel.providers.callbacks import delivery_reports, parse_form, parse_id, parse_json, text_at, value_at
from semel.providers.http import HttpProvider, Request, field, idempotency_key, json_body
from semel.providers.rendering import check_template, fill_template, insert_key
from semel.values.delivery_state import Accepted, Answer, Contract, Reported, Unknown
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CHANNELS
from semel.values.outbox import DeliveryReport, Dispatch

RESERVED_HEADERS = frozenset(
    ("authorization", "content-type", "content-length", "host", "connection", "transfer-encoding", "expect")
)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
METHODS = ("POST", "PUT", "PATCH")
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


class Generic(HttpProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="http", channels=CHANNELS)

    def __init__(
        self,
        url: str,
        auth: Auth,
        *,
        method: str = "POST",
        body: Any = None,
        as_form: bool = False,
        sender: str = "",
        key_header: str = "",
        key_path: str = "",
        accepted: Sequence[int] = (),
        answers_in_html: bool = False,
        reference_at: str = "id",
        report_id: str = "",
        report_reference: str = "",
        report_status: str = "status",
        report_words: Mapping[str, Reported] | None = None,
        contract: Contract | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        super().__init__(url, auth, contract=contract, allow=allow)
        self.url = url  # unchanged, and not stored with the request, because the path may contain a token
        where = f"provider {self.contract.name!r}"
        if method not in METHODS:
            raise ConfigError(f"{where}: method {method!r}: expected one of {', '.join(METHODS)}")
        if key_header and (_HEADER.fullmatch(key_header) is None or key_header.lower() in RESERVED_HEADERS):
            raise ConfigError(f"{where}: key_header is not the name of a header that can carry the key")
        if isinstance(auth, HeaderAuth) and key_header.lower() in auth.names:
            raise ConfigError(f"{where}: key_header is one of its headers too; a key must differ for each message")
        if key_header and key_path:
            raise ConfigError(f"{where}: set key_header or key_path, not both")
        template = BODY if body is None else body
        check_template(template, f"{where}: body")
        if (as_form or key_path) and not isinstance(template, Mapping):
            raise ConfigError(f"{where}: body must be an object")
        self._method = method
        self._body = template
        self._as_form = as_form
        self._sender = sender
        self._key_header = key_header
        self._key_path = key_path
        self._accepted = frozenset(accepted)
        self.answers_in_html = answers_in_html
        self._reference_at = reference_at.split(".")
        self._report_id, self._report_reference = report_id, report_reference
        self.by_reference = not report_id
        self._report_status, self._report_words = report_status, dict(report_words or {})

    def build_request(self, dispatch: Dispatch) -> Request:
        document = fill_template(self._body, dispatch, self._sender)
        if self._key_path:
            document = insert_key(document, self._key_path, idempotency_key(dispatch))
        if self._as_form:
            return Request("", urlencode(_flat(document)), FORM, self._method)
        return Request("", json_body(document), method=self._method)

    def request_headers(self, dispatch: Dispatch) -> Mapping[str, str]:
        return {self._key_header: idempotency_key(dispatch)} if self._key_header else {}

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)

    def classify_status(self, answer: Answered) -> Answer:
        if not self._accepted:
            return super().classify_status(answer)
        if answer.status in self._accepted:
            return Accepted(self.reference(answer), f"{answer.status}")
        classified = super().classify_status(answer)
        return Unknown(self.evidence(answer)) if isinstance(classified, Accepted) else classified

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        is_form = headers.get("content-type", "").startswith(FORM)
        payload = parse_form(body, self.contract.name) if is_form else parse_json(body, self.contract.name)
        status = text_at(payload, *self._report_status.split("."))
        if not status:
            raise MalformedEvent(f"not a callback of {self.contract.name}: {self._report_status} is missing")
        id = parse_id(value_at(payload, *self._report_id.split("."))) if self._report_id else None
        reference = text_at(payload, *self._report_reference.split(".")) if self._report_reference else ""
        return delivery_reports(self.contract.name, self._report_words, status, id=id, reference=reference)


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ConfigError(f"a form contains texts and numbers, and {name!r} is neither")
    return {name: str(value) for name, value in document.items()}
