"""Resend: mail. It honours an Idempotency-Key for 24 hours: the same request is answered with the same id. While the
first one is in progress, and for another body, it answers 409, which leaves unknown what came of the first one.

The path and the fields of the body are those of its public reference; `path` and `extra` change them. Our id goes as a
tag, and comes back in its webhooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers.limits import rest_s
from semel.adapters.providers.posting import JsonProvider, field, key_of
from semel.adapters.providers.reading import at, milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import mail_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Answer, Contract, Key, Refused, Reported

TAG = "semel_id"
REPORTS: dict[str, Reported] = {
    "email.scheduled": "accepted",
    "email.sent": "accepted",
    "email.delivery_delayed": "accepted",
    "email.delivered": "delivered",
    "email.opened": "delivered",
    "email.clicked": "delivered",
    "email.complained": "delivered",  # by somebody who has it
    "email.bounced": "undelivered",
    "email.failed": "undelivered",
    "email.suppressed": "undelivered",
}


class Resend(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(
        name="resend",
        channels=("email",),
        key=Key(header="Idempotency-Key", window_s=86_400.0, longest=256),
    )
    PATH: ClassVar[str] = "/emails"

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        mail = mail_of(dispatch, "resend", self._sender)
        name = mail.sender.name
        message: dict[str, Any] = {
            "from": f"{name} <{mail.sender.email}>" if name else mail.sender.email,
            "to": [mail.to],
            "subject": mail.subject,
            "tags": [{"name": TAG, "value": key_of(dispatch)}],
        }
        if mail.text:
            message["text"] = mail.text
        if mail.html:
            message["html"] = mail.html
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "id")

    def judge_status(self, answer: Answered) -> Answer:
        """A key of its API that is wrong is 403; so is a mail that this account may not send, and that is final."""
        if answer.status == 403 and field(answer, "name") == "invalid_api_key":
            return Refused(self.told(answer), configuration=True)
        return super().judge_status(answer)

    def used_up_s(self, headers: Mapping[str, str]) -> float:
        return rest_s(headers, "ratelimit-remaining", "ratelimit-reset")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "resend")
        if not isinstance(told, dict) or not isinstance(told.get("data"), dict):
            raise MalformedEvent("no event of Resend: expected an object with type and data")
        return witnesses(
            self.contract.name,
            REPORTS,
            text(told, "type"),
            id=_tagged(at(told, "data", "tags")),
            reference=text(told, "data", "email_id"),
            at_ms=milliseconds(told.get("created_at")),
        )


def _tagged(tags: Any) -> bytes | None:
    """Tags come back as an object, and go as a list: either is read."""
    if isinstance(tags, list):
        tags = {text(tag, "name"): text(tag, "value") for tag in tags if isinstance(tag, dict)}
    return ours(at(tags, TAG))
