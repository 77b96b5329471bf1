"""The states of a notification and their transitions, as pure functions.

    pending ── cross ──► sending ── accepted ──► accepted ── callbacks ──► delivered | undelivered
       ▲                    │
       │◄── refused ────────┤ (a rate limit uses no attempt; a final refusal falls back to the next provider, or fails)
       │                    └── unknown ──► uncertain ── found, late answer, callback ──► accepted
       │◄── proven absent, or the same key again inside its window ──┘   └── deadline ──► policy

An unknown outcome is never reported as failed. Every exit from `uncertain` needs evidence, an idempotency key that the
provider honours, or a configured policy. A look-up that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace

from semel.values.effect import KEYED_SHARE
from semel.values.notification import Notification, Policy
from semel.values.retry import backoff_s

State: TypeAlias = Literal[
    "pending",
    "sending",
    "accepted",
    "delivered",
    "undelivered",
    "suppressed",
    "expired",
    "cancelled",
    "failed",
    "uncertain",
]
STATES: tuple[str, ...] = get_args(State)
LIVE: tuple[State, ...] = ("pending", "sending", "uncertain")  # not finished: the relay or an operator has to act
OVER_UNSENT: tuple[State, ...] = ("failed", "expired", "cancelled", "suppressed")  # finished without a known send

Exit: TypeAlias = Literal["", "replay", "look_up", "policy"]
"""The next automatic exit from `uncertain`. Empty: only evidence or an operator can decide."""

CLAIMS_MAX = 5  # relays that died with it before the crossing: it may be the cause
ATTEMPTS_MAX = 100  # about four hours with the backoff: longer than most outages
ATTEMPTS_OF_FIRST = 6  # of a provider with a fallback: about half a minute
HELD_S = 1.0  # the outcome of the one that is being sent is known soon
HELD_SHARE, HELD_MAX_S = 0.1, 30.0  # the longer it has waited, the less often it is checked
RESENDS_MAX = 1  # by policy: a policy that accepts one possible duplicate does not accept ten
PAUSED = "paused: "  # prefix of the reason when the provider refuses its own settings
PAUSED_MS = 1_000  # the relay pauses the provider; a process with other settings may send it at once
LOOK_UPS_S = 30.0  # about when the first unclear look-up is repeated
LOOK_UPS_MAX = 16  # the longest interval between look-ups, in settle times

# Reasons that readers of the attempt log count; the texts may change.
RELAY_VANISHED = "its relay died or stalled after the crossing"
RELAYS_VANISHED = "relays died or stalled with it before the crossing"
PRESUMED_SENT = "presumed to be sent, by policy"
RESENT_UNKNOWN = "sent again once by policy, with an unknown outcome again; an operator decides"


class Key(Struct, frozen=True):
    """The idempotency key of a provider: the same key again is the same message."""

    header: str = ""  # where it goes; empty: into the body, at `path`
    path: str = ""
    window_s: float = 86_400.0  # how long the provider honours it
    longest: int = 256


class Contract(Struct, frozen=True, kw_only=True):
    """The facts about a provider, as data."""

    name: str
    channels: tuple[str, ...]
    key: Key | None = None
    refusals: frozenset[int] = frozenset({400, 401, 403, 404, 405, 406, 410, 413, 414, 415, 422})
    """Answers that prove that nothing was accepted, and that the same request will not be."""
    retriable: frozenset[int] = frozenset({429})
    """Answers that prove that nothing was accepted, this time."""
    looks_up: bool = False
    settle_s: float = 300.0  # after an attempt; a later look-up without a hit proves that nothing was sent
    per_second: float = 0.0  # sends of all processes, for one tenant; 0: no known limit
    concurrency: int = 16  # requests at a time, in each process
    timeout_s: float = 15.0
    policy: Policy = "hold"
    policy_after_s: float = 86_400.0  # after the crossing
    tenants: frozenset[str] | None = None  # the tenants whose notifications it may send; None: all
    senders: frozenset[str] | None = None  # the senders that a notification may name; None: any

    def refusal(self, tenant: str, sender: str) -> str:
        """The reason why this provider must not send a notification of this tenant. Empty: it may."""
        if self.tenants is not None and tenant not in self.tenants:
            return f"provider {self.name!r} does not serve {f'tenant {tenant!r}' if tenant else 'the default tenant'}"
        if self.senders is not None and sender and sender not in self.senders:
            return f"provider {self.name!r} does not send from this sender: `senders` lists the allowed ones"
        return ""


class ProviderAccess(Struct, frozen=True):
    """The providers of one process, and which of them may send a notification.

    A provider account belongs to the tenants in its contract. The HTTP API and the CLI check a notification when it is
    added; the relay checks it again before every send, because code, SQL and older settings also add notifications."""

    contracts: Mapping[str, Contract] = {}
    routes: Mapping[str, Sequence[str]] = {}  # by channel, in order of preference

    def providers_for(self, notification: Notification) -> list[str]:
        """The providers of its channel that may send it, in order."""
        names = self.routes.get(notification.channel, ())
        return [name for name in names if not self._refusal_by(name, notification)]

    def refusal(self, notification: Notification) -> str:
        """The reason why no provider of this process may send it. Empty: one may, or only another process can tell."""
        if notification.provider:
            return self._refusal_by(notification.provider, notification)
        names = self.routes.get(notification.channel, ())
        reasons = [self._refusal_by(name, notification) for name in names]
        return reasons[0] if reasons and all(reasons) else ""

    def _refusal_by(self, name: str, notification: Notification) -> str:
        contract = self.contracts.get(name)
        return "" if contract is None else contract.refusal(notification.tenant, notification.sender)


def routes_of(contracts: Iterable[Contract], channels: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The providers of each channel, in order. A channel without configuration uses the one provider that has it."""
    routes = {channel: list(names) for channel, names in channels.items() if names}
    able: dict[str, list[str]] = {}
    for contract in contracts:
        for channel in contract.channels:
            able.setdefault(channel, []).append(contract.name)
    return {channel: names for channel, names in able.items() if len(names) == 1} | routes


