"""The life of a notification, as pure functions: what is known, what has happened, what time it is.

    pending ── cross ──► sending ── accepted ──► accepted ── callbacks ──► delivered | undelivered
       ▲                    │
       │◄── refused ────────┤ (rate limits burn no attempt; a final refusal goes on to the next provider, or fails)
       │                    └── nobody knows ──► uncertain ── found, late answer, callback ──► accepted
       │◄── proven absent, or the same key again inside its window ──┘   └── deadline ──► policy

An outcome that nobody knows is never called failed. Every exit of `uncertain` is evidence, a key that the provider
honours, or a policy that somebody chose; a look-up that fails says nothing and moves nothing.
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
LIVE: tuple[State, ...] = ("pending", "sending", "uncertain")  # the relay still has something to do, or a person has
OVER_UNSENT: tuple[State, ...] = ("failed", "expired", "cancelled", "suppressed")  # nobody got it, as far as is known

Exit: TypeAlias = Literal["", "replay", "look_up", "policy"]
"""How an uncertain one is to be decided next. Empty: by evidence or by a person only."""

CLAIMS_MAX = 5  # relays that vanished with it before a byte left: it kills them
ATTEMPTS_MAX = 100  # about four hours, at five minutes between them in the end: an outage is longer than a minute
ATTEMPTS_OF_FIRST = 6  # where another provider can be asked: about half a minute
HELD_S = 1.0  # whoever is being sent now is known in a moment
HELD_SHARE, HELD_MAX_S = 0.1, 30.0  # or is waited for: the longer, the less often it is asked
RESENDS_MAX = 1  # by policy: whoever accepts two messages did not ask for ten
PAUSED = "paused: "  # how the reason begins where the provider refuses its own settings
PAUSED_MS = 1_000  # the relay pauses the provider; a process with other settings may send it at once
LOOK_UPS_S = 30.0  # the first look-up that was unclear is repeated about then
LOOK_UPS_MAX = 16  # times what a message takes to settle: further ones come more and more seldom, up to this

# Reasons that are counted by those who read the attempt log; the texts may change.
RELAY_VANISHED = "its relay vanished after the crossing"
RELAYS_VANISHED = "relays vanished with it before a byte left"
PRESUMED_SENT = "presumed to be sent, by policy"
RESENT_UNKNOWN = "sent again once already, by policy, and nobody knows either; a person decides"


class Key(Struct, frozen=True):
    """A provider honours an idempotency key: the same key again is the same message."""

    header: str = ""  # where it goes; empty: into the body, at `path`
    path: str = ""
    window_s: float = 86_400.0  # how long the provider remembers it
    longest: int = 256


class Contract(Struct, frozen=True, kw_only=True):
    """What is known of a provider, as data."""

    name: str
    channels: tuple[str, ...]
    key: Key | None = None
    refusals: frozenset[int] = frozenset({400, 401, 403, 404, 405, 406, 410, 413, 414, 415, 422})
    """Answers that prove that nothing was accepted, and that the same request will not be."""
    retriable: frozenset[int] = frozenset({429})
    """Answers that prove that nothing was accepted, this time."""
    looks_up: bool = False
    settle_s: float = 300.0  # after an attempt's end, until a look-up that finds nothing proves that there is nothing
    per_second: float = 0.0  # sends, of all processes together, for one tenant; 0: no limit is known
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


def routes_of(contracts: Iterable[Contract], said: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The providers of each channel, in their order. A channel that nobody named is sent by the one that can."""
    routes = {channel: list(names) for channel, names in said.items() if names}
    able: dict[str, list[str]] = {}
    for contract in contracts:
        for channel in contract.channels:
            able.setdefault(channel, []).append(contract.name)
    return {channel: names for channel, names in able.items() if len(names) == 1} | routes


class Accepted(Struct, frozen=True):
    """The provider has taken it."""

    reference: str = ""  # the provider's own id of the message
    evidence: str = ""


class Refused(Struct, frozen=True):
    """It was definitely not accepted."""

    reason: str
    after_s: float | None = None  # what the provider asks to wait
    final: bool = False  # the same request would be refused again
    limited: bool = False  # a rate limit: no attempt is burnt
    configuration: bool = False  # credentials or account are refused: not the message's fault, no attempt is burnt


class Unknown(Struct, frozen=True):
    """Nobody knows whether it left."""

    reason: str


Answer: TypeAlias = Accepted | Refused | Unknown


class DeliveryState(Struct, frozen=True):
    """What is known of a notification that is not over."""

    state: State = "pending"
    attempts: int = 0  # crossings, less those that a rate limit refused
    claims: int = 0  # relays in a row that vanished before crossing
    provider: str = ""
    others: tuple[str, ...] = ()  # providers to fall back on, in order
    crossed_ms: int = 0  # the newest crossing; 0: none
    keyed_ms: int = 0  # the first crossing with this provider: its key window began then
    doubt_ms: int = 0  # the first crossing of which nobody knows what came of it; 0: there is none
    due_ms: int = 0  # when the relay has something to do
    exit: Exit = ""  # and what, where it is uncertain
    not_after_ms: int | None = None
    policy: Policy = "hold"
    policy_ms: int = 0  # when that counts, at the latest, where it is uncertain; 0: not told
    looks: int = 0  # look-ups that were unclear
    possible_duplicates: int = 0
    reason: str = ""


