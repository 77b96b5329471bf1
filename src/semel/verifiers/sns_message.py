"""The envelope that Amazon SNS posts, with the event as a text inside. Reading it needs no cryptography."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw, Struct, field

from semel.values import strict_json
from semel.values.errors import MalformedEvent

# What Amazon SNS posts: an envelope with the event as a text inside.
#
# The signed text is made of lines, a name and a value in turn, without escapes. For it to have one meaning only, no
# value but the first, `Message`, may contain a line break: read from the end, each line then has its place.

_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
SIGNED: dict[str, tuple[str, ...]] = {  # the order of bytes, as SNS signs it
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}
# A region has a hyphen and a number and begins with letters. That keeps out `s3` and `s3-us-west-2`: under those names
# `sns.….amazonaws.com` is not SNS but a bucket called "sns", which may hold a certificate of anyone's making.
_TOPIC = re.compile(
    r"arn:(?P<partition>aws|aws-cn|aws-us-gov):sns:(?P<region>[a-z]{2,4}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2})"
    r":[0-9]{12}:[A-Za-z0-9_-]{1,256}(?:\.fifo)?"
)
_CONFIRM = re.compile(r"\?Action=ConfirmSubscription&[A-Za-z0-9=&:%._~+-]{1,2000}")


class _Envelope(Struct, gc=False):
    """The members that decide whether a message is genuine, not decoded yet. Every other member is skipped."""

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
    """A message of SNS without its envelope."""

    type: str  # one of SIGNED
    topic: str  # ARN
    message_id: str  # the same for every redelivery
    message: bytes  # of a Notification: the event; of the others: a sentence for people
    subscribe_url: str = ""  # to be opened by a person: it (re)joins the topic. Empty where it does not lead to SNS


def unwrap(body: bytes) -> SnsMessage:
    """The message in a verified body. MalformedEvent: it is none."""
    fields = read(body)
    address = home(fields["TopicArn"])
    joins = fields.get("SubscribeURL", "")
    leads_to_sns = address is not None and joins.startswith(address) and _CONFIRM.fullmatch(joins, len(address))
    return SnsMessage(
        fields["Type"],
        fields["TopicArn"],
        fields["MessageId"],
        fields["Message"].encode(),
        joins if leads_to_sns and fields["Type"] != "Notification" else "",  # in a Notification it is not signed
    )


def skim(body: bytes) -> dict[str, str]:
    """The texts of a body that is not verified yet. MalformedEvent: it is no message of SNS.

    Anyone may send it, so as little of it as possible is decoded: what the signature covers, and the signature. A name
    that stands twice is not noticed here; `read` refuses it."""
    strict_json.check_size(body)
    try:
        envelope = {name: bytes(raw) for name, raw in msgspec.structs.asdict(_envelope(body)).items()}
        fields = {name: _text(raw) for name, raw in envelope.items() if raw[:1] == b'"'}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise MalformedEvent("not a message of SNS") from None
    return _checked(fields, other_subject=envelope["Subject"][:1] not in (b"", b"n", b'"'))


def read(body: bytes) -> dict[str, str]:
    """The texts of an SNS message, strictly parsed. MalformedEvent: it is none."""
    document = strict_json.parse(body)
    fields = {name: value for name, value in document.items() if type(value) is str} if type(document) is dict else {}
    return _checked(
        fields, other_subject="Subject" not in fields and bool(fields) and document.get("Subject") is not None
    )


def _checked(fields: dict[str, str], *, other_subject: bool) -> dict[str, str]:
    """The texts, with everything that is signed. `other_subject`: there is a Subject that is neither text nor null."""
    signed = SIGNED.get(fields.get("Type", ""))
    if signed is None:
        raise MalformedEvent(f"not a message of SNS: expected a Type, one of {', '.join(SIGNED)}")
    for name in signed:
        if name not in fields and (name != "Subject" or other_subject):
            raise MalformedEvent(f"not a message of SNS: {name} is missing, or no text")
        if name != "Message" and "\n" in fields.get(name, ""):
            raise MalformedEvent(f"not a message of SNS: {name} has several lines")
    return fields


def canonical(fields: dict[str, str]) -> bytes:
    """What SNS signs: each name and each value on a line of its own."""
    present = (name for name in SIGNED[fields["Type"]] if name in fields)  # a Subject need not be there
    return "".join(f"{name}\n{fields[name]}\n" for name in present).encode()


def home(topic: str) -> str | None:
    """Where the SNS of this topic lives: its certificates are there and nowhere else. None: this is no topic."""
    match = _TOPIC.fullmatch(topic)
    if match is None:
        return None
    china = ".cn" if match["partition"] == "aws-cn" else ""
    return f"https://sns.{match['region']}.amazonaws.com{china}/"
