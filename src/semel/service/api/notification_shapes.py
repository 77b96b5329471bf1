"""Requests and responses of /v1/notifications. The OpenAPI document is made from them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from semel.service.api.claim_shapes import KEY_PATTERN, Strict
from semel.values.delivery_state import STATES
from semel.values.notification import POLICIES, PRIORITY_MAX, TEXT_MAX, WINDOW_MAX_S, Channel, Policy
from semel.values.outbox import SentStatus, Step

LIST_MAX = 1_000
LIST_DEFAULT = 100

# `Notification` enforces these; they are here for the OpenAPI document: printable, without white space around it.
_NO_EDGE, _INSIDE = "[^\\u0000-\\u0020\\u007f-\\u00a0]", "[^\\u0000-\\u001f\\u007f-\\u00a0]"
PRINTABLE = f"^{_NO_EDGE}({_INSIDE}*{_NO_EDGE})?$"

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, extra_json_schema={"pattern": PRINTABLE})]
MaybeText: TypeAlias = Annotated[
    str, Meta(max_length=TEXT_MAX, extra_json_schema={"pattern": f"^({PRINTABLE[1:-1]})?$"})
]
# As in the settings: the name appears in metrics and logs, so a phone number in this field is refused.
MaybeName: TypeAlias = Annotated[str, Meta(max_length=TEXT_MAX, pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$")]
Reason: TypeAlias = Annotated[
    str,
    Meta(min_length=1, pattern="[^\\s]", description="For operators. The first 500 characters are kept as evidence."),
]
IdText: TypeAlias = Annotated[str, Meta(pattern=KEY_PATTERN.pattern, description="The digest of its identity.")]
StateText: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(STATES)})]
Time: TypeAlias = Annotated[
    str, Meta(description="UTC, to the millisecond.", extra_json_schema={"format": "date-time"})
]


Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
Words: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": "[^\\s]"})]  # not only white space


class GuardItem(Strict, frozen=True):
    """At most one message in a sliding window: per recipient and kind, or per guard key."""

    window_s: Annotated[float, Meta(gt=0, le=WINDOW_MAX_S, description="Seconds.")]
    key: Annotated[MaybeText, Meta(description="Any text of your choice. Empty: recipient and kind.")] = ""


class NewNotification(Strict, frozen=True):
    """One message to one recipient, about one fact. It needs a body or a template, and a key here or in the header."""

    kind: Annotated[Text, Meta(description="The kind of message: reminder, shipping.")]
    recipient: Annotated[Text, Meta(description="An E.164 number, an email address, or an id of the platform.")]
    channel: Channel
    key: Annotated[
        Text | None, Meta(description="The fact of your business: order-4711-shipped. null: as in Idempotency-Key.")
    ] = None
    body: Annotated[
        Words | dict[str, Any] | list[Any] | None,
        Meta(description="A text, or a document for the channel event. null: use the template."),
    ] = None
    subject: str = ""
    sender: Annotated[MaybeText, Meta(description="Empty: the configured sender of the provider.")] = ""
    template: Annotated[MaybeText, Meta(description="The id of a template at the provider.")] = ""
    data: Annotated[dict[str, Any], Meta(description="Values for the template.")] = field(default_factory=dict)
    not_after: Annotated[
        Moment | None, Meta(description="The notification expires if it is not sent by then. null: after max_age.")
    ] = None
    priority: Annotated[float, Meta(ge=0, le=PRIORITY_MAX, multiple_of=1, description="0 is sent first, 9 last.")] = 5
    order: Annotated[MaybeText, Meta(description="Notifications with the same value are sent one after the other.")] = (
        ""
    )
    guard: GuardItem | None = None
    provider: Annotated[MaybeName, Meta(description="The name of a provider. Empty: the first one of the channel.")] = (
        ""
    )
    policy: Annotated[
        Policy | None,
        Meta(description="Applied when an outcome is still unknown at its deadline. null: the provider's."),
    ] = None


class NotificationAdded(Struct, frozen=True):
    """The notification is durable. `known`: it was created by an earlier, equal call."""

    id: IdText
    status: Literal["added", "known"]
    state: StateText


class NotificationDecided(Struct, frozen=True):
    """The state of a notification after the decision."""

    id: IdText
    state: StateText


class NotificationResent(Struct, frozen=True):
    """The new generation. `known`: it was created by an earlier, equal call."""

    id: IdText
    status: Literal["added", "known"]
    state: StateText
    generation: Annotated[int, Meta(ge=2)]


# ---------------------------------------------------------------------------------------------------------- decide


class ResolveRequest(Strict, frozen=True):
    """The outcome that an operator found out: sent; not sent, so send it now; or given up."""

    resolution: Literal["sent", "not_sent", "given_up"]
    reason: Reason


class CancelRequest(Strict, frozen=True):
    """Cancel the notification."""

    reason: Reason


class ResendRequest(Strict, frozen=True):
    """Send the same message again, deliberately."""

    reason: Reason


class EraseRequest(Strict, frozen=True):
    """Erase the recipient and the contents of the messages."""

    recipient: Text
    reason: Reason


class RecipientErased(Struct, frozen=True):
    """Finished notifications are erased. Their identities are kept."""

    erased: Annotated[int, Meta(ge=0)]
    left: Annotated[int, Meta(ge=0, description="Pending, sending or uncertain: erase again when they are finished.")]


# ------------------------------------------------------------------------------------------------------------ read


class NotificationStatus(Struct, frozen=True):
    """Whether this customer got the message. Scalars only, so that every platform can map them."""

    status: Annotated[
        SentStatus,
        Meta(
            description="never: no notification matches; not_sent: failed, expired or cancelled, and not sent; "
            "pending: it will be sent; sent: a provider has accepted it; unknown: it may have been sent; "
            "suppressed: its guard did not let it through."
        ),
    ]
    may_send: Annotated[
        bool,
        Meta(description="True only for never and not_sent. In all other cases another message may be a second one."),
    ]
    id: Annotated[str, Meta(description="Of the most informative notification. Empty: none matches.")]
    state: Annotated[
        str, Meta(description="Its state. Empty: none matches.", extra_json_schema={"enum": ["", *STATES]})
    ]
    at: Annotated[str, Meta(description="When it entered this state, UTC. Empty: none matches.")]
    provider: str
    reference: Annotated[str, Meta(description="The id of the message at the provider.")]
    evidence: Annotated[str, Meta(description="For operators. Of not_sent: why it was not sent.")]
    unsent: Annotated[int, Meta(ge=0, description="Of not_sent: how many are failed, expired or cancelled. Else 0.")]
    note: Annotated[str, Meta(description="Why other spellings of the recipient were not matched. Empty: they were.")]


class AttemptLine(Struct, frozen=True):
    """One attempt to send, or one report about it."""

    number: int
    provider: str
    outcome: Annotated[str, Meta(description="Empty: it was sent, and its outcome is not known yet.")]
    at: Annotated[str, Meta(description="UTC. Empty: it has not ended.")]
    crossed: Annotated[str, Meta(description="When its crossing was written, UTC. Empty: nothing was sent.")]
    evidence: str
    reference: str
    by: Annotated[str, Meta(description="The operator who decided, if one did.")]


class NotificationLine(Struct, frozen=True):
    """One notification. Recipient and content are masked, unless `reveal` is set."""

    id: IdText
    state: StateText
    reason: str
    key: str
    kind: str
    recipient: Annotated[str, Meta(description="Masked: +49…1234, m…@example.com.")]
    channel: str
    generation: Annotated[int, Meta(ge=1, description="2 after the first resend.")]
    content: Annotated[str, Meta(description="The kind and the length of the content.")]
    provider: Annotated[str, Meta(description="The provider that has it, or had it last. Empty: none yet.")]
    priority: int
    not_after: Annotated[str, Meta(description="UTC. Empty: not set.")]
    added: Time
    changed: Time
    possible_duplicates: Annotated[int, Meta(ge=0)]
    suppressed_by: Annotated[str, Meta(description="The id of the notification that its guard let through instead.")]
    erased: bool
    revealed: Annotated[dict[str, Any] | None, Meta(description="With reveal: all fields of the request. Else null.")]


class NextStep(Struct, frozen=True):
    """The next automatic step. A delivery report or an operator may come first."""

    exit: Annotated[
        Step,
        Meta(
            description="send: a relay sends it; answer: the relay gets the response of the provider; if uncertain: "
            "replay, sent again with the same key; look_up, looked up at the provider; policy, its policy is applied; "
            "person: there is no automatic step, so resolve it."
        ),
    ]
    at: Annotated[str, Meta(description="The earliest time, UTC; of answer, the latest. Empty: now, or no time.")]
    under_way: Annotated[bool, Meta(description="A relay is processing it.")]
    policy: Annotated[
        str,
        Meta(
            description="If uncertain: the policy that is applied at `policy_at`.",
            extra_json_schema={"enum": ["", *POLICIES]},
        ),
    ]
    policy_at: Annotated[str, Meta(description="The deadline of the policy, UTC. Empty: none.")]


class NotificationReport(NotificationLine, frozen=True, kw_only=True):
    """One notification with all its attempts."""

    next: Annotated[NextStep | None, Meta(description="null: it is finished.")]
    attempts: Annotated[list[AttemptLine], Meta(description="All attempts and reports, the oldest first.")]


class NotificationPage(Struct, frozen=True):
    """Notifications, the newest first. A page has fewer than its limit if contents are large."""

    items: list[NotificationLine]
    next: Annotated[str | None, Meta(description="`after` of the next page. null: this is the last one.")]