# ------------------------------------------------------------------------------------------------------- crossing


def ready(delivery_state: DeliveryState, contract: Contract, now_ms: int, random: Callable[[], float]) -> DeliveryState:
    """A pending one before it crosses: still pending, if it may. Its time or its key's window may be over meanwhile."""
    if delivery_state.doubt_ms and not _key_counts(delivery_state, contract, now_ms):
        return doubtful(delivery_state, "the provider may have forgotten its key", contract, now_ms, random)
    if delivery_state.not_after_ms is not None and now_ms > delivery_state.not_after_ms:
        if delivery_state.doubt_ms:
            return doubtful(delivery_state, "its time is over, and an attempt is in doubt", contract, now_ms, random)
        return _unsent(delivery_state, "expired", "its time was over before it was sent")
    return delivery_state


def aging(delivery_state: DeliveryState, latest_ms: int) -> DeliveryState:
    """Whoever asked for no `not_after` did not ask for a message of last month."""
    not_after_ms = latest_ms if delivery_state.not_after_ms is None else min(delivery_state.not_after_ms, latest_ms)
    return replace(delivery_state, not_after_ms=not_after_ms)


def held(delivery_state: DeliveryState, by: bytes, added_ms: int, now_ms: int) -> DeliveryState:
    """Its guard waits for another one. As it was, until a while later: what is in doubt is in doubt still."""
    waited_s = (now_ms - added_ms) / 1000 if added_ms else 0.0
    wait_s = min(max(HELD_S, HELD_SHARE * waited_s), HELD_MAX_S)
    return replace(delivery_state, claims=0, due_ms=now_ms + int(1000 * wait_s), reason=f"waits for {by.hex()}")


def crossed(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """A byte may leave from here on."""
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
    """What a crossing has come to."""
    match answer:
        case Accepted():
            return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=answer.evidence)
        case Unknown():
            return doubtful(delivery_state, answer.reason, contract, now_ms, random)
        case Refused():
            burnt = replace(delivery_state, attempts=_counted(delivery_state, answer))
            if delivery_state.doubt_ms:  # it says nothing of the attempt before
                again = doubtful(burnt, answer.reason, contract, now_ms, random)
                asked_ms = now_ms + int(1000 * (answer.after_s or 0.0))
                return replace(again, due_ms=max(again.due_ms, asked_ms)) if again.exit else again
            if answer.configuration and not burnt.others:
                return _again(burnt, f"{PAUSED}{answer.reason}", PAUSED_MS, now_ms)
            if answer.final or answer.configuration or _is_used_up(burnt):
                return _next_provider(burnt, answer.reason, now_ms)
            return _again(burnt, answer.reason, _wait_ms(answer, max(1, burnt.attempts), random), now_ms)


def _counted(delivery_state: DeliveryState, refused: Refused) -> int:
    """The attempts after a refusal. One of a configuration leaves one at least: a provider that honours a key may have
    seen it."""
    if refused.limited:
        return delivery_state.attempts - 1
    return max(1, delivery_state.attempts - 1) if refused.configuration else delivery_state.attempts


def lapsed(
    delivery_state: DeliveryState, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """The relay that had it has vanished."""
    if delivery_state.state == "sending":
        return doubtful(delivery_state, RELAY_VANISHED, contract, now_ms, random)
    claims = delivery_state.claims + 1
    if claims >= CLAIMS_MAX:
        reason = f"{claims} {RELAYS_VANISHED}"
        return _unsent(replace(delivery_state, claims=claims), "failed", reason)
    return replace(delivery_state, claims=claims, due_ms=now_ms + int(1000 * backoff_s(claims, random)))


def in_doubt(delivery_state: DeliveryState) -> bool:
    """It may have been sent: an attempt is in doubt, or was when it was sent again."""
    return bool(delivery_state.doubt_ms or delivery_state.possible_duplicates)


def _unsent(delivery_state: DeliveryState, state: State, reason: str) -> DeliveryState:
    """Over, and nobody got it; unless an attempt is in doubt, or was when it was sent again: then that is uncertain."""
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
        f"{delivery_state.provider}: {reason}; on to {first}",
        0,
        now_ms,
    )


def _wait_ms(refused: Refused, attempt: int, random: Callable[[], float]) -> int:
    """At least what the provider asks for, and then spread out: thousands were told the same."""
    spread_s = backoff_s(attempt, random)
    return int(1000 * ((refused.after_s or 0.0) + spread_s))


# ------------------------------------------------------------------------------------------------------- in doubt