class Accepted(Struct, frozen=True):
    """The provider has accepted the message."""

    reference: str = ""  # the provider's own id of the message
    evidence: str = ""


class Refused(Struct, frozen=True):
    """The message was definitely not accepted."""

    reason: str
    after_s: float | None = None  # the wait that the provider requests
    final: bool = False  # the same request would be refused again
    limited: bool = False  # a rate limit: it uses no attempt
    configuration: bool = False  # credentials or account are refused: it uses no attempt


class Unknown(Struct, frozen=True):
    """It is unknown whether the message was sent."""

    reason: str


Answer: TypeAlias = Accepted | Refused | Unknown


class DeliveryState(Struct, frozen=True):
    """The state of a notification that is not finished."""

    state: State = "pending"
    attempts: int = 0  # crossings, less those that a rate limit refused
    claims: int = 0  # consecutive relays that died or stalled before the crossing
    provider: str = ""
    others: tuple[str, ...] = ()  # fallback providers, in order
    crossed_ms: int = 0  # the newest crossing; 0: none
    keyed_ms: int = 0  # the first crossing with this provider: its key window began then
    doubt_ms: int = 0  # the first crossing with an unknown outcome; 0: there is none
    due_ms: int = 0  # when the relay has to act next
    exit: Exit = ""  # the next exit, if it is uncertain
    not_after_ms: int | None = None
    policy: Policy = "hold"
    policy_ms: int = 0  # when the policy applies at the latest, if it is uncertain; 0: not set
    looks: int = 0  # look-ups that were unclear
    possible_duplicates: int = 0
    reason: str = ""


# ------------------------------------------------------------------------------------------------------- crossing


def ready(delivery_state: DeliveryState, contract: Contract, now_ms: int, random: Callable[[], float]) -> DeliveryState:
    """Check a pending notification before its crossing. It stays pending, unless its time or its key window is over."""
    if delivery_state.doubt_ms and not _key_counts(delivery_state, contract, now_ms):
        return doubtful(delivery_state, "its key window may be over at the provider", contract, now_ms, random)
    if delivery_state.not_after_ms is not None and now_ms > delivery_state.not_after_ms:
        if delivery_state.doubt_ms:
            return doubtful(delivery_state, "its time is over, and an attempt is in doubt", contract, now_ms, random)
        return _unsent(delivery_state, "expired", "its time was over before it was sent")
    return delivery_state


