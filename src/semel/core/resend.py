"""Finds the outbox of a ledger, and sends a notification again on an operator's request."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from semel.ports import HasOutbox, Ledger, StoredOutbox
from semel.values.delivery_state import LIVE, Reported, State
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification
from semel.values.outbox import Added, DeliveryReport, NotificationView


def outbox_of(ledger: Ledger) -> StoredOutbox | None:
    """The outbox in the store of this ledger; None for a kind of ledger without one."""
    return ledger.outbox if isinstance(ledger, HasOutbox) else None


def needed_outbox(ledger: Ledger) -> StoredOutbox:
    """The outbox in the store of this ledger. Raises ConfigError if there is none."""
    if (outbox := outbox_of(ledger)) is None:
        raise ConfigError(
            f"a {ledger.traits.name} ledger has no outbox: notifications need sqlite:///file.db or postgresql://…"
        )
    return outbox


# A resend adds the same notification as its next generation, with a reason:
#
#     show → check → record the reason on it → add the next generation → record the reason there
#
# The caller names the generation to repeat. A call that is made twice (its answer was lost, or two operators had the
# same idea) adds one new notification: the second call finds it and answers "known". The reason is durable before the
# notification. A crash between the two leaves a reason without a notification, and the same call again completes it.

RESENT: Reported = "resent"  # evidence only: it changes no state
REPEATED: Reported = "repeated"  # the same, on a notification that is itself a repetition and has a "resent" already
PASSED_S = 0.001
UNREADABLE = "(cannot be read)"  # shown by stores in place of a content that was written by hand


class Repeats(Protocol):
    """The part of an outbox that a resend uses."""

    async def show(self, id: bytes) -> NotificationView | None: ...

    async def add(self, notifications: Sequence[Notification]) -> list[Added]: ...

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]: ...


class Resent(Struct, frozen=True):
    """The result of a resend."""

    status: Literal["added", "known", "refused", "missing"]
    id: str = ""  # of the new generation; if refused, of the named one
    generation: int = 0
    state: str = ""
    reason: str = ""  # why it was refused


async def resend(outbox: Repeats, id: bytes, reason: str, by: str, *, tenant: str | None = None) -> Resent:
    """Send a notification again.

    "known": its next generation exists already. "missing": the id is unknown, or belongs to another tenant. The guard
    does not suppress a resend, but records it, so that later notifications of the same guard are suppressed."""
    shown = await outbox.show(id)
    if shown is None or (tenant is not None and shown.notification.tenant != tenant):
        return Resent("missing")
    following = await _following(outbox, shown)
    if isinstance(following, Resent):
        return following
    return await _add(outbox, shown, following, f"decided by {by}: {reason}")


async def foreseen(outbox: Repeats, shown: NotificationView) -> Resent:
    """The result that a resend would have now, without making it."""
    following = await _following(outbox, shown)
    if isinstance(following, Resent):
        return following
    return Resent("added", following.id.hex(), following.generation, "pending")


async def _following(outbox: Repeats, shown: NotificationView) -> Notification | Resent:
    """The next generation, or the reason why it cannot be added."""
    if shown.erased:
        return _refused(shown, "it was erased: its content no longer exists")
    try:
        following = replace(shown.notification, generation=shown.notification.generation + 1, guard=_passing(shown))
    except ConfigError as error:  # it was added by another version, or by SQL, with other checks
        return _refused(shown, str(error))
    if (known := await outbox.show(following.id)) is not None:
        return Resent("known", known.id, following.generation, known.state)
    if (why_not := _why_not(shown)) is not None:
        return _refused(shown, why_not)
    return following


def _passing(shown: NotificationView) -> Guard | None:
    """The guard with the shortest window, which lets this notification pass."""
    guard = shown.notification.guard
    return None if guard is None else Guard(window_s=PASSED_S, key=guard.key)


async def _add(outbox: Repeats, shown: NotificationView, following: Notification, why: str) -> Resent:
    """Record the reason, add the next generation, record the reason there. Every step may be repeated."""
    number = following.generation
    word = RESENT if shown.notification.generation == 1 else REPEATED
    first = DeliveryReport(word, bytes.fromhex(shown.id), evidence=f"to be sent again as generation {number}, {why}")
    await outbox.apply_reports([first])
    (added,) = await outbox.add([following])
    if added.status == "conflict":  # it was added since the look-up, with another content
        return _refused(shown, f"there is a generation {number} with another content: {added.id}")
    await outbox.apply_reports(
        [DeliveryReport(RESENT, following.id, evidence=f"sent again, as generation {number}, {why}")]
    )
    return Resent(added.status, added.id, number, added.state)


def _why_not(shown: NotificationView) -> str | None:
    not_after = shown.notification.not_after
    if shown.state == "uncertain":
        return "it is uncertain whether it was sent: resolve it first"
    if shown.state in LIVE:
        return "it is not finished: wait for its outcome, or cancel it"
    if shown.notification.body == UNREADABLE:
        return "its content cannot be read"
    if not_after is not None and not_after <= datetime.fromtimestamp(time.time(), UTC):
        return f"its time was over at {not_after.isoformat()}: a new one needs a key of its own"
    return None


def _refused(shown: NotificationView, reason: str) -> Resent:
    return Resent("refused", shown.id, shown.notification.generation, shown.state, reason)
