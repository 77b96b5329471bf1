"""SendGrid: mail. It has no idempotency; our id goes as a custom argument, and comes back in its event webhook.

The path and the fields of the body are those of its public reference; `path` and `extra` change them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers.limits import rest_s
from semel.adapters.providers.posting import EVIDENCE_CHARS, JsonProvider, key_of
from semel.adapters.providers.reading import WITNESSES_MAX, milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import mail_of, named_address
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Contract, Reported

ARGUMENT = "semel_id"
REPORTS: dict[str, Reported] = {
    "processed": "accepted",
    "deferred": "accepted",
    "delivered": "delivered",
    "open": "delivered",
    "click": "delivered",
    "spamreport": "delivered",  # by somebody who has it
    "unsubscribe": "delivered",
    "group_unsubscribe": "delivered",
    "bounce": "undelivered",
    "dropped": "undelivered",
}


class SendGrid(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="sendgrid", channels=("email",))
    PATH: ClassVar[str] = "/v3/mail/send"
    NO_ACCESS: ClassVar[frozenset[int]] = frozenset({401, 403})  # 403 is also how it blocks somebody for a while

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        said = dispatch.notification
        mail = mail_of(dispatch, "sendgrid", self._sender, templates=True)
        to: dict[str, Any] = {"to": [{"email": mail.to}], "custom_args": {ARGUMENT: key_of(dispatch)}}
        document: dict[str, Any] = {"from": named_address(mail.sender), "personalizations": [to]}
        if mail.subject:
            document["subject"] = mail.subject
        if said.template:
            document["template_id"] = said.template
            to["dynamic_template_data"] = said.data
        else:
            kinds = (("text/plain", mail.text), ("text/html", mail.html))
            document["content"] = [{"type": kind, "value": value} for kind, value in kinds if value]
        return document

    def reference(self, answer: Answered) -> str:
        return answer.headers.get("x-message-id", "")[:EVIDENCE_CHARS]

    def used_up_s(self, headers: Mapping[str, str]) -> float:
        return rest_s(headers, "x-ratelimit-remaining", "x-ratelimit-reset", now_s=time.time())

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "sendgrid")
        if not isinstance(told, list) or len(told) > WITNESSES_MAX or not all(isinstance(one, dict) for one in told):
            raise MalformedEvent("no events of SendGrid: expected a list of objects")
        return [witness for event in told for witness in self._witness(event)]

    def _witness(self, event: Mapping[str, Any]) -> list[Witness]:
        reference = text(event, "sg_message_id").partition(".")[0]  # behind the dot is the machine that had it
        return witnesses(
            self.contract.name,
            REPORTS,
            text(event, "event"),
            id=ours(event.get(ARGUMENT)),
            reference=reference,
            at_ms=milliseconds(event.get("timestamp")),
        )