def aging(delivery_state: DeliveryState, latest_ms: int) -> DeliveryState:
    """Limit the age of a notification: without `not_after` it is not sent a month late."""
    not_after_ms = latest_ms if delivery_state.not_after_ms is None else min(delivery_state.not_after_ms, latest_ms)
    return replace(delivery_state, not_after_ms=not_after_ms)


def held(delivery_state: DeliveryState, by: bytes, added_ms: int, now_ms: int) -> DeliveryState:
    """Postpone a notification whose guard waits for another one. Its doubts stay as they are."""
    waited_s = (now_ms - added_ms) / 1000 if added_ms else 0.0
    wait_s = min(max(HELD_S, HELD_SHARE * waited_s), HELD_MAX_S)
    return replace(delivery_state, claims=0, due_ms=now_ms + int(1000 * wait_s), reason=f"waits for {by.hex()}")


def crossed(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """The state after the crossing: the first byte may be sent."""
    return replace(
        delivery_state,
        state="sending",
        attempts=delivery_state.attempts + 1,
        claims=0,
        crossed_ms=now_ms,
        keyed_ms=delivery_state.keyed_ms or now_ms,
        exit="",
        looks=0,
        reason="",
    )


def answered(
    delivery_state: DeliveryState, answer: Answer, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """The state after the provider's answer to a crossing."""
    match answer:
        case Accepted():
            return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=answer.evidence)
        case Unknown():
            return doubtful(delivery_state, answer.reason, contract, now_ms, random)
        case Refused():
            counted = replace(delivery_state, attempts=_counted(delivery_state, answer))
            if delivery_state.doubt_ms:  # the refusal proves nothing about the earlier attempt
                again = doubtful(counted, answer.reason, contract, now_ms, random)
                asked_ms = now_ms + int(1000 * (answer.after_s or 0.0))
                return replace(again, due_ms=max(again.due_ms, asked_ms)) if again.exit else again
            if answer.configuration and not counted.others:
                return _again(counted, f"{PAUSED}{answer.reason}", PAUSED_MS, now_ms)
            if answer.final or answer.configuration or _is_used_up(counted):
                return _next_provider(counted, answer.reason, now_ms)
            return _again(counted, answer.reason, _wait_ms(answer, max(1, counted.attempts), random), now_ms)


def _counted(delivery_state: DeliveryState, refused: Refused) -> int:
    """The number of attempts after a refusal. After a refused configuration at least one counts, because a provider
    that honours keys may have stored the key."""
    if refused.limited:
        return delivery_state.attempts - 1
    return max(1, delivery_state.attempts - 1) if refused.configuration else delivery_state.attempts


def lapsed(
    delivery_state: DeliveryState, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """The state after the lease of its relay expired."""
    if delivery_state.state == "sending":
        return doubtful(delivery_state, RELAY_VANISHED, contract, now_ms, random)
    claims = delivery_state.claims + 1
    if claims >= CLAIMS_MAX:
        reason = f"{claims} {RELAYS_VANISHED}"
        return _unsent(replace(delivery_state, claims=claims), "failed", reason)
    return replace(delivery_state, claims=claims, due_ms=now_ms + int(1000 * backoff_s(claims, random)))


def in_doubt(delivery_state: DeliveryState) -> bool:
    """Whether it may have been sent: an attempt is in doubt, or was when it was sent again."""
    return bool(delivery_state.doubt_ms or delivery_state.possible_duplicates)


def _unsent(delivery_state: DeliveryState, state: State, reason: str) -> DeliveryState:
    """Finish it as not sent. If an attempt is in doubt, or was when it was sent again, it is uncertain instead."""
    if in_doubt(delivery_state):
        return replace(delivery_state, state="uncertain", exit="", due_ms=0, reason=reason)
    return replace(delivery_state, state=state, exit="", reason=reason)


def _again(delivery_state: DeliveryState, reason: str, wait_ms: int, now_ms: int) -> DeliveryState:
    due_ms = now_ms + wait_ms
    if delivery_state.not_after_ms is not None and due_ms > delivery_state.not_after_ms:
        return _unsent(delivery_state, "expired", f"{reason}; its time would be over")
    return replace(delivery_state, state="pending", exit="", due_ms=due_ms, reason=reason)


def _is_used_up(delivery_state: DeliveryState) -> bool:
    return delivery_state.attempts >= (ATTEMPTS_OF_FIRST if delivery_state.others else ATTEMPTS_MAX)


def _next_provider(delivery_state: DeliveryState, reason: str, now_ms: int) -> DeliveryState:
    """Only from a definite refusal: with the same key, and the same content."""
    if not delivery_state.others:
        return _unsent(delivery_state, "failed", reason)
    first, *rest = delivery_state.others
    return _again(
        replace(delivery_state, provider=first, others=tuple(rest), attempts=0, keyed_ms=0, doubt_ms=0),
        f"{delivery_state.provider}: {reason}; falling back to {first}",
        0,
        now_ms,
    )


def _wait_ms(refused: Refused, attempt: int, random: Callable[[], float]) -> int:
    """The requested wait plus jitter, because thousands of messages may have got the same answer."""
    spread_s = backoff_s(attempt, random)
    return int(1000 * ((refused.after_s or 0.0) + spread_s))


# ------------------------------------------------------------------------------------------------------- in doubt


def doubtful(
    delivery_state: DeliveryState, reason: str, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """The uncertain state, with the next exit and its time."""
    doubt_ms = delivery_state.doubt_ms or delivery_state.crossed_ms
    policy_ms = doubt_ms + int(1000 * contract.policy_after_s)
    uncertain = replace(delivery_state, state="uncertain", doubt_ms=doubt_ms, policy_ms=policy_ms, reason=reason)
    if (again_ms := _key_again_ms(uncertain, contract, now_ms, random)) is not None:
        latest_ms = max(policy_ms, _key_ends_ms(uncertain, contract))  # a valid key goes before the policy
        return replace(uncertain, exit="replay", due_ms=again_ms, policy_ms=latest_ms)
    if contract.looks_up:
        look_ms = now_ms + int(1000 * contract.settle_s)  # the last attempt may have left just now
        if delivery_state.looks:
            first_s, seldom_s = min(LOOK_UPS_S, contract.settle_s), LOOK_UPS_MAX * contract.settle_s
            look_ms = now_ms + int(1000 * backoff_s(delivery_state.looks, random, first_s, seldom_s))
        if max(look_ms, now_ms) < policy_ms:
            return replace(uncertain, exit="look_up", due_ms=max(look_ms, now_ms))
    if delivery_state.policy == "hold":
        return replace(uncertain, exit="", due_ms=0)
    return replace(uncertain, exit="policy", due_ms=max(policy_ms, now_ms))


def _key_again_ms(
    delivery_state: DeliveryState, contract: Contract, now_ms: int, random: Callable[[], float]
) -> int | None:
    """When the same key may be sent again; None if the provider honours no key, or its window will be over."""
    if delivery_state.attempts >= ATTEMPTS_MAX:
        return None
    again_ms = now_ms + int(1000 * backoff_s(delivery_state.attempts, random))
    if delivery_state.not_after_ms is not None and again_ms > delivery_state.not_after_ms:
        return None
    return again_ms if _key_counts(delivery_state, contract, again_ms) else None


def _key_counts(delivery_state: DeliveryState, contract: Contract, at_ms: int) -> bool:
    return at_ms < _key_ends_ms(delivery_state, contract)


def _key_ends_ms(delivery_state: DeliveryState, contract: Contract) -> int:
    """The end of the time in which the provider surely honours the key; 0 if it honours none."""
    return 0 if contract.key is None else delivery_state.keyed_ms + int(1000 * KEYED_SHARE * contract.key.window_s)


def replayed(delivery_state: DeliveryState) -> DeliveryState:
    """Send the same key to the same provider again, with the same bytes."""
    return replace(delivery_state, state="pending", exit="")


def found(delivery_state: DeliveryState, reference: str) -> DeliveryState:
    return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=f"found by look-up: {reference}")


def absent(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """The state after a look-up that found nothing after the settle time: the message was not sent."""
    proven = replace(delivery_state, doubt_ms=0)
    if _is_used_up(proven):
        return _next_provider(proven, "look-ups found none of its attempts", now_ms)
    return _again(proven, "proven absent by look-up", 0, now_ms)


def unclear(
    delivery_state: DeliveryState, reason: str, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """The state after a failed look-up, which proves nothing. The reason keeps only the newest failure."""
    before = delivery_state.reason.rpartition("; ")[0] if delivery_state.looks else ""
    doubt = before or delivery_state.reason
    again = replace(delivery_state, looks=delivery_state.looks + 1)
    reason = f"{doubt}; {reason.replace('; ', ', ')}"
    return replace(doubtful(again, doubt, contract, now_ms, random), reason=reason)


def overdue(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """Apply the policy at the deadline."""
    match delivery_state.policy:
        case "hold":
            return replace(delivery_state, exit="", due_ms=0)
        case "presume_sent":
            return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=PRESUMED_SENT)
        case "give_up":
            return replace(delivery_state, state="failed", exit="", reason="given up, by policy; it may have been sent")
        case "resend" if delivery_state.not_after_ms is not None and now_ms > delivery_state.not_after_ms:
            reason = "its time is over, so it is not sent again; it may have been sent before"
            return replace(delivery_state, exit="", due_ms=0, reason=reason)
        case "resend" if delivery_state.possible_duplicates >= RESENDS_MAX:
            return replace(delivery_state, exit="", due_ms=0, reason=RESENT_UNKNOWN)
        case "resend":
            twice = delivery_state.possible_duplicates + 1
            again = replace(delivery_state, possible_duplicates=twice, attempts=0, keyed_ms=0, doubt_ms=0)
            return _again(again, "sent again, by policy; it may have been sent before", 0, now_ms)


# ------------------------------------------------------------------------------------------------------ operators


def left_in_doubt_ms(before: DeliveryState, after: DeliveryState) -> int:
    """The time of a crossing whose outcome stays unknown, because it was given up; 0 if there is none."""
    if before.state not in ("uncertain", "sending") or after.state != "failed":
        return 0
    return before.doubt_ms or before.crossed_ms


Resolution: TypeAlias = Literal["sent", "not_sent", "given_up", "cancelled"]
"""An operator's decision: it was sent; it was not sent, so send it; give it up; cancel it."""


def decided(
    delivery_state: DeliveryState, resolution: Resolution, reason: str, free: bool, now_ms: int
) -> DeliveryState | None:
    """The state after an operator's decision; None if the decision does not apply now. `free`: no relay has taken it.

    A notification whose relay died after the crossing is in doubt, even if no relay takes it any more, because its
    provider was removed."""
    if delivery_state.state == "sending" and delivery_state.crossed_ms and free:
        delivery_state = replace(
            delivery_state, state="uncertain", doubt_ms=delivery_state.doubt_ms or delivery_state.crossed_ms
        )
    match delivery_state.state, resolution:
        case "uncertain", "sent":
            return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=reason)
        case "uncertain", "not_sent" if (
            delivery_state.not_after_ms is not None and now_ms > delivery_state.not_after_ms
        ):
            late = f"{reason}; but its time was over, so it is not sent"
            return _unsent(replace(delivery_state, doubt_ms=0), "expired", late)
        case "uncertain", "not_sent":
            tries = min(delivery_state.attempts, ATTEMPTS_MAX - 1)
            return replace(
                delivery_state, state="pending", exit="", doubt_ms=0, attempts=tries, due_ms=now_ms, reason=reason
            )
        case "uncertain", "given_up":
            return replace(delivery_state, state="failed", exit="", reason=reason)
        case "pending", "cancelled" if free:
            return _unsent(delivery_state, "cancelled", reason)
        case "pending", "given_up" if free:
            return _unsent(delivery_state, "failed", reason)
    return None


# ------------------------------------------------------------------------------------------------------- evidence

RANK: dict[State, int] = {"accepted": 1, "undelivered": 2, "delivered": 3}
"""A state moves up or not at all, because the reports of a provider come twice, late and out of order."""

Reported: TypeAlias = Literal["accepted", "delivered", "undelivered", "refused", "resent", "repeated"]
"""The content of a delivery report. "resent" and "repeated" come from an operator, and change no state."""


def reported(state: State, report: Reported) -> State:
    """The state after a delivery report. A provider's report outranks every conclusion of the relay."""
    match report:
        case "refused":
            return "failed" if state in ("sending", "uncertain") else state
        case "resent" | "repeated":
            return state
    return report if RANK.get(report, 0) > RANK.get(state, 0) else state
