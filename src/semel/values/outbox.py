"""The requests to an outbox and its answers.

The outbox stores the records of relays under a token, and lets at most one relay act on a notification at a time.
`values/delivery_state.py` decides the meaning of a state and the next step. The store decides only what must hold
across processes: the messages that a guard lets through, and the owner of a notification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from semel.values.delivery_state import DeliveryState, Reported, Resolution, State, overdue
from semel.values.notification import Notification, Policy


class Added(Struct, frozen=True):
    """The result of adding one notification."""

    id: str  # hex
    status: Literal["added", "known", "conflict"]  # conflict: the same key with another content; nothing was changed
    state: State = "pending"  # of the stored notification


class Lane(Struct, frozen=True):
    """The free slots of a relay at one provider. A notification without a provider has the lane of its channel."""

    room: int
    provider: str = ""  # with the limit that it shares
    per_second: float = 0.0  # for each tenant, over all relays; 0: no limit


def lane_of(provider: str, channel: str) -> str:
    return provider or f"@{channel}"


class Dispatch(Struct, frozen=True):
    """A notification that a relay has taken, under a token of its own."""

    id: bytes
    token: int
    notification: Notification
    content: bytes  # as it was first stored
    delivery_state: DeliveryState
    taken_ms: int  # the store's clock
    slot_ms: int = 0  # not before this time, because of the rate limit of its provider; 0: at once
    vanished: bool = False  # the relay before did not record an outcome
    request: bytes | None = None  # of the first crossing to this provider: a retry sends the same bytes
    added_ms: int = 0  # by the store's clock; 0: unknown
    ahead_ms: int = 0  # how far the store's clock is ahead of the wall clock, if it was set wrongly


class Crossing(Struct, frozen=True):
    """A request to cross: the first byte is about to be sent."""

    dispatch: Dispatch
    delivery_state: DeliveryState  # after the crossing
    request: bytes | None = None  # stored with the crossing


class Crossed(Struct, frozen=True):
    """The crossing is durable: send."""


class Suppressed(Struct, frozen=True):
    """Its guard has let another notification through, `by`."""

    by: bytes


class Held(Struct, frozen=True):
    """Another notification of its guard or order key is being sent now. Try again later."""

    by: bytes


class Lost(Struct, frozen=True):
    """The token is no longer current. Nothing was written, and nothing may be sent."""


CrossingVerdict: TypeAlias = Crossed | Suppressed | Held | Lost


class Record(Struct, frozen=True):
    """The outcome of a dispatch."""

    dispatch: Dispatch
    delivery_state: DeliveryState  # after the dispatch
    outcome: Literal["accepted", "refused", "limited", "unknown", "absent", "unclear", "released", "policy"]
    evidence: str = ""  # for operators; without the content
    reference: str = ""  # the provider's own id
    otherwise: DeliveryState | None = None  # of a look-up: the state if the reference belongs to another notification

    def unless(self, other: bytes) -> Record:
        """The record to write instead, if the message that was found belongs to another notification."""
        assert self.otherwise is not None
        evidence = f"look-up: {self.reference} is the message of notification {other.hex()}"
        return Record(self.dispatch, self.otherwise, "unclear", evidence)


class DeliveryReport(Struct, frozen=True):
    """The report of a provider about one message: a callback, or an answer that came after its lease."""

    status: Reported
    id: bytes | None = None  # the notification's id, if the provider returned it
    provider: str = ""
    reference: str = ""  # the provider's own id
    at_ms: int = 0  # the time in the report
    evidence: str = ""


class Attempt(Struct, frozen=True):
    """One line of evidence."""

    number: int
    provider: str
    crossed_ms: int  # 0: nothing was sent
    ended_ms: int
    outcome: str
    evidence: str = ""
    reference: str = ""
    by: str = ""  # the operator, if one decided


class NotificationView(Struct, frozen=True):
    """A notification as operators see it."""

    id: str
    notification: Notification
    state: State
    reason: str
    provider: str
    added_ms: int
    changed_ms: int
    due_ms: int
    possible_duplicates: int = 0
    suppressed_by: str = ""
    attempts: tuple[Attempt, ...] = ()
    erased: bool = False
    delivery_state: DeliveryState | None = None  # while it is not finished; None also if it cannot be decoded
    taken: bool = False  # leased by a relay until `due_ms`
    size: int = 0  # bytes of its content, as it is stored


class Found(Struct, frozen=True):
    """A look-up has found the message."""

    reference: str


class Absent(Struct, frozen=True):
    """A look-up, made after the settle time, has found none."""


class Unclear(Struct, frozen=True):
    """A look-up without a result."""

    reason: str


LookedUp: TypeAlias = Found | Absent | Unclear


class Decision(Struct, frozen=True):
    """An operator's decision about one notification."""

    id: bytes
    resolution: Resolution
    reason: str
    by: str

    @property
    def summary(self) -> str:
        """The decision in one line, for operators."""
        return f"{self.resolution.replace('_', ' ')}, decided by {self.by}: {self.reason}"


class Backlog(Struct, frozen=True):
    """The notifications of one state at one provider; those without a provider yet are under "@channel"."""

    provider: str
    state: State
    count: int
    oldest_ms: int  # when the oldest of them was added


