"""Texts for people: times, keys, states of notifications, and customer data in masked form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from semel.values.notification import Notification
from semel.values.outbox import Attempt, NotificationView, UpcomingStep, coming
from semel.values.redaction import hidden, masked_content, masked_recipient, without

KEY_SHOWN_CHARS = 12  # of 32: enough to distinguish a million keys

_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGES = ((604_800 * 2, "week", 604_800), (86_400 * 2, "day", 86_400), (3_600, "hour", 3_600), (60, "minute", 60))


def plain(text: str) -> str:
    """A text of unknown origin on one line, with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def plain_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(plain(line) for line in text.split("\n"))


def moment(at_ms: int) -> str:
    """UTC, to the second."""
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S} UTC"


def iso(at_ms: int) -> str:
    return _utc(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(at_ms: int, now_ms: int) -> str:
    """The time since then, in words: "3 minutes". Never negative, since another clock may be ahead."""
    seconds = max(0, now_ms - at_ms) // 1000
    for least_s, unit, unit_s in _AGES:
        if seconds >= least_s:
            return counted(seconds // unit_s, unit)
    return counted(seconds, "second")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: int) -> str:
    """A number of bytes with two digits: "81 GB"."""
    if count < 1000:
        return counted(count, "byte")
    amount, units = count / 1000, ["TB", "GB", "MB", "kB"]
    while round(amount) >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop()
    return f"{amount:.1f} {units[-1]}" if amount < 9.95 else f"{amount:,.0f} {units[-1]}"


def short(key: str) -> str:
    return key if len(key) <= KEY_SHOWN_CHARS else f"{key[:KEY_SHOWN_CHARS]}…"


def cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"


def brief_ids(text: str) -> str:
    """Shorten UUIDs to their first digits, so that several fit on one line."""
    return _UUID.sub(r"\1…", text)


def span_s(text: str) -> int | None:
    """Parse a duration: "90s", "2h", "3d". None: it is no duration."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip())
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def instant_ms(text: str, now_ms: int) -> int:
    """Parse an ISO 8601 time (UTC by default), or a time ago: "90s", "2h", "3d". Raises ValueError."""
    text = text.strip()
    if (ago_s := span_s(text)) is not None:
        return now_ms - ago_s * 1000
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r}: expected a time such as 2026-03-19T22:00 or 2h, 3d ago") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _utc(at_ms: int) -> datetime:
    """Times beyond the calendar are limited to its first and last moment."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(at_ms, 0), 253_402_300_799_999))


# --------------------------------------------------------------------------------------------------------- states

STYLES = {  # of events and notifications
    "dead": "red",
    "done": "green",
    "leased": "cyan",
    "waiting": "cyan",
    "pending": "cyan",
    "sending": "cyan",
    "accepted": "green",
    "delivered": "green",
    "undelivered": "red",
    "failed": "red",
    "expired": "red",
    "uncertain": "yellow",
    "suppressed": "dim",
    "cancelled": "dim",
    "sent": "green",
    "unknown": "yellow",
}

MEANING = {
    "pending": "not sent yet",
    "sending": "a relay is sending it now",
    "accepted": "the provider has accepted it",
    "delivered": "the provider reports that it reached the customer",
    "undelivered": "the provider accepted it and could not deliver it",
    "suppressed": "not sent: its guard has let another message through",
    "expired": "not sent: it expired first",
    "cancelled": "not sent: an operator or the application cancelled it",
    "failed": "permanently refused, or given up",
    "uncertain": "it may have been sent",
}

ANSWERS = {
    "never": "there is no such message",
    "not_sent": "no",
    "pending": "it is waiting to be sent",
    "sent": "the provider has accepted it",
    "unknown": "it may have been sent; this is not known yet",
    "suppressed": "it was not sent, since its guard has let another message through",
}

RESOLVE = "semel notify resolve {} --sent | --not-sent | --give-up --reason TEXT"

RELAYS = ": a running one, or the next `semel relay --once`"

_ENDED = {
    "accepted": "accepted",
    "refused": "refused",
    "limited": "refused, a rate limit: no attempt is counted",
    "unknown": "result unknown",
    "absent": "a look-up proves that it was not sent",
    "unclear": "a look-up without a result",
    "released": "given back",
    "policy": "decided by its policy",
    "resent": "repeated deliberately",
    "repeated": "repeated deliberately, once more",
    "delivered": "delivered, as the provider reports",
    "undelivered": "not delivered, as the provider reports",
}

_WAYS = {
    "replay": "the same key again, which the provider honours",
    "look_up": "a look-up at the provider",
    "policy": "its policy",
}

_POLICIES = {
    "hold": "it waits for you",
    "presume_sent": "it counts as sent",
    "resend": "it is sent once more, and may then have been sent twice",
    "give_up": "it is given up; it may have been sent",
}

_DECISIONS = {
    "sent": "it was sent",
    "not_sent": "it was not sent: send it",
    "given_up": "give it up",
    "cancelled": "cancel it",
}


def next_for(view: NotificationView, others: Sequence[NotificationView], now_ms: int) -> tuple[str, dict[str, str]]:
    """The next step of a notification, and the commands that an operator can run now, each with its effect."""
    id = short_id(view.id)
    match view.state:
        case "pending" if view.taken and view.due_ms > now_ms:
            return "A relay has taken it and is about to send it.", {}
        case "pending":
            when = f", not before {_then(view.due_ms, now_ms)}" if view.due_ms > now_ms else RELAYS
            behind = " Earlier ones with the same order key are sent first." if view.notification.order else ""
            cancel = {f"semel notify cancel {id} --reason TEXT": "do not send it"}
            return f"A relay whose settings have {_needed(view)} sends it{when}.{behind}", cancel
        case "sending" if view.due_ms <= now_ms:
            due = f"Its relay should have recorded the result by {_then(view.due_ms, now_ms)}: it is in doubt"
            return f"{due}. The next running relay continues, unless you decide first.", _resolving(id)
        case "sending":
            due = _then(view.due_ms, now_ms)
            return f"Its relay records the result. Without a result by {due}, it is uncertain.", {}
        case "uncertain":
            return _doubt(coming(view, now_ms), now_ms), _resolving(id)
        case "accepted":
            return "Nothing. A report of the provider may show whether it was delivered.", {}
        case "suppressed":
            return "Nothing.", {
                f"semel notify show {short_id(view.suppressed_by)}": "the message that its guard let through"
            }
        case "delivered":
            return "Nothing.", {}
        case _ if view.erased:
            return "Nothing.", {}
        case _ if later := [other for other in others if other.notification.generation > view.notification.generation]:
            return "Nothing.", {f"semel notify show {short_id(later[-1].id)}": "its newest generation"}
    return "Nothing.", {f"semel notify resend {id} --reason TEXT": "send it once more, as its next generation"}


def _needed(view: NotificationView) -> str:
    """The provider that a relay needs to send it. The outbox cannot know whether the settings of a relay have it."""
    provider = view.notification.provider
    if view.delivery_state is not None and view.delivery_state.provider:
        provider = view.delivery_state.provider  # it was tried there
    return f"the provider `{provider}`" if provider else f"a provider for `{view.notification.channel}`"


def _doubt(next: UpcomingStep | None, now_ms: int) -> str:
    """The next attempt to resolve an uncertain notification, its time, and the policy that applies in the end."""
    if next is None or next.exit not in _WAYS:
        return "You decide, unless a report of the provider arrives."
    way = _WAYS[next.exit]
    if next.exit == "policy":
        way = f"{way} `{next.policy}`: {_POLICIES[next.policy or 'hold']}"
    when = f"at {_then(next.at_ms, now_ms)}" if next.at_ms > now_ms else "as soon as one runs"
    text = f"A relay is resolving it now: {way}." if next.under_way else f"A relay continues {when}: {way}."
    if next.exit != "policy" and next.policy_ms:
        latest = f"At {_then(next.policy_ms, now_ms)} at the latest, its policy `{next.policy}` applies"
        text += f" {latest}: {_POLICIES[next.policy or 'hold']}."
    return f"{text} A report of the provider, or your decision, may come first."


def _resolving(id: str) -> dict[str, str]:
    return {
        f"semel notify resolve {id} --sent --reason TEXT": "the customer has it",
        f"semel notify resolve {id} --not-sent --reason TEXT": "the customer does not have it: send it",
        f"semel notify resolve {id} --give-up --reason TEXT": "send nothing",
    }


def _then(at_ms: int, now_ms: int) -> str:
    """A time with its distance from now."""
    away = f"{age(now_ms, at_ms)} from now" if at_ms > now_ms else f"{age(at_ms, now_ms)} ago"
    return f"{moment(at_ms)} ({away})"


def short_id(id: str) -> str:
    """The beginning of an id that commands accept."""
    return short(id).rstrip("…")


def crossing_of(attempt: Attempt) -> str:
    return f"{_which(attempt)} crosses: from here on it may have been sent"


def ending_of(attempt: Attempt) -> str:
    """The result of an attempt, or the decision of an operator."""
    if attempt.by:
        return f"{attempt.by} decided: {_DECISIONS.get(attempt.outcome, attempt.outcome)}"
    ended = _ENDED.get(attempt.outcome, attempt.outcome)
    if attempt.crossed_ms:
        return f"{_which(attempt)}: {ended}"
    return (
        f"{attempt.provider}: {ended}" if attempt.provider and attempt.outcome not in ("resent", "repeated") else ended
    )


def _which(attempt: Attempt) -> str:
    number = f"attempt {attempt.number}" if attempt.number else "an attempt"
    return f"{number} at {attempt.provider}" if attempt.provider else number


def twice(count: int) -> str:
    return f"it may have been sent {'twice' if count == 1 else f'{count + 1} times'}" if count else ""


def window(seconds: float) -> str:
    """A guard's window: "24 hours"."""
    for unit, unit_s in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= 2 * unit_s and seconds % unit_s == 0:
            return counted(int(seconds // unit_s), unit)
    return f"{seconds:g} seconds"


# --------------------------------------------------------------------------------------------------- customer data


class Mask(Struct, frozen=True):
    """Masks the customer data of one notification, unless --reveal is passed."""

    notification: Notification
    reveal: bool = False

    @property
    def raw_recipient(self) -> str:
        """The recipient, masked, for programs."""
        text = self.notification.recipient
        return text if self.reveal else masked_recipient(text)

    @property
    def recipient(self) -> str:
        return plain(self.raw_recipient)

    @property
    def content(self) -> str:
        """The kind and length of the content."""
        return plain(masked_content(self.notification))

    def name(self, text: str) -> str:
        """A name that the caller has chosen, such as a key: it may contain the recipient."""
        return text if self.reveal else without(text, self.notification.recipient)

    def text(self, text: str) -> str:
        """Evidence or a reason, for a terminal."""
        return plain(self.hidden(text))

    def hidden(self, text: str) -> str:
        """Evidence or a reason, which may contain the recipient or the content."""
        return text if self.reveal else hidden(text, self.notification)

    def members(self) -> dict[str, Any]:
        """The content, for programs."""
        notification = self.notification
        if not self.reveal:
            return {"content": masked_content(notification)}
        names = ("body", "subject", "sender", "template", "data")
        fields = asdict(notification)
        return {"content": masked_content(notification), **{name: to_builtins(fields[name]) for name in names}}
