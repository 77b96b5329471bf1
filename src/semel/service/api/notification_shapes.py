"""The documents of /v1/notifications. The OpenAPI description is made from these, so that it says what is checked."""

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

# What `Notification` sees to, told to those who read the description: printable, and without white space around it.
_NO_EDGE, _INSIDE = "[^\\u0000-\\u0020\\u007f-\\u00a0]", "[^\\u0000-\\u001f\\u007f-\\u00a0]"
PRINTABLE = f"^{_NO_EDGE}({_INSIDE}*{_NO_EDGE})?$"

Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, extra_json_schema={"pattern": PRINTABLE})]
MaybeText: TypeAlias = Annotated[
    str, Meta(max_length=TEXT_MAX, extra_json_schema={"pattern": f"^({PRINTABLE[1:-1]})?$"})
]
# As in the settings: it stands in metrics and logs, where a number in the wrong field must not.
MaybeName: TypeAlias = Annotated[str, Meta(max_length=TEXT_MAX, pattern="^([A-Za-z0-9][A-Za-z0-9._-]*)?$")]
Reason: TypeAlias = Annotated[
    str, Meta(min_length=1, pattern="[^\\s]", description="For people, kept as evidence up to 500 characters.")
]
IdText: TypeAlias = Annotated[str, Meta(pattern=KEY_PATTERN.pattern, description="The digest of its identity.")]
StateText: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(STATES)})]
Time: TypeAlias = Annotated[
    str, Meta(description="UTC, to the millisecond.", extra_json_schema={"format": "date-time"})
]


Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
Words: TypeAlias = Annotated[str, Meta(extra_json_schema={"pattern": "[^\\s]"})]  # an empty text says nothing


class GuardItem(Strict, frozen=True):
    """At most one message in a sliding window: to one recipient of one kind, or of one key."""

    window_s: Annotated[float, Meta(gt=0, le=WINDOW_MAX_S, description="Seconds.")]
    key: Annotated[MaybeText, Meta(description="Of your choice. Empty: recipient and kind.")] = ""


class NewNotification(Strict, frozen=True):
    """One message to one recipient, about one fact. It has a body or a template, and a key here or in the header."""

    kind: Annotated[Text, Meta(description="What sort of message: reminder, shipping.")]
    recipient: Annotated[Text, Meta(description="An E.164 number, an address, an id of the platform.")]
    channel: Channel
    key: Annotated[
        Text | None, Meta(description="The fact of your business: order-4711-shipped. null: as in Idempotency-Key.")
    ] = None
    body: Annotated[
        Words | dict[str, Any] | list[Any] | None,
        Meta(description="A text, or a document for the channel event. null: the template's."),
    ] = None
    subject: str = ""
    sender: Annotated[MaybeText, Meta(description="Empty: the provider's configured one.")] = ""
    template: Annotated[MaybeText, Meta(description="The provider's id of a template.")] = ""
    data: Annotated[dict[str, Any], Meta(description="Of the template.")] = field(default_factory=dict)
    not_after: Annotated[Moment | None, Meta(description="Not sent by then, it expires. null: as by max_age.")] = None
    priority: Annotated[float, Meta(ge=0, le=PRIORITY_MAX, multiple_of=1, description="0 goes first, 9 last.")] = 5
    order: Annotated[MaybeText, Meta(description="Those with the same one are sent one after the other.")] = ""
    guard: GuardItem | None = None
    provider: Annotated[MaybeName, Meta(description="By name. Empty: the first one of its channel.")] = ""
    policy: Annotated[
        Policy | None, Meta(description="At the deadline of an unknown outcome. null: the provider's.")
    ] = None


class NotificationAdded(Struct, frozen=True):
    """It is durable. `known`: the same call came before, and there is one notification."""

    id: IdText
    status: Literal["added", "known"]
    state: StateText


class NotificationDecided(Struct, frozen=True):
    """Where a notification stands after a person's word."""

    id: IdText
    state: StateText


class NotificationResent(Struct, frozen=True):
    """The new generation. `known`: it was there already, and nothing was added."""

    id: IdText
    status: Literal["added", "known"]
    state: StateText
    generation: Annotated[int, Meta(ge=2)]


# ---------------------------------------------------------------------------------------------------------- decide


class ResolveRequest(Strict, frozen=True):
    """What came of it, as a person has found out: it was sent; it was not, so send it; or it is given up."""

    resolution: Literal["sent", "not_sent", "given_up"]
    reason: Reason


class CancelRequest(Strict, frozen=True):
    """It is not wanted any more."""

    reason: Reason


class ResendRequest(Strict, frozen=True):
    """The same message again, on purpose."""

    reason: Reason


