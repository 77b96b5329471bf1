"""Amazon SES v2: mail, without idempotency keys.

SES writes Message-ID and Date itself. The notification id is sent as a tag of the mail and is returned in the events of
the configuration set, through SNS or EventBridge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from semel.http_client.client import Answered
from semel.providers.auth import AwsSignature
from semel.providers.callbacks import delivery_reports, parse_id, parse_json, text_at, to_milliseconds, value_at
from semel.providers.http import JsonProvider, field, idempotency_key, json_body
from semel.providers.options import Host, JsonOptions, MailSender, SecretValue, Text
from semel.providers.rendering import build_mail, mailbox
from semel.values.delivery_state import Answer, Contract, Refused, Reported
from semel.values.errors import MalformedEvent
from semel.values.outbox import DeliveryReport, Dispatch

TAG = "semel-id"
THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
PAUSED = ("SendingPausedException", "LimitExceededException")  # of the account, not of this mail
TIMED = ("bounce", "complaint", "delivery", "open", "click", "deliveryDelay", "subscription")  # with a timestamp
REPORTS: dict[str, Reported] = {
    "Send": "accepted",
    "DeliveryDelay": "accepted",
    "Delivery": "delivered",
    "Open": "delivered",
    "Click": "delivered",
    "Complaint": "delivered",  # reported by the recipient
    "Subscription": "delivered",
    "Bounce": "undelivered",
    "Reject": "undelivered",
    "Rendering Failure": "undelivered",
}


class SesOptions(JsonOptions, frozen=True, kw_only=True):
    sender: MailSender = ""
    region: Annotated[Host, "AWS region, such as eu-central-1"]
    configuration_set: Annotated[Text, "set whose event destination reports deliveries"] = ""
    access_key_id: Annotated[Text, "by default: the usual AWS credential chain"] = ""
    secret_access_key: Annotated[SecretValue, "of that key"] | None = None


class Ses(JsonProvider[SesOptions]):
    OPTIONS: ClassVar[type[SesOptions]] = SesOptions
    CONTRACT: ClassVar[Contract] = Contract(name="ses", channels=("email",))
    PATH: ClassVar[str] = "/v2/email/outbound-emails"
    CREDENTIAL_STATUSES: ClassVar[frozenset[int]] = frozenset({401, 403})  # an expired role credential, a wrong clock

    def __init__(self, options: SesOptions, contract: Contract) -> None:
        auth = AwsSignature(
            "ses",
            options.region,
            timeout_s=contract.timeout_s,
            key_id=options.access_key_id,
            secret=options.secret_access_key,
        )
        super().__init__(options, contract, auth, f"https://email.{options.region}.amazonaws.com")

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        notification = dispatch.notification
        mail = build_mail(dispatch, "ses", self._options.sender, templates=True)
        message: dict[str, Any] = {
            "FromEmailAddress": mailbox(mail.sender),
            "Destination": {"ToAddresses": [mail.to]},
            "EmailTags": [{"Name": TAG, "Value": idempotency_key(dispatch)}],
        }
        if self._options.configuration_set:
            message["ConfigurationSetName"] = self._options.configuration_set
        if notification.template:
            template = {"TemplateName": notification.template, "TemplateData": json_body(notification.data)}
            return {**message, "Content": {"Template": template}}
        kinds = (("Text", mail.text), ("Html", mail.html))
        body = {kind: {"Data": value, "Charset": "UTF-8"} for kind, value in kinds if value}
        return {
            **message,
            "Content": {
                "Simple": {
                    "Subject": {"Data": mail.subject, "Charset": "UTF-8"},
                    "Body": body,
                    "Headers": [{"Name": "X-Semel-Id", "Value": idempotency_key(dispatch)}],
                }
            },
        }

    def reference(self, answer: Answered) -> str:
        return field(answer, "MessageId")

    def classify_status(self, answer: Answered) -> Answer:
        """AWS also uses 400 for throttling and for a paused account, which are not final."""
        error_type = answer.headers.get("x-amzn-errortype", "") or field(answer, "__type")
        code = error_type.partition(":")[0].rpartition("#")[2]
        if answer.status == 400 and code in THROTTLED:
            return Refused(self.evidence(answer), after_s=answer.after_s, limited=True)
        if answer.status == 400 and code in PAUSED:
            return Refused(self.evidence(answer), after_s=answer.after_s)
        return super().classify_status(answer)

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        payload = parse_json(body, "ses")
        if isinstance(value_at(payload, "Message"), str):  # SNS
            payload = parse_json(value_at(payload, "Message").encode(), "ses")
        if isinstance(value_at(payload, "detail"), dict):  # EventBridge
            payload = value_at(payload, "detail")
        status = text_at(payload, "eventType") or text_at(payload, "notificationType")
        if not status or not isinstance(value_at(payload, "mail"), dict):
            raise MalformedEvent("not a callback of SES: expected an object with eventType and mail")
        tags = value_at(payload, "mail", "tags", TAG)
        return delivery_reports(
            self.contract.name,
            REPORTS,
            status,
            id=parse_id(tags[0]) if isinstance(tags, list) and len(tags) == 1 else None,
            reference=text_at(payload, "mail", "messageId"),
            at_ms=max(to_milliseconds(value_at(payload, name, "timestamp")) for name in ("mail", *TIMED)),
        )