def doubtful(
    delivery_state: DeliveryState, reason: str, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """Uncertain, with the next exit and its time."""
    doubt_ms = delivery_state.doubt_ms or delivery_state.crossed_ms
    policy_ms = doubt_ms + int(1000 * contract.policy_after_s)
    uncertain = replace(delivery_state, state="uncertain", doubt_ms=doubt_ms, policy_ms=policy_ms, reason=reason)
    if (again_ms := _key_again_ms(uncertain, contract, now_ms, random)) is not None:
        latest_ms = max(policy_ms, _key_ends_ms(uncertain, contract))  # a key that counts goes before the policy
        return replace(uncertain, exit="replay", due_ms=again_ms, policy_ms=latest_ms)
    if contract.looks_up:
        look_ms = now_ms + int(1000 * contract.settle_s)  # what left last may have left just now
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
    """When the same key may be sent again; None: the provider honours none, or may have forgotten it by then."""
    if delivery_state.attempts >= ATTEMPTS_MAX:
        return None
    again_ms = now_ms + int(1000 * backoff_s(delivery_state.attempts, random))
    if delivery_state.not_after_ms is not None and again_ms > delivery_state.not_after_ms:
        return None
    return again_ms if _key_counts(delivery_state, contract, again_ms) else None


def _key_counts(delivery_state: DeliveryState, contract: Contract, at_ms: int) -> bool:
    return at_ms < _key_ends_ms(delivery_state, contract)


def _key_ends_ms(delivery_state: DeliveryState, contract: Contract) -> int:
    """Until then the provider is sure to remember its key; 0: it honours none."""
    return 0 if contract.key is None else delivery_state.keyed_ms + int(1000 * KEYED_SHARE * contract.key.window_s)


def replayed(delivery_state: DeliveryState) -> DeliveryState:
    """The same key goes to the same provider again, with the same bytes."""
    return replace(delivery_state, state="pending", exit="")


def found(delivery_state: DeliveryState, reference: str) -> DeliveryState:
    return replace(delivery_state, state="accepted", exit="", doubt_ms=0, reason=f"found by look-up: {reference}")


def absent(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """A look-up after the settle time has found nothing: it did not leave."""
    proven = replace(delivery_state, doubt_ms=0)
    if _is_used_up(proven):
        return _next_provider(proven, "look-ups have found none of its attempts", now_ms)
    return _again(proven, "proven absent by look-up", 0, now_ms)


def unclear(
    delivery_state: DeliveryState, reason: str, contract: Contract, now_ms: int, random: Callable[[], float]
) -> DeliveryState:
    """A look-up that failed says nothing: it is as uncertain as before."""
    before = (
        delivery_state.reason.rpartition("; ")[0] if delivery_state.looks else ""
    )  # of many unclear ones the newest is told
    doubt = before or delivery_state.reason
    again = replace(delivery_state, looks=delivery_state.looks + 1)
    told = f"{doubt}; {reason.replace('; ', ', ')}"
    return replace(doubtful(again, doubt, contract, now_ms, random), reason=told)


def overdue(delivery_state: DeliveryState, now_ms: int) -> DeliveryState:
    """Its deadline has come: somebody chose what happens then."""
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


# --------------------------------------------------------------------------------------------------------- people


def left_in_doubt_ms(before: DeliveryState, after: DeliveryState) -> int:
    """When that left of which nobody will know what came of it; 0: there is nothing."""
    if before.state not in ("uncertain", "sending") or after.state != "failed":
        return 0
    return before.doubt_ms or before.crossed_ms


Resolution: TypeAlias = Literal["sent", "not_sent", "given_up", "cancelled"]
"""What a person says of a notification: it was sent; it was not, send it; forget it; it is not wanted any more."""


def decided(
    delivery_state: DeliveryState, says: Resolution, reason: str, free: bool, now_ms: int
) -> DeliveryState | None:
    """What becomes of it; None: this cannot be said of it now. `free`: it is in nobody's hands. What was leaving when
    its relay vanished is in doubt, also where no relay comes that could say so: its provider may be gone."""
    if delivery_state.state == "sending" and delivery_state.crossed_ms and free:
        delivery_state = replace(
            delivery_state, state="uncertain", doubt_ms=delivery_state.doubt_ms or delivery_state.crossed_ms
        )
    match delivery_state.state, says:
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
"""Reports of a provider come twice, late and out of order: a state moves up or not at all."""

Reported: TypeAlias = Literal["accepted", "delivered", "undelivered", "refused", "resent", "repeated"]
"""Words about a message, each of them kept once. "resent" and "repeated" are a person's, and move nothing."""


def reported(state: State, report: Reported) -> State:
    """What a provider's own word about this message makes of it. It says more than anything that we concluded."""
    match report:
        case "refused":
            return "failed" if state in ("sending", "uncertain") else state
        case "resent" | "repeated":
            return state
    return report if RANK.get(report, 0) > RANK.get(state, 0) else state
