"""Requests and responses of /v1/claims and /v1/keys. The OpenAPI document is made from them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct

from semel.ports import DECIDED, STATES
from semel.settings.schema import LEASE_S, RETENTION_S
from semel.values.keys import PART_MAX_CHARS
from semel.values.outcome import RETRY_MAX_S

ITEMS_MAX = 500  # one round trip to the store, with one statement
PARTS_MAX = 16
LEASE_MIN_S = 0.1
LEASE_MAX_S = 86_400.0  # a day: longer runs renew, and a vanished holder does not block a key for ever
POSITION_MAX = 2**53 - 1  # exact in every language, also as a double
ATTEMPTS_MAX = 1_000_000
LEASE_TEXT_MAX = 64 * 1024  # 16 parts of 255 characters, twice, in four bytes each, and base64

# `keys.checked` enforces these; they are here for the OpenAPI document. Meta(pattern=…) cannot be used: msgspec 0.22
# frees a union of a list and a text with a pattern wrongly, and the process may crash at exit.
_PRINTABLE = {"pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"}
_NOT_ALL_EMPTY = {"contains": {"type": "string", "minLength": 1}}

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=PART_MAX_CHARS, extra_json_schema=_PRINTABLE)]
Part: TypeAlias = Annotated[str, Meta(max_length=PART_MAX_CHARS, extra_json_schema=_PRINTABLE)]
Parts: TypeAlias = Annotated[
    list[Part],
    Meta(
        min_length=1,
        max_length=PARTS_MAX,
        description="The parts of a key. They are kept apart: [ab, c] is not [a, bc]. At least one is not empty.",
        extra_json_schema=_NOT_ALL_EMPTY,
    ),
]
Key: TypeAlias = Name | Parts
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=RETRY_MAX_S)]
LeaseSeconds: TypeAlias = Annotated[float, Meta(ge=LEASE_MIN_S, le=LEASE_MAX_S)]
RetentionSeconds: TypeAlias = Annotated[float, Meta(ge=1, le=RETRY_MAX_S)]
# Whole numbers as floats: some languages write 3 as 3.0, and JSON Schema accepts both as integers.
Position: TypeAlias = Annotated[float, Meta(ge=-POSITION_MAX, le=POSITION_MAX, multiple_of=1)]
Attempts: TypeAlias = Annotated[float, Meta(ge=1, le=ATTEMPTS_MAX, multiple_of=1)]
LeaseText: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LEASE_TEXT_MAX,
        pattern="^[A-Za-z0-9_-]+$",
        description="As it was granted. Opaque: store it and send it back unchanged.",
    ),
]
KEY_PATTERN = re.compile("^[0-9a-f]{32}$")
KeyText: TypeAlias = Annotated[
    str, Meta(pattern=KEY_PATTERN.pattern, description="The digest of tenant, handler and key.")
]
Reason: TypeAlias = Annotated[str, Meta(min_length=1, description="For operators. The first 500 characters are kept.")]
AnyEvent: TypeAlias = Annotated[Any, Meta(description="The event, kept with a dead letter for operators. null: none.")]


class Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a request. Unknown fields are refused."""


# ----------------------------------------------------------------------------------------------------------- claim


class OrderItem(Strict, frozen=True):
    """The ordering guard: an event older than the newest applied one of its subject is stale."""

    subject: Key
    position: Annotated[Position, Meta(description="Larger is newer: epoch milliseconds, or a counter.")]


class ClaimItem(Strict, frozen=True):
    """A request for the right to run. All times are seconds."""

    handler: Annotated[
        Name, Meta(description="The handler of the effect. Part of the key, like the tenant of the token.")
    ]
    key: Annotated[Key, Meta(description="The identity of the effect.")]
    lease: LeaseSeconds = LEASE_S
    retention: Annotated[
        RetentionSeconds, Meta(description="How long duplicates are recognised after the settlement.")
    ] = RETENTION_S
    payload: Annotated[
        Any, Meta(description="The same key with another payload is a conflict. null: payloads are not compared.")
    ] = None
    order: OrderItem | None = None
    max_attempts: Annotated[
        Attempts | None,
        Meta(description="After this many attempts, crashes included, the event becomes a dead letter."),
    ] = None
    park: Annotated[
        bool,
        Meta(
            description="At most once: if the holder vanished, the key is settled as uncertain and not granted again."
        ),
    ] = False
    event: Annotated[
        Any,
        Meta(description="Kept if the claim itself makes a dead letter. Send it again to settle. null: none."),
    ] = None


