"""What is put to an outbox, and what it answers.

The outbox decides little: it keeps what the relay tells it, under a token, and it lets at most one relay act on a
notification at a time. `values/delivery_state.py` decides the meaning of a state and the next step. Only the store can
decide two things, because they must hold across processes: whether a guard lets a message through, and who is next.
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
    """What became of a call."""

    id: str  # hex
    status: Literal["added", "known", "conflict"]  # conflict: the same key with another content; nothing was changed
    state: State = "pending"  # of what is known


class Lane(Struct, frozen=True):
    """What a relay has room for, at one provider. What names no provider has the lane of its channel."""

    room: int
    provider: str = ""  # whose limit it shares
    per_second: float = 0.0  # for each tenant, over all relays; 0: no limit


def lane_of(provider: str, channel: str) -> str:
    return provider or f"@{channel}"


class Dispatch(Struct, frozen=True):
    """A notification in a relay's hands, under a token of its own."""

    id: bytes
    token: int
    notification: Notification
    content: bytes  # as it was stored first
    delivery_state: DeliveryState
    taken_ms: int  # the store's clock
    slot_ms: int = 0  # it may go from here on: the rate of its provider was shared out; 0: at once
    vanished: bool = False  # the relay that had it before did not say what came of it
    request: bytes | None = None  # of the first crossing to this provider: a retry sends the same bytes
    added_ms: int = 0  # by the store's clock; 0: not told
    ahead_ms: int = 0  # how far the store's clock is ahead of the wall clock, if it was set wrongly


class Crossing(Struct, frozen=True):
    """A byte is about to leave."""

    dispatch: Dispatch
    delivery_state: DeliveryState  # after the crossing
    request: bytes | None = None  # to be kept with it


class Crossed(Struct, frozen=True):
    """It is written, and durable: send."""


class Suppressed(Struct, frozen=True):
    """Its guard has let another one through. It is kept, and names that one."""

    by: bytes


class Held(Struct, frozen=True):
    """Another one of its guard, or of its order key, is being sent at this moment: nobody knows yet. Ask again."""

    by: bytes


class Lost(Struct, frozen=True):
    """The token is no longer the current one. Nothing was written, and nothing may be sent."""


CrossingVerdict: TypeAlias = Crossed | Suppressed | Held | Lost


class Record(Struct, frozen=True):
    """What came of a dispatch."""

    dispatch: Dispatch
    delivery_state: DeliveryState  # from here on
    outcome: Literal["accepted", "refused", "limited", "unknown", "absent", "unclear", "released", "policy"]
    evidence: str = ""  # for people, and for the next dispute; without the content
    reference: str = ""  # the provider's own id
    otherwise: DeliveryState | None = (
        None  # of a look-up: what is known if the reference is another's, which proves nothing
    )

    def unless(self, other: bytes) -> Record:
        """What is written instead where the message that was found is that of this other one."""
        assert self.otherwise is not None
        evidence = f"look-up: {self.reference} is the message of notification {other.hex()}"
        return Record(self.dispatch, self.otherwise, "unclear", evidence)


class DeliveryReport(Struct, frozen=True):
    """The word of a provider about one message: a callback, or an answer that came too late for its lease."""

    says: Reported
    id: bytes | None = None  # ours, where it came back
    provider: str = ""
    reference: str = ""  # else the provider's own
    at_ms: int = 0  # when the provider says it happened
    evidence: str = ""


class Attempt(Struct, frozen=True):
    """One line of evidence."""

    number: int
    provider: str
    crossed_ms: int  # 0: nothing left
    ended_ms: int
    outcome: str
    evidence: str = ""
    reference: str = ""
    by: str = ""  # the person, where a person decided


class NotificationView(Struct, frozen=True):
    """A notification as people see it."""

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
    delivery_state: DeliveryState | None = None  # while it is not over; None also where it cannot be read
    taken: bool = False  # in a relay's hands, until `due_ms`
    size: int = 0  # bytes of its content, as it is stored


class Found(Struct, frozen=True):
    """A look-up has found the message."""

    reference: str


class Absent(Struct, frozen=True):
    """A look-up, made after the settle time, has found none."""


class Unclear(Struct, frozen=True):
    """A look-up that says nothing."""

    reason: str


LookedUp: TypeAlias = Found | Absent | Unclear