class EraseRequest(Strict, frozen=True):
    """Forget the recipient, and what was said."""

    recipient: Text
    reason: Reason


class RecipientErased(Struct, frozen=True):
    """What is over is forgotten; what is known by its identity stays known."""

    erased: Annotated[int, Meta(ge=0)]
    left: Annotated[int, Meta(ge=0, description="On their way or uncertain: erase again when they are over.")]


# ------------------------------------------------------------------------------------------------------------ read


class NotificationStatus(Struct, frozen=True):
    """Did this customer get the message? Scalars only, so that every platform can map them."""

    status: Annotated[
        SentStatus,
        Meta(
            description="never: there is none; not_sent: it is failed, expired or cancelled, and nobody got it; "
            "pending: it will be sent; sent: a provider has taken it; unknown: it may have been sent, and nobody knows "
            "yet; suppressed: its guard has kept it back."
        ),
    ]
    may_send: Annotated[
        bool, Meta(description="True only for never and not_sent. Whoever sends all the same may send twice.")
    ]
    id: Annotated[str, Meta(description="Of the notification that says most. Empty: there is none.")]
    state: Annotated[
        str, Meta(description="Its state. Empty: there is none.", extra_json_schema={"enum": ["", *STATES]})
    ]
    at: Annotated[str, Meta(description="When it came to this state, UTC. Empty: there is none.")]
    provider: str
    reference: Annotated[str, Meta(description="The provider's own id of the message.")]
    evidence: Annotated[str, Meta(description="For people. Of not_sent: why it was not sent.")]
    unsent: Annotated[int, Meta(ge=0, description="Of not_sent: how many are failed, expired or cancelled. Else 0.")]
    note: Annotated[str, Meta(description="Why other spellings of the recipient were not matched. Empty: they were.")]


class AttemptLine(Struct, frozen=True):
    """One line of evidence."""

    number: int
    provider: str
    outcome: Annotated[str, Meta(description="Empty: it has left, and nobody has said what came of it.")]
    at: Annotated[str, Meta(description="UTC. Empty: it is not over.")]
    crossed: Annotated[str, Meta(description="When its first byte could leave, UTC. Empty: nothing left.")]
    evidence: str
    reference: str
    by: Annotated[str, Meta(description="The person, where one decided.")]


class NotificationLine(Struct, frozen=True):
    """One notification. Recipient and content are masked, unless they are asked for."""

    id: IdText
    state: StateText
    reason: str
    key: str
    kind: str
    recipient: Annotated[str, Meta(description="Masked: +49…1234, m…@example.com.")]
    channel: str
    generation: Annotated[int, Meta(ge=1, description="2 after the first resend.")]
    content: Annotated[str, Meta(description="What sort of content, and how long.")]
    provider: Annotated[str, Meta(description="Which has it, or had it last. Empty: none yet.")]
    priority: int
    not_after: Annotated[str, Meta(description="UTC. Empty: none was given.")]
    added: Time
    changed: Time
    possible_duplicates: Annotated[int, Meta(ge=0)]
    suppressed_by: Annotated[str, Meta(description="The id of what its guard let through instead.")]
    erased: bool
    revealed: Annotated[dict[str, Any] | None, Meta(description="With reveal: all that was asked for. Else null.")]


class NextStep(Struct, frozen=True):
    """What happens next if nobody does anything. A report of the provider, or a person, may come first."""

    exit: Annotated[
        Step,
        Meta(
            description="send: a relay sends it; answer: the relay that sends it hears what came of it; in doubt: "
            "replay, the same key again; look_up, the provider is asked; policy, its policy counts; person: nobody "
            "goes on, so resolve it."
        ),
    ]
    at: Annotated[str, Meta(description="Not before then, UTC; of answer, at the latest. Empty: now, or no such time.")]
    under_way: Annotated[bool, Meta(description="A relay has it in its hands.")]
    policy: Annotated[
        str,
        Meta(
            description="In doubt: what counts where nothing is known by `policy_at`.",
            extra_json_schema={"enum": ["", *POLICIES]},
        ),
    ]
    policy_at: Annotated[str, Meta(description="At the latest then, UTC. Empty: there is none.")]


class NotificationReport(NotificationLine, frozen=True, kw_only=True):
    """Everything known of one notification."""

    next: Annotated[NextStep | None, Meta(description="null: it is over.")]
    attempts: Annotated[list[AttemptLine], Meta(description="All evidence, the oldest first.")]


class NotificationPage(Struct, frozen=True):
    """The newest first. A page holds fewer than its limit where contents are large."""

    items: list[NotificationLine]
    next: Annotated[str | None, Meta(description="`after` of the next page. null: this is the last one.")]
