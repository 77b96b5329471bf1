"""The message that Amazon SNS posts, with the event as a text inside. Reading it needs no cryptography.

The signed text consists of lines, a name and a value in turn, without escapes. To keep it unambiguous, only `Message`,
which comes first, may contain a line break.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct, field

from semel.values import strict_json
from semel.values.errors import MalformedEvent

_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
SIGNED: dict[str, tuple[str, ...]] = {  # in the order in which SNS signs them
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
# A region begins with letters and has a hyphen and a number. This excludes `s3` and `s3-us-west-2`, for which
# `sns.….amazonaws.com` is an S3 bucket named "sns", where anyone could store a certificate.
_TOPIC = re.compile(
    r"arn:(?P<partition>aws|aws-cn|aws-us-gov):sns:(?P<region>[a-z]{2,4}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2})"
    r":[0-9]{12}:[A-Za-z0-9_-]{1,256}(?:\.fifo)?"
)
_CONFIRM = re.compile(r"\?Action=ConfirmSubscription&[A-Za-z0-9=&:%._~+-]{1,2000}")


class _Envelope(Struct, gc=False):
    """The members that are signed or needed to verify, not decoded yet. Every other member is skipped."""

    Type: Raw = field(default_factory=Raw)
    Message: Raw = field(default_factory=Raw)
    MessageId: Raw = field(default_factory=Raw)
    Subject: Raw = field(default_factory=Raw)
    SubscribeURL: Raw = field(default_factory=Raw)
    Timestamp: Raw = field(default_factory=Raw)
    Token: Raw = field(default_factory=Raw)
    TopicArn: Raw = field(default_factory=Raw)
    Signature: Raw = field(default_factory=Raw)
    SignatureVersion: Raw = field(default_factory=Raw)
    SigningCertURL: Raw = field(default_factory=Raw)


_envelope = msgspec.json.Decoder(_Envelope).decode
_text = msgspec.json.Decoder(str).decode


class SnsMessage(Struct, frozen=True):
    """A message of SNS, unwrapped."""

    type: str  # one of SIGNED
    topic: str  # ARN
    message_id: str  # the same for every redelivery
    message: bytes  # of a Notification: the event; of other types: a text for people
    subscribe_url: str = ""  # confirms the subscription when opened. Empty if it is not a URL of SNS


def unwrap(body: bytes) -> SnsMessage:
    """Unwrap a verified body. Raises MalformedEvent."""
    fields = read(body)
    origin = sns_origin(fields["TopicArn"])
    subscribe_url = fields.get("SubscribeURL", "")
    is_sns = origin is not None and subscribe_url.startswith(origin) and _CONFIRM.fullmatch(subscribe_url, len(origin))
    return SnsMessage(
        fields["Type"],
        fields["TopicArn"],
        fields["MessageId"],
        fields["Message"].encode(),
        subscribe_url if is_sns and fields["Type"] != "Notification" else "",  # in a Notification it is not signed
    )


def skim(body: bytes) -> dict[str, str]:
    """Read the fields of an unverified body. Raises MalformedEvent.

    Anyone can send it, so only the signature and the signed members are decoded. A duplicate name is not detected here;
    `read` refuses it.
    """
    strict_json.check_size(body)
    try:
        envelope = {name: bytes(raw) for name, raw in msgspec.structs.asdict(_envelope(body)).items()}
        fields = {name: _text(raw) for name, raw in envelope.items() if raw[:1] == b'"'}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedEvent("not a message of SNS") from None
    return _checked(fields, other_subject=envelope["Subject"][:1] not in (b"", b"n", b'"'))


def read(body: bytes) -> dict[str, str]:
    """Read the fields of an SNS message with the strict parser. Raises MalformedEvent."""
    document = strict_json.parse(body)
    fields = {name: value for name, value in document.items() if type(value) is str} if type(document) is dict else {}
    return _checked(
        fields, other_subject="Subject" not in fields and bool(fields) and document.get("Subject") is not None
    )


def _checked(fields: dict[str, str], *, other_subject: bool) -> dict[str, str]:
    """Check that every signed field is present. `other_subject`: the Subject is neither a text nor null."""
    signed = SIGNED.get(fields.get("Type", ""))
    if signed is None:
        raise MalformedEvent(f"not a message of SNS: expected a Type, one of {', '.join(SIGNED)}")
    for name in signed:
        if name not in fields and (name != "Subject" or other_subject):
            raise MalformedEvent(f"not a message of SNS: {name} is missing or not a text")
        if name != "Message" and "\n" in fields.get(name, ""):
            raise MalformedEvent(f"not a message of SNS: {name} contains a line break")
    return fields


def canonical(fields: dict[str, str]) -> bytes:
    """The signed text: each name and each value on its own line."""
    present = (name for name in SIGNED[fields["Type"]] if name in fields)  # the Subject is optional
    return "".join(f"{name}\n{fields[name]}\n" for name in present).encode()


def sns_origin(topic: str) -> str | None:
    """URL prefix of the SNS endpoint of a topic; its certificates are only there. None: not the ARN of a topic."""
    match = _TOPIC.fullmatch(topic)
    if match is None:
        return None
    china = ".cn" if match["partition"] == "aws-cn" else ""
    return f"https://sns.{match['region']}.amazonaws.com{china}/"
