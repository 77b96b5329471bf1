"""The documents of the API. The OpenAPI description is made from these, so that it says what is checked."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from semel.ports import DECIDED, STATES
from semel.settings.schema import LEASE_S, RETENTION_S
from semel.values.keys import PART_MAX_CHARS
from semel.values.outcome import RETRY_MAX_S

ITEMS_MAX = 500  # one round trip to the store, and one piece of its largest statement
PARTS_MAX = 16
LEASE_MIN_S = 0.1
LEASE_MAX_S = 86_400.0  # a day: whoever needs longer renews, and a vanished holder does not block a key for ever
POSITION_MAX = 2**53 - 1  # every language's numbers hold it exactly
ATTEMPTS_MAX = 1_000_000
LEASE_TEXT_MAX = 64 * 1024  # 16 parts of 255 characters, twice, in four bytes each, and base64

# What `keys.checked` sees to, told to those who read the description. Not as Meta(pattern=…): msgspec 0.22 frees a
# union of a list and a text with a pattern wrongly, and then the process may crash when it ends.
_PRINTABLE = {"pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"}
_NOT_ALL_EMPTY = {"contains": {"type": "string", "minLength": 1}}

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=PART_MAX_CHARS, extra_json_schema=_PRINTABLE)]
Part: TypeAlias = Annotated[str, Meta(max_length=PART_MAX_CHARS, extra_json_schema=_PRINTABLE)]
Parts: TypeAlias = Annotated[
    list[Part],
    Meta(
        min_length=1,
        max_length=PARTS_MAX,
        description="The parts of a key. They stay apart: [ab, c] is not [a, bc]. Not all of them are empty.",
        extra_json_schema=_NOT_ALL_EMPTY,
    ),
]
Key: TypeAlias = Name | Parts
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=RETRY_MAX_S)]
LeaseSeconds: TypeAlias = Annotated[float, Meta(ge=LEASE_MIN_S, le=LEASE_MAX_S)]
RetentionSeconds: TypeAlias = Annotated[float, Meta(ge=1, le=RETRY_MAX_S)]
# Whole numbers: some languages write 3 as 3.0, and to JSON Schema both are integers. All of them are exact as float.
Position: TypeAlias = Annotated[float, Meta(ge=-POSITION_MAX, le=POSITION_MAX, multiple_of=1)]
Attempts: TypeAlias = Annotated[float, Meta(ge=1, le=ATTEMPTS_MAX, multiple_of=1)]
LeaseText: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LEASE_TEXT_MAX,
        pattern="^[A-Za-z0-9_-]+$",
        description="As it was granted. It is opaque: keep it, hand it back, read nothing from it.",
    ),
]
KEY_PATTERN = re.compile("^[0-9a-f]{32}$")
KeyText: TypeAlias = Annotated[
    str, Meta(pattern=KEY_PATTERN.pattern, description="The digest of tenant, handler and key.")
]
Reason: TypeAlias = Annotated[str, Meta(min_length=1, description="For people. Kept up to 500 characters.")]
AnyEvent: TypeAlias = Annotated[
    Any, Meta(description="What happened, kept with a dead letter so that a person can look at it. null: nothing.")
]


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes from outside: a name that we do not know is a mistake, not a wish."""


# ----------------------------------------------------------------------------------------------------------- claim


class OrderItem(Strict, frozen=True):
    """The ordering guard: an event older than the newest applied one of its subject is stale."""

    subject: Key
    position: Annotated[Position, Meta(description="Larger is newer: epoch milliseconds, or a counter.")]


class ClaimItem(Strict, frozen=True):
    """May I act on this key? All times are seconds."""

    handler: Annotated[Name, Meta(description="Whose effect it is. Part of the key, like the token's tenant.")]
    key: Annotated[Key, Meta(description="What identifies the effect.")]
    lease: LeaseSeconds = LEASE_S
    retention: Annotated[RetentionSeconds, Meta(description="How long duplicates are answered once it is settled.")] = (
        RETENTION_S
    )
    payload: Annotated[
        Any, Meta(description="The same key with another payload is a conflict. null: payloads are not compared.")
    ] = None
    order: OrderItem | None = None
    max_attempts: Annotated[
        Attempts | None, Meta(description="After so many attempts, crashes included, the event is a dead letter.")
    ] = None
    park: Annotated[
        bool,
        Meta(description="At most once: a key whose holder vanished is settled as uncertain instead of granted again."),
    ] = False
    event: Annotated[
        Any,
        Meta(
            description="Kept with the dead letter that the claim itself makes. A settle brings it again. null: none."
        ),
    ] = None