class ClaimBatch(Strict, frozen=True):
    """Claims, decided in order, as if they had arrived one after the other."""

    items: Annotated[list[ClaimItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class GrantedVerdict(Struct, frozen=True, tag_field="verdict", tag="granted"):
    """The client may run the handler, and must settle."""

    key: KeyText
    lease: LeaseText
    token: Annotated[
        int, Meta(ge=1, description="Grows with every grant: pass it to a resource that checks fencing tokens.")
    ]
    attempt: Annotated[int, Meta(ge=1)]
    takeover: Annotated[bool, Meta(description="The previous holder vanished: its effect may have happened.")]
    expires_in: Annotated[float, Meta(description="Seconds from the request. Renew before then.")]
    age: Annotated[float, Meta(ge=0, description="Seconds since the first grant of this key.")]


class SettledVerdict(Struct, frozen=True, tag_field="verdict", tag="settled"):
    """A duplicate, with the outcome of the first run."""

    key: KeyText
    outcome: Literal["done", "reject", "uncertain"]
    result: Annotated[Raw, Meta(description="Of outcome done; else null.")]
    reason: Annotated[str, Meta(description="Of the other outcomes; else empty.")]


class BusyVerdict(Struct, frozen=True, tag_field="verdict", tag="busy"):
    """Another client holds the lease, or a retry is not due yet. Claim again after this time."""

    key: KeyText
    after: Annotated[float, Meta(ge=0, description="Seconds.")]


class StaleVerdict(Struct, frozen=True, tag_field="verdict", tag="stale"):
    """A newer event of the subject was applied: there is nothing to do."""

    key: KeyText


class ConflictVerdict(Struct, frozen=True, tag_field="verdict", tag="conflict"):
    """The key exists with another payload. The first record is unchanged."""

    key: KeyText


class DeadVerdict(Struct, frozen=True, tag_field="verdict", tag="dead"):
    """No attempts are left: this claim made it a dead letter."""

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
    result: Annotated[Any, Meta(description="Stored, and returned to duplicates. At most 64 KB of JSON.")] = None


class SettleRetry(Strict, frozen=True, tag_field="outcome", tag="retry"):
    """The effect did not happen; retry. After the last attempt it becomes a dead letter instead."""

    lease: LeaseText
    after: Annotated[Seconds | None, Meta(description="Seconds. null: exponential, with jitter.")] = None
    reason: Annotated[str, Meta(description="For operators.")] = ""
    event: AnyEvent = None


class SettleReject(Strict, frozen=True, tag_field="outcome", tag="reject"):
    """The run can never succeed: the event becomes a dead letter, with this reason."""

    lease: LeaseText
    reason: Reason
    event: AnyEvent = None


class SettleUncertain(Strict, frozen=True, tag_field="outcome", tag="uncertain"):
    """It is unknown whether the effect happened: an operator decides, and nothing runs until then."""

    lease: LeaseText
    reason: Reason
    event: AnyEvent = None


class SettleRelease(Strict, frozen=True, tag_field="outcome", tag="release"):
    """Return the lease unused. The attempt does not count."""

    lease: LeaseText


SettleItem: TypeAlias = SettleDone | SettleRetry | SettleReject | SettleUncertain | SettleRelease


class SettleBatch(Strict, frozen=True):
    """Outcomes of runs. Each ends a lease."""

    items: Annotated[list[SettleItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class SettleAnswer(Struct, frozen=True, omit_defaults=True):
    """`settled` is false if the lease was lost to another client: nothing was written."""

    settled: bool
    outcome: Annotated[
        Literal["done", "retry", "reject", "uncertain", "release"] | None,
        Meta(description="The recorded outcome. A retry after the last attempt is a reject."),
    ] = None
    after: Annotated[float | None, Meta(description="Of a retry: seconds.")] = None
    reason: Annotated[str, Meta(description="Why another outcome than the requested one was recorded.")] = ""


class SettleAnswerBatch(Struct, frozen=True):
    """One answer for each item, in order."""

    items: list[SettleAnswer]


# ----------------------------------------------------------------------------------------------------------- renew


class RenewItem(Strict, frozen=True):
    """A lease to extend by its full length, from now."""

    lease: LeaseText


class RenewBatch(Strict, frozen=True):
    """Leases to extend."""

    items: Annotated[list[RenewItem], Meta(min_length=1, max_length=ITEMS_MAX)]


class RenewAnswer(Struct, frozen=True, omit_defaults=True):
    """`renewed` is false if the lease was lost: stop, because another client may be running."""

    renewed: bool
    expires_in: Annotated[float | None, Meta(description="Seconds from the request.")] = None


class RenewAnswerBatch(Struct, frozen=True):
    """One answer for each item, in order."""

    items: list[RenewAnswer]


# ------------------------------------------------------------------------------------------------------------ keys


class KeyLine(Struct, frozen=True):
    """The state of a key, or the final state of an earlier generation."""

    state: Annotated[str, Meta(extra_json_schema={"enum": [*STATES, *DECIDED]})]
    reason: str
    attempts: Annotated[int, Meta(ge=0)]
    at: Annotated[
        str,
        Meta(
            description="When the key entered this state, UTC, to the millisecond.",
            extra_json_schema={"format": "date-time"},
        ),
    ]
    generation: Annotated[int, Meta(ge=1, description="2 after the first replay.")]
    decision: Annotated[str, Meta(description="Who replayed or discarded it, when and why.")]
    result: Annotated[Raw, Meta(description="Of state done.")]


class KeyReport(Struct, frozen=True):
    """The state and the history of one key, the newest first."""

    key: KeyText
    handler: str
    text: Annotated[str, Meta(description="The key in readable form.")]
    state: Annotated[str, Meta(extra_json_schema={"enum": [*STATES, *DECIDED]})]
    history: Annotated[list[KeyLine], Meta(min_length=1)]


class Problem(Struct, frozen=True):
    """Problem details (RFC 9457): the error, and what to do."""

    type: str
    title: str
    status: int
    detail: str
