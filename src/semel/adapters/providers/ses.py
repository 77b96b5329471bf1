"""Amazon SES v2: mail. It has no idempotency, and writes Message-ID and Date itself; our id goes as a tag of the mail,
and comes back in the events of its configuration set (by SNS or EventBridge)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from semel.adapters.providers.auth import Auth
from semel.adapters.providers.mime import mailbox
from semel.adapters.providers.posting import JsonProvider, field, json_body, key_of
from semel.adapters.providers.reading import at, milliseconds, ours, parsed, text, witnesses
from semel.adapters.providers.saying import mail_of
from semel.adapters.wire.answers import Answered
from semel.values.errors import MalformedEvent
from semel.values.outbox import Dispatch, Witness
from semel.values.sending import Answer, Contract, Refused, Reported

TAG = "semel-id"
THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
PAUSED = ("SendingPausedException", "LimitExceededException")  # of the account, not of this mail
TIMED = ("bounce", "complaint", "delivery", "open", "click", "deliveryDelay", "subscription")  # these say when
REPORTS: dict[str, Reported] = {
    "Send": "accepted",
    "DeliveryDelay": "accepted",
    "Delivery": "delivered",
    "Open": "delivered",
    "Click": "delivered",
    "Complaint": "delivered",  # by somebody who has it
    "Subscription": "delivered",
    "Bounce": "undelivered",
    "Reject": "undelivered",
    "Rendering Failure": "undelivered",
}


class Ses(JsonProvider):
    CONTRACT: ClassVar[Contract] = Contract(name="ses", channels=("email",))
    PATH: ClassVar[str] = "/v2/email/outbound-emails"
    NO_ACCESS: ClassVar[frozenset[int]] = frozenset({401, 403})  # a role's key that ended, a clock that is off

    def __init__(self, url: str, auth: Auth, *, configuration_set: str = "", **more: Any) -> None:
        """`configuration_set`: whose event destination tells what became of a mail."""
        super().__init__(url, auth, **more)
        self._configuration_set = configuration_set

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        said = dispatch.notification
        mail = mail_of(dispatch, "ses", self._sender, templates=True)
        message: dict[str, Any] = {
            "FromEmailAddress": mailbox(mail.sender),
            "Destination": {"ToAddresses": [mail.to]},
            "EmailTags": [{"Name": TAG, "Value": key_of(dispatch)}],
        }
        if self._configuration_set:
            message["ConfigurationSetName"] = self._configuration_set
        if said.template:
            template = {"TemplateName": said.template, "TemplateData": json_body(said.data)}
            return {**message, "Content": {"Template": template}}
        kinds = (("Text", mail.text), ("Html", mail.html))
        body = {kind: {"Data": value, "Charset": "UTF-8"} for kind, value in kinds if value}
        return {
            **message,
            "Content": {
                "Simple": {
                    "Subject": {"Data": mail.subject, "Charset": "UTF-8"},
                    "Body": body,
                    "Headers": [{"Name": "X-Semel-Id", "Value": key_of(dispatch)}],
                }
            },
        }

    def reference(self, answer: Answered) -> str:
        return field(answer, "MessageId")

    def judge_status(self, answer: Answered) -> Answer:
        """A throttle of AWS may come as 400 too, and so does what a person can put right."""
        written = answer.headers.get("x-amzn-errortype", "") or field(answer, "__type")
        code = written.partition(":")[0].rpartition("#")[2]
        if answer.status == 400 and code in THROTTLED:
            return Refused(self.told(answer), after_s=answer.after_s, limited=True)
        if answer.status == 400 and code in PAUSED:
            return Refused(self.told(answer), after_s=answer.after_s)
        return super().judge_status(answer)

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[Witness]:
        told = parsed(body, "ses")
        if isinstance(at(told, "Message"), str):  # SNS
            told = parsed(at(told, "Message").encode(), "ses")
        if isinstance(at(told, "detail"), dict):  # EventBridge
            told = at(told, "detail")
        status = text(told, "eventType") or text(told, "notificationType")
        if not status or not isinstance(at(told, "mail"), dict):
            raise MalformedEvent("no event of SES: expected an object with eventType and mail")
        return witnesses(
            self.contract.name,
            REPORTS,
            status,
            id=_tagged(at(told, "mail", "tags", TAG)),
            reference=text(told, "mail", "messageId"),
            at_ms=max(milliseconds(at(told, name, "timestamp")) for name in ("mail", *TIMED)),
        )


def _tagged(values: Any) -> bytes | None:
    return ours(values[0]) if isinstance(values, list) and len(values) == 1 else None
