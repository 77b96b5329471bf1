"""What states mean, what happened, and what happens next: in words."""

from __future__ import annotations

from collections.abc import Sequence

from semel.cli.operating.words import age, counted, moment, short
from semel.values.coming import Coming, coming
from semel.values.outbox import Attempt, Shown

STYLES = {
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
    "sending": "it is leaving at this moment",
    "accepted": "the provider has taken it",
    "delivered": "it has reached the customer, says the provider",
    "undelivered": "the provider took it and could not deliver it",
    "suppressed": "not sent: its guard has let another message through",
    "expired": "not sent: its time was over before",
    "cancelled": "not sent: somebody did not want it any more",
    "failed": "refused for good, or given up",
    "uncertain": "nobody knows whether it was sent",
}

ANSWERS = {
    "never": "there is no such message",
    "not_sent": "no",
    "pending": "it waits to be sent",
    "sent": "the provider has taken it",
    "unknown": "it may have been sent; nobody knows yet",
    "suppressed": "it was not sent, since its guard has let another message through",
}

RESOLVE = "semel notify resolve {} --sent | --not-sent | --give-up --reason TEXT"

RELAYS = ": one that runs, or the next `semel relay --once`"

_ENDED = {
    "accepted": "accepted",
    "refused": "refused",
    "limited": "refused, a rate limit: no attempt is counted",
    "unknown": "nobody knows what came of it",
    "absent": "a look-up has proven that it did not leave",
    "unclear": "a look-up that says nothing",
    "released": "given back",
    "policy": "decided by its policy",
    "resent": "repeated deliberately",
    "repeated": "repeated deliberately, once more",
    "delivered": "delivered, says the provider",
    "undelivered": "not delivered, says the provider",
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

_SAID = {
    "sent": "it was sent",
    "not_sent": "it was not sent: send it",
    "given_up": "give it up",
    "cancelled": "it is not wanted any more",
}


def next_for(one: Shown, others: Sequence[Shown], now_ms: int) -> tuple[str, dict[str, str]]:
    """What happens to it from here on, and the commands by which a person can change that, each with its effect."""
    id = short_id(one.id)
    match one.state:
        case "pending" if one.taken and one.due_ms > now_ms:
            return "A relay has it in its hands, and is about to send it.", {}
        case "pending":
            when = f", not before {_then(one.due_ms, now_ms)}" if one.due_ms > now_ms else RELAYS
            return f"A relay whose settings have {_needed(one)} sends it{when}.{_behind(one)}", _cancelling(id)
        case "sending" if one.due_ms <= now_ms:
            said = f"Its relay should have said what came of it by {_then(one.due_ms, now_ms)}: it is in doubt"
            return f"{said}. The next relay that runs goes on, unless you decide first.", _resolving(id)
        case "sending":
            said = f"by {_then(one.due_ms, now_ms)}, it is uncertain"
            return f"The relay that sends it says what came of it. If it has said nothing {said}.", {}
        case "uncertain":
            return _doubt(coming(one, now_ms), now_ms), _resolving(id)
        case "accepted":
            return "Nothing. A report of the provider tells whether it was delivered.", {}
        case "suppressed":
            return "Nothing.", {f"semel notify show {short_id(one.suppressed_by)}": "what its guard has let through"}
        case "delivered":
            return "Nothing.", {}
        case _ if one.erased:
            return "Nothing.", {}
        case _ if later := [other for other in others if other.notification.generation > one.notification.generation]:
            return "Nothing.", {f"semel notify show {short_id(later[-1].id)}": "its newest generation"}
    return "Nothing.", {f"semel notify resend {id} --reason TEXT": "send it once more, as its next generation"}


def _needed(one: Shown) -> str:
    """What a relay must know to send it. Whether one does, its settings tell, and not the outbox."""
    provider = one.notification.provider
    if one.standing is not None and one.standing.provider:
        provider = one.standing.provider  # it was tried there
    return f"the provider `{provider}`" if provider else f"a provider for `{one.notification.channel}`"


def _behind(one: Shown) -> str:
    return " What was added before it with the same order key comes first." if one.notification.order else ""


def _doubt(next: Coming | None, now_ms: int) -> str:
    """Which way out of a doubt comes next and when, and which one at the latest."""
    if next is None or next.exit not in _WAYS:
        return "You decide, unless a report of the provider still comes."
    way = _WAYS[next.exit]
    if next.exit == "policy":
        way = f"{way} `{next.policy}`: {_POLICIES[next.policy or 'hold']}"
    when = f"at {_then(next.at_ms, now_ms)}" if next.at_ms > now_ms else "as soon as one runs"
    told = f"A relay is at it now: {way}." if next.under_way else f"A relay goes on {when}: {way}."
    if next.exit != "policy" and next.policy_ms:
        latest = f"At the latest at {_then(next.policy_ms, now_ms)} its policy `{next.policy}` counts"
        told += f" {latest}: {_POLICIES[next.policy or 'hold']}."
    return f"{told} A report of the provider, or you, may come first."


def _cancelling(id: str) -> dict[str, str]:
    return {f"semel notify cancel {id} --reason TEXT": "not to send it"}


def _resolving(id: str) -> dict[str, str]:
    return {
        f"semel notify resolve {id} --sent --reason TEXT": "the customer has it",
        f"semel notify resolve {id} --not-sent --reason TEXT": "the customer does not have it: send it",
        f"semel notify resolve {id} --give-up --reason TEXT": "let it be",
    }


def _then(at_ms: int, now_ms: int) -> str:
    """A time that comes, or should have come."""
    away = f"{age(now_ms, at_ms)} from now" if at_ms > now_ms else f"{age(at_ms, now_ms)} ago"
    return f"{moment(at_ms)} ({away})"


def short_id(id: str) -> str:
    """As much of an id as can be given back to a command."""
    return short(id).rstrip("…")


def crossing_of(attempt: Attempt) -> str:
    return f"{_which(attempt)} crosses: from here on it may leave"


def ending_of(attempt: Attempt) -> str:
    """What came of an attempt, or what somebody says of all of them."""
    if attempt.by:
        return f"{attempt.by} says: {_SAID.get(attempt.outcome, attempt.outcome)}"
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