class Decision(Struct, frozen=True):
    """A person's word about one notification."""

    id: bytes
    says: Resolution
    reason: str
    by: str

    @property
    def told(self) -> str:
        """In one line, for people."""
        return f"{self.says.replace('_', ' ')}, says {self.by}: {self.reason}"


class Backlog(Struct, frozen=True):
    """How much of one state waits at one provider; what names none yet is under "@channel"."""

    provider: str
    state: State
    count: int
    oldest_ms: int  # when the oldest of them was added


class NotificationQuery(Struct, frozen=True, kw_only=True):
    """Which notifications are listed. Empty: all of them."""

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
    bytes_max: int | None = None  # of contents together; the one that exceeds it is the last


SentStatus: TypeAlias = Literal["never", "not_sent", "pending", "sent", "unknown", "suppressed"]


class Status(Struct, frozen=True):
    """Did this customer get the message?"""

    told: SentStatus
    id: str = ""
    state: str = ""
    at_ms: int = 0
    provider: str = ""
    reference: str = ""
    evidence: str = ""
    unsent: int = 0  # with "not_sent": how many are failed, expired or cancelled; `id` is the newest


_TOLD: dict[str, SentStatus] = {
    "accepted": "sent",
    "delivered": "sent",
    "undelivered": "sent",
    "sending": "unknown",
    "uncertain": "unknown",
    "pending": "pending",
    "suppressed": "suppressed",
}
_WEIGHT: dict[SentStatus, int] = {"sent": 5, "unknown": 4, "pending": 3, "suppressed": 2, "not_sent": 1, "never": 0}
MAY_SEND: tuple[SentStatus, ...] = ("never", "not_sent")  # it is known that nobody got it


def told_unsent(in_doubt: bool) -> SentStatus:
    """Of what is failed, expired or cancelled. What was given up in doubt may have been sent for all that."""
    return "unknown" if in_doubt else "not_sent"


def told_of(found: Iterable[Status]) -> Status:
    """Of several notifications, the newest first: the one that says most. Of those that are over and were not sent
    each says itself whether that is known."""
    best = Status("never")
    unsent = 0
    for one in found:
        told = _TOLD.get(one.state, one.told)
        unsent += told == "not_sent"
        if _WEIGHT[told] > _WEIGHT[best.told]:
            best = replace(one, told=told)
    return replace(best, unsent=unsent) if best.told == "not_sent" else best


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


# What happens next to a notification if nobody does anything, and when: read once, for every face that tells it.

Step: TypeAlias = Literal["send", "answer", "replay", "look_up", "policy", "person"]
"""A relay sends it, or hears what came of it. In doubt: the same key again, a look-up, its policy; or a person decides.
"""


class UpcomingStep(Struct, frozen=True):
    """The next step by itself. A provider's report, or a person, may come first."""

    exit: Step
    at_ms: int = 0  # not before then; of "answer": at the latest. 0: at this moment, or at no certain time
    under_way: bool = False  # a relay has it in its hands
    policy: Policy | None = None  # in doubt: what counts where nothing is known
    policy_ms: int = 0  # at the latest then; 0: not told


def coming(shown: NotificationView, now_ms: int) -> UpcomingStep | None:
    """None: it is over."""
    delivery_state = replace(shown.delivery_state or DeliveryState(), state=shown.state)
    in_hand = shown.taken and shown.due_ms > now_ms
    at_ms = 0 if in_hand else shown.due_ms
    match shown.state:
        case "pending":
            return UpcomingStep("replay" if delivery_state.doubt_ms else "send", at_ms, in_hand)
        case "sending":
            return UpcomingStep("answer", shown.due_ms, in_hand)
        case "uncertain" if shown.due_ms and delivery_state.exit:
            latest_ms = shown.due_ms if delivery_state.exit == "policy" and not in_hand else delivery_state.policy_ms
            return UpcomingStep(delivery_state.exit, at_ms, in_hand, _policy(delivery_state, latest_ms), latest_ms)
        case "uncertain":
            return UpcomingStep("person")
    return None


def _policy(delivery_state: DeliveryState, at_ms: int) -> Policy:
    """What its policy will come to: one that may not send again, because that was done or is too late, holds."""
    after = overdue(delivery_state, at_ms)
    return "hold" if after.state == "uncertain" else delivery_state.policy