class NotificationQuery(Struct, frozen=True, kw_only=True):
    """The filters of a listing. By default it lists all notifications."""

    tenant: str | None = None
    state: str = ""
    recipient: str = ""  # needs a tenant
    kind: str = ""
    key: str = ""  # needs a tenant
    provider: str = ""
    possible_duplicates: bool = False  # only those that may have been sent twice
    since_ms: int = 0  # when they were added
    until_ms: int | None = None
    after_id: bytes | None = None  # with until_ms: also those of that millisecond whose id is greater
    limit: int = 100
    bytes_max: int | None = None  # total size of contents; the notification that exceeds it is the last


SentStatus: TypeAlias = Literal["never", "not_sent", "pending", "sent", "unknown", "suppressed"]


class Status(Struct, frozen=True):
    """The answer to "did this customer get the message?"."""

    answer: SentStatus
    id: str = ""
    state: str = ""
    at_ms: int = 0
    provider: str = ""
    reference: str = ""
    evidence: str = ""
    unsent: int = 0  # with "not_sent": how many are failed, expired or cancelled; `id` is the newest


_ANSWERS: dict[str, SentStatus] = {
    "accepted": "sent",
    "delivered": "sent",
    "undelivered": "sent",
    "sending": "unknown",
    "uncertain": "unknown",
    "pending": "pending",
    "suppressed": "suppressed",
}
_WEIGHT: dict[SentStatus, int] = {"sent": 5, "unknown": 4, "pending": 3, "suppressed": 2, "not_sent": 1, "never": 0}
MAY_SEND: tuple[SentStatus, ...] = ("never", "not_sent")  # no message was sent


def unsent_status(in_doubt: bool) -> SentStatus:
    """The status of a failed, expired or cancelled notification. One that was given up in doubt may have been sent."""
    return "unknown" if in_doubt else "not_sent"


def most_informative(statuses: Iterable[Status]) -> Status:
    """The most informative status of several notifications, which are given newest first. The status of an unsent one
    is already set."""
    best = Status("never")
    unsent = 0
    for status in statuses:
        answer = _ANSWERS.get(status.state, status.answer)
        unsent += answer == "not_sent"
        if _WEIGHT[answer] > _WEIGHT[best.answer]:
            best = replace(status, answer=answer)
    return replace(best, unsent=unsent) if best.answer == "not_sent" else best


# The check that a request makes right before its first byte leaves.
#
# A process may stall between the decision to send and the first byte: while a name is resolved, a connection is opened
# or a token is fetched. The code that decides knows the lease, and the client that writes knows the moment. A context
# variable carries the check from one to the other.

_check: ContextVar[Callable[[], None] | None] = ContextVar("_check", default=None)


@contextmanager
def checked_by(check: Callable[[], None]) -> Iterator[None]:
    """Requests of this block call `check` before their first byte. It raises LeaseLost when they must not be sent."""
    outside = _check.set(check)
    try:
        yield
    finally:
        _check.reset(outside)


def check_first_byte() -> None:
    """Called by every client between the last wait and the first byte."""
    if (check := _check.get()) is not None:
        check()


# The next automatic step of a notification and its time, for the CLI, the HTTP API and the dashboard.

Step: TypeAlias = Literal["send", "answer", "replay", "look_up", "policy", "person"]
"""A relay sends it, or gets the answer. In doubt: the same key again, a look-up, its policy, or an operator."""


class UpcomingStep(Struct, frozen=True):
    """The next automatic step. A delivery report or an operator's decision may come first."""

    exit: Step
    at_ms: int = 0  # the earliest time; of "answer": the latest. 0: now, or at no certain time
    under_way: bool = False  # a relay has taken it
    policy: Policy | None = None  # in doubt: applied if nothing else decides
    policy_ms: int = 0  # when the policy applies at the latest; 0: unknown


def coming(shown: NotificationView, now_ms: int) -> UpcomingStep | None:
    """The next step of a notification; None if it is finished."""
    delivery_state = replace(shown.delivery_state or DeliveryState(), state=shown.state)
    is_taken = shown.taken and shown.due_ms > now_ms
    at_ms = 0 if is_taken else shown.due_ms
    match shown.state:
        case "pending":
            return UpcomingStep("replay" if delivery_state.doubt_ms else "send", at_ms, is_taken)
        case "sending":
            return UpcomingStep("answer", shown.due_ms, is_taken)
        case "uncertain" if shown.due_ms and delivery_state.exit:
            latest_ms = shown.due_ms if delivery_state.exit == "policy" and not is_taken else delivery_state.policy_ms
            return UpcomingStep(delivery_state.exit, at_ms, is_taken, _policy(delivery_state, latest_ms), latest_ms)
        case "uncertain":
            return UpcomingStep("person")
    return None


def _policy(delivery_state: DeliveryState, at_ms: int) -> Policy:
    """The effective policy: "resend" becomes "hold" if it was sent again before, or its time is over."""
    after = overdue(delivery_state, at_ms)
    return "hold" if after.state == "uncertain" else delivery_state.policy
