"""Any endpoint over HTTP. What it takes, what it honours and what its answers mean is written by whoever knows it:

url, method, headers     where it goes, and who asks (headers are secrets)
body                     a document with gaps; left out: one with all fields of the notification
key_header | key_path    where the idempotency key goes; with key_window it is relied on, without it is only sent
accepted                 statuses that say that it was taken; left out: 2xx
answers_in_html          a page is an answer of the endpoint, not of a proxy in its place
report_…                 where a status callback has our id, its own reference and the status, and what that means
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlencode

from semel.adapters.providers.auth import Auth, Headers
from semel.adapters.providers.filling import check, fill, with_key
from semel.adapters.providers.posting import HttpProvider, Request, field, json_body, key_of
from semel.adapters.providers.reading import at, form, ours, parsed, text, witnesses
from semel.adapters.wire.answers import Answered
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CHANNELS
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Accepted, Answer, Contract, Reported, Unknown

OURS = ("authorization", "content-type", "content-length", "host", "connection", "transfer-encoding", "expect")
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
        self.url = url  # as it is written; it is not kept with the request, since a path can hold a token
        what = f"provider {self.contract.name!r}"
        if method not in METHODS:
            raise ConfigError(f"{what}: method {method!r}: expected one of {', '.join(METHODS)}")
        if key_header and (_HEADER.fullmatch(key_header) is None or key_header.lower() in OURS):
            raise ConfigError(f"{what}: key_header is no name of a header that can be used for it")
        if isinstance(auth, Headers) and key_header.lower() in auth.names:
            raise ConfigError(f"{what}: key_header is one of its headers too, and would be the same for every message")
        if key_header and key_path:
            raise ConfigError(f"{what}: key_header or key_path, not both: the key goes to one place")
        template = BODY if body is None else body
        check(template, f"{what}: body")
        if (as_form or key_path) and not isinstance(template, Mapping):
            raise ConfigError(f"{what}: body has to be an object")
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

    def write(self, dispatch: Dispatch) -> Request:
        document = fill(self._body, dispatch, self._sender)
        if self._key_path:
            document = with_key(document, self._key_path, key_of(dispatch))
        if self._as_form:
            return Request("", urlencode(_flat(document)), FORM, self._method)
        return Request("", json_body(document), method=self._method)

    def headers_of(self, dispatch: Dispatch) -> Mapping[str, str]:
        return {self._key_header: key_of(dispatch)} if self._key_header else {}

    def reference(self, answer: Answered) -> str:
        return field(answer, *self._reference_at)

    def judge_status(self, answer: Answered) -> Answer:
        if not self._accepted:
            return super().judge_status(answer)
        if answer.status in self._accepted:
            return Accepted(self.reference(answer), f"{answer.status}")
        judged = super().judge_status(answer)
        return Unknown(self.told(answer)) if isinstance(judged, Accepted) else judged

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        is_form = headers.get("content-type", "").startswith(FORM)
        told = form(body, self.contract.name) if is_form else parsed(body, self.contract.name)
        status = text(told, *self._report_status.split("."))
        if not status:
            raise MalformedEvent(f"no status callback of {self.contract.name}: there is no {self._report_status}")
        id = ours(at(told, *self._report_id.split("."))) if self._report_id else None
        reference = text(told, *self._report_reference.split(".")) if self._report_reference else ""
        return witnesses(self.contract.name, self._report_words, status, id=id, reference=reference)


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    for name, value in document.items():
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ConfigError(f"a form holds texts and numbers, and {name!r} is neither")
    return {name: str(value) for name, value in document.items()}
