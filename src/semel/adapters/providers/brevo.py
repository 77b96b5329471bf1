"""Brevo: mail. It takes `headers.idempotencyKey` in the JSON, a UUID, and honours it for 30 minutes; an older page says
15, and the shorter one is what is relied on.

A key that it knows is not answered as it was the first time, but with an error that says so, and has no reference: who
repeats what is in doubt learns that it was taken. Whether it also knows keys of requests that it refused is not said,
so that this error is unknown where there was one, and stays so however often it is heard.

The path and the fields of the body are those of its public reference; `path` and `extra` change them. Our id goes as a
tag too, and comes back in its webhooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from semel.adapters.providers.limits import rest_s
from semel.adapters.providers.posting import JsonProvider, field, key_of
from semel.adapters.providers.reading import WITNESSES_MAX, milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import mail_of, named_address
from semel.adapters.wire.answers import Answered
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Accepted, Answer, Contract, Key, Reported, Standing, Unknown

WINDOW_S = 15 * 60.0
KNOWN = "duplicate_parameter: a request with this key came before"
_TOLD_NO = re.compile(r"duplicate_parameter|4(?!29)[0-9]{2}\b")  # the reason of how something stands
REPORTS: dict[str, Reported] = {
    "request": "accepted",
    "deferred": "accepted",
    "delivered": "delivered",
    "opened": "delivered",
    "unique_opened": "delivered",
    "proxy_open": "delivered",
    "unique_proxy_open": "delivered",
    "click": "delivered",
    "spam": "delivered",  # so somebody calls it who has it
    "complaint": "delivered",
    "unsubscribed": "delivered",
    "hard_bounce": "undelivered",
    "soft_bounce": "undelivered",
    "invalid_email": "undelivered",
    "blocked": "undelivered",
    "error": "undelivered",
}


class Brevo(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(
        name="brevo", channels=("email",), key=Key(path="headers.idempotencyKey", window_s=WINDOW_S)
    )
    PATH: ClassVar[str] = "/v3/smtp/email"

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        said = dispatch.notification
        mail = mail_of(dispatch, "brevo", self._sender, templates=True)
        message: dict[str, Any] = {
            "sender": named_address(mail.sender),
            "to": [{"email": mail.to}],
            "headers": {"idempotencyKey": str(UUID(bytes=dispatch.id))},
            "tags": [key_of(dispatch)],
        }
        if said.template:
            if not (said.template.isascii() and said.template.isdigit()):
                raise ConfigError("a template of brevo is a number")
            message |= {"templateId": int(said.template), "params": said.data}
        if mail.subject:
            message["subject"] = mail.subject
        if mail.text:
            message["textContent"] = mail.text
        if mail.html:
            message["htmlContent"] = mail.html
        return message

    def reference(self, answer: Answered) -> str:
        return field(answer, "messageId")

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        answer = await super().send(dispatch, request)
        if answer == Unknown(KNOWN) and _only_doubted(dispatch.standing):
            return Accepted(evidence=KNOWN)
        return answer

    def judge_status(self, answer: Answered) -> Answer:
        if 400 <= answer.status < 500 and field(answer, "code") == "duplicate_parameter":
            return Unknown(KNOWN)
        return super().judge_status(answer)

    def used_up_s(self, headers: Mapping[str, str]) -> float:
        return rest_s(headers, "x-sib-ratelimit-remaining", "x-sib-ratelimit-reset")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "brevo")
        events = told if isinstance(told, list) else [told]  # a webhook that was made with `batched` sends many
        if len(events) > WITNESSES_MAX or not all(isinstance(one, dict) and text(one, "event") for one in events):
            raise MalformedEvent("no event of Brevo: expected an object with an event, or a list of them")
        return [witness for event in events for witness in self._witness(event)]

    def _witness(self, event: Mapping[str, Any]) -> list[Witness]:
        tags = event.get("tags")
        ids = [id for tag in (tags if isinstance(tags, list) else []) if (id := ours(tag)) is not None]
        return witnesses(
            self.contract.name,
            REPORTS,
            text(event, "event"),
            id=ids[0] if len(ids) == 1 else None,
            reference=text(event, "message-id"),
            at_ms=milliseconds(event.get("ts_event")),
        )


def _only_doubted(standing: Standing) -> bool:
    """Of the requests with this key that may have reached it, none was refused, as far as is known: the first one is in
    doubt, and the newest was not told this error, nor a refusal. A rate limit comes before anybody looks at a key, and
    what it refused is not counted as an attempt."""
    first = standing.doubt_ms == standing.keyed_ms or standing.attempts == 1
    return standing.doubt_ms > 0 and first and _TOLD_NO.match(standing.reason) is None
