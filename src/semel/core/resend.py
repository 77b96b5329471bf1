"""The outbox that belongs to a ledger: in the same store, or nowhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from semel.ports import Ledger, Notifications, Outbox
from semel.values.delivery_state import LIVE, Reported, State
from semel.values.errors import ConfigError
from semel.values.notification import Guard, Notification
from semel.values.outbox import Added, DeliveryReport, NotificationView


class StoredOutbox(Outbox, Notifications, Protocol):
    """An outbox with both of its sides: relays send from it, people look into it."""


def outbox_of(ledger: Ledger) -> StoredOutbox | None:
    """None: this kind of ledger keeps none."""
    outbox: StoredOutbox | None = getattr(ledger, "outbox", None)
    return outbox


def needed_outbox(ledger: Ledger) -> StoredOutbox:
    """Raises ConfigError where there is none."""
    if (outbox := outbox_of(ledger)) is None:
        raise ConfigError(
            f"a {ledger.traits.name} ledger keeps no outbox: notifications need sqlite:///file.db or postgresql://…"
        )
    return outbox


# A deliberate repetition: the same notification again, as its next generation, with a reason.
#
#     show → may it be sent again? → note why, on this one → add the next generation → note why, on that one
#
# Whoever asks names the generation that is to be repeated. So a call that is made twice, because its answer got lost or
# because two people had the same idea, makes one new message: the second call finds it and says so. The reason is
# durable before the message is; a crash between the two leaves a reason without a message, and the same call again
# mends that.

RESENT: Reported = "resent"  # a word that moves no state: it is only kept
REPEATED: Reported = "repeated"  # the same, of what is a repetition itself: of that, "resent" says why it was made
PASSED_S = 0.001
UNREADABLE = "(cannot be read)"  # what stores show in place of a content that somebody wrote by hand


class Repeats(Protocol):
    """What is needed of an outbox here."""

    async def show(self, id: bytes) -> NotificationView | None: ...

    async def add(self, notifications: Sequence[Notification]) -> list[Added]: ...

    async def apply_reports(self, witnesses: Sequence[DeliveryReport]) -> list[State | None]: ...


class Resent(Struct, frozen=True):
    """What became of it."""

    status: Literal["added", "known", "refused", "missing"]
    id: str = ""  # of the new generation; of a refused one: of the one that was asked for
    generation: int = 0
    state: str = ""
    reason: str = ""  # why it was refused


async def resend(outbox: Repeats, id: bytes, reason: str, by: str, *, tenant: str | None = None) -> Resent:
    """Send a notification again. "known": its next generation is there already. "missing": nobody knows this id, or
    it is another tenant's. Its guard, which it would not pass, is not asked, and knows of it: who comes next finds
    that this customer was told."""
    shown = await outbox.show(id)
    if shown is None or (tenant is not None and shown.notification.tenant != tenant):
        return Resent("missing")
    following = await _following(outbox, shown)
    if isinstance(following, Resent):
        return following
    return await _add(outbox, shown, following, f"says {by}: {reason}")


async def foreseen(outbox: Repeats, shown: NotificationView) -> Resent:
    """What a resend would come to now. "added": it would be."""
    following = await _following(outbox, shown)
    if isinstance(following, Resent):
        return following
    return Resent("added", following.id.hex(), following.generation, "pending")


async def _following(outbox: Repeats, shown: NotificationView) -> Notification | Resent:
    """The next generation; or why there is none to be added."""
    if shown.erased:
        return _refused(shown, "it was erased, and there is nothing left that could be sent")
    try:
        following = replace(shown.notification, generation=shown.notification.generation + 1, guard=_passing(shown))
    except ConfigError as error:  # it was judged by another version, or by SQL
        return _refused(shown, str(error))
    if (known := await outbox.show(following.id)) is not None:
        return Resent("known", known.id, following.generation, known.state)
    if (why_not := _why_not(shown)) is not None:
        return _refused(shown, why_not)
    return following


def _passing(shown: NotificationView) -> Guard | None:
    """The window is the shortest there is: it lets through whatever passed before."""
    guard = shown.notification.guard
    return None if guard is None else Guard(window_s=PASSED_S, key=guard.key)


async def _add(outbox: Repeats, shown: NotificationView, following: Notification, why: str) -> Resent:
    """Each step can be repeated: what is written already stays as it is."""
    number = following.generation
    word = RESENT if shown.notification.generation == 1 else REPEATED
    first = DeliveryReport(word, bytes.fromhex(shown.id), evidence=f"to be sent again as generation {number}, {why}")
    await outbox.apply_reports([first])
    (added,) = await outbox.add([following])
    if added.status == "conflict":  # somebody has added it between our look and now, and says something else
        return _refused(shown, f"there is a generation {number} with another content: {added.id}")
    await outbox.apply_reports(
        [DeliveryReport(RESENT, following.id, evidence=f"sent again, as generation {number}, {why}")]
    )
    return Resent(added.status, added.id, number, added.state)


def _why_not(shown: NotificationView) -> str | None:
    not_after = shown.notification.not_after
    if shown.state == "uncertain":
        return "nobody knows whether it was sent: say what came of it first (resolve)"
    if shown.state in LIVE:
        return "it is on its way: wait until it is known what became of it, or cancel it"
    if shown.notification.body == UNREADABLE:
        return "its content cannot be read"
    if not_after is not None and not_after <= datetime.fromtimestamp(time.time(), UTC):
        return f"its time was over at {not_after.isoformat()}: a new one needs a key of its own"
    return None


def _refused(shown: NotificationView, reason: str) -> Resent:
    return Resent("refused", shown.id, shown.notification.generation, shown.state, reason)