class ClaimBatch(Strict, frozen=True):
    """Claims, decided in order, as if they had come one after the other."""

    items: Annotated[list[ClaimItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class GrantedVerdict(Struct, frozen=True, tag_field="verdict", tag="granted"):
    """Act, then settle."""

    key: KeyText
    lease: LeaseText
    token: Annotated[int, Meta(ge=1, description="Grows with every grant: hand it to a resource that can fence.")]
    attempt: Annotated[int, Meta(ge=1)]
    takeover: Annotated[bool, Meta(description="The holder before vanished: its effect may have happened.")]
    expires_in: Annotated[float, Meta(description="Seconds, from when you asked. Renew before they are over.")]
    age: Annotated[float, Meta(ge=0, description="Seconds since the first grant of this key.")]


class SettledVerdict(Struct, frozen=True, tag_field="verdict", tag="settled"):
    """A duplicate: this is what the first run came to."""

    key: KeyText
    outcome: Literal["done", "reject", "uncertain"]
    result: Annotated[Raw, Meta(description="Of what is done; else null.")]
    reason: Annotated[str, Meta(description="Of what is not done; else empty.")]


class BusyVerdict(Struct, frozen=True, tag_field="verdict", tag="busy"):
    """Someone holds the lease, or a retry is not due yet. Ask again after this time."""

    key: KeyText
    after: Annotated[float, Meta(ge=0, description="Seconds.")]


class StaleVerdict(Struct, frozen=True, tag_field="verdict", tag="stale"):
    """A newer event of the subject was applied: nothing is left to do."""

    key: KeyText


class ConflictVerdict(Struct, frozen=True, tag_field="verdict", tag="conflict"):
    """The key is known with another payload. The first record is untouched."""

    key: KeyText


class DeadVerdict(Struct, frozen=True, tag_field="verdict", tag="dead"):
    """Its attempts are used up: it has just become a dead letter."""

    key: KeyText
    reason: str


VerdictItem: TypeAlias = GrantedVerdict | SettledVerdict | BusyVerdict | StaleVerdict | ConflictVerdict | DeadVerdict


class VerdictBatch(Struct, frozen=True):
    """One verdict for each claim, in order."""

    items: list[VerdictItem]


# ---------------------------------------------------------------------------------------------------------- settle


class SettleDone(Strict, frozen=True, tag_field="outcome", tag="done"):
    """The effect happened."""

    lease: LeaseText
    result: Annotated[Any, Meta(description="Kept, and told to duplicates. At most 64 KB of JSON.")] = None


class SettleRetry(Strict, frozen=True, tag_field="outcome", tag="retry"):
    """The effect did not happen; try again. When that was the last attempt, it is a dead letter instead."""

    lease: LeaseText
    after: Annotated[Seconds | None, Meta(description="Seconds. null: exponential, with jitter.")] = None
    reason: Annotated[str, Meta(description="For people.")] = ""
    event: AnyEvent = None


class SettleReject(Strict, frozen=True, tag_field="outcome", tag="reject"):
    """It will never succeed: a dead letter, with its reason."""

    lease: LeaseText
    reason: Reason
    event: AnyEvent = None


class SettleUncertain(Strict, frozen=True, tag_field="outcome", tag="uncertain"):
    """Nobody knows whether the effect happened: kept for a person, never run again by itself."""

    lease: LeaseText
    reason: Reason
    event: AnyEvent = None


class SettleRelease(Strict, frozen=True, tag_field="outcome", tag="release"):
    """The lease goes back unused, as if it had not been asked for. The attempt does not count."""

    lease: LeaseText


SettleItem: TypeAlias = SettleDone | SettleRetry | SettleReject | SettleUncertain | SettleRelease


class SettleBatch(Strict, frozen=True):
    """The ends of leases."""

    items: Annotated[list[SettleItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class SettleAnswer(Struct, frozen=True, omit_defaults=True):
    """`settled` is false when the lease was lost: someone else has it, or had it, and nothing was written."""

    settled: bool
    outcome: Annotated[
        Literal["done", "retry", "reject", "uncertain", "release"] | None,
        Meta(description="What was recorded. A retry after the last attempt is a reject."),
    ] = None
    after: Annotated[float | None, Meta(description="Of a retry: seconds.")] = None
    reason: Annotated[str, Meta(description="Why something else was recorded than was asked for.")] = ""


class SettleAnswerBatch(Struct, frozen=True):
    """One answer for each item, in order."""

    items: list[SettleAnswer]


# ----------------------------------------------------------------------------------------------------------- renew


class RenewItem(Strict, frozen=True):
    """A lease to be extended by its full length, from now."""

    lease: LeaseText


class RenewBatch(Strict, frozen=True):
    """Leases to be extended."""

    items: Annotated[list[RenewItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class RenewAnswer(Struct, frozen=True, omit_defaults=True):
    """`renewed` is false when the lease was lost: stop, someone else may be acting."""

    renewed: bool
    expires_in: Annotated[float | None, Meta(description="Seconds, from when you asked.")] = None


class RenewAnswerBatch(Struct, frozen=True):
    """One answer for each item, in order."""

    items: list[RenewAnswer]


# ------------------------------------------------------------------------------------------------------------ keys


class KeyLine(Struct, frozen=True):
    """One state that a key is in, or in which an earlier generation of it ended."""

    state: Annotated[str, Meta(extra_json_schema={"enum": [*STATES, *DECIDED]})]
    reason: str
    attempts: Annotated[int, Meta(ge=0)]
    at: Annotated[
        str,
        Meta(
            description="When it came to this state, UTC, to the millisecond.",
            extra_json_schema={"format": "date-time"},
        ),
    ]
    generation: Annotated[int, Meta(ge=1, description="2 after the first replay.")]
    decision: Annotated[str, Meta(description="By whom, when and why it was replayed or discarded.")]
    result: Annotated[Raw, Meta(description="Of what is done.")]


class KeyReport(Struct, frozen=True):
    """Everything known of one key, the newest first."""

    key: KeyText
    handler: str
    text: Annotated[str, Meta(description="The key, for people.")]
    state: Annotated[str, Meta(extra_json_schema={"enum": [*STATES, *DECIDED]})]
    history: Annotated[list[KeyLine], Meta(min_length=1)]


class Problem(Struct, frozen=True):
    """RFC 9457: what is wrong, and what to do."""

    type: str
    title: str
    status: int
    detail: str
