"""Routes an event to its handlers and computes their claims, before the ledger is called.

    delivery → Planner → event → Router → handlers → their claims

`Unmatched` answers and counts events without a handler.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from semel.ports import Arrived, Delivery
from semel.values.claim import Alias, Claim, Order
from semel.values.effect import Effect
from semel.values.errors import ConfigError, MalformedEvent, NoKey
from semel.values.event import DecodeOptions, Event
from semel.values.key import Namespace, Pattern, content_digest
from semel.values.keys import PART_MAX_CHARS, Strategy, checked, latest, tiers
from semel.values.log import log
from semel.values.outcome import Outcome, Reject
from semel.values.strict_json import canonical

REMEMBERED_MAX = 4096  # a sender that invents event types or tenants must not fill the memory
NO_KEY = "the key cannot be computed"  # the reason of such a dead letter begins with it: replay them all by --matching
CONTROL = "control"  # the shape of a channel's own frames, such as heartbeats: they are no events
OTHER_TENANT = "accepted for another tenant: the default tenant is another one here"

UnmatchedAnswer: TypeAlias = Literal["ack", "reject"]

REASON = "no handler matches"
TOPICS_MAX = 200  # counted separately; an event chooses its own topic
TOPIC_CHARS = 120
OTHER = "(other topics)"

_ID = re.compile(r"[0-9a-fA-F-]{16,}|\d+")


class Handler(Struct, frozen=True):
    """One registered function, with its patterns, its key strategy and its limits."""

    name: str
    fn: Callable[..., Any]
    patterns: tuple[Pattern, ...]
    key: Strategy
    effect: Effect
    order: latest | None
    identifies: bool  # payloads under one key are compared
    lease_ms: int
    timeout_s: float | None
    max_attempts: int
    retention_ms: int
    window_s: float
    probe: Callable[..., Any] | None
    is_async: bool
    probe_is_async: bool = False
    fail_open: bool = False  # run without the ledger when it is out of reach
    namespaces: dict[str, Namespace] = field(default_factory=dict)  # one for each tenant

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    def claim_for(self, event: Event) -> Claim:
        """The claim of this event. Its key is fixed here, before the handler sees the event."""
        try:
            return self._claim_for(event)
        except NoKey:
            raise
        except Exception as error:  # from the user's strategy: it concerns this handler and this event alone
            raise NoKey(f"the key function raised {type(error).__name__}: {error}") from error

    def without_key(self, event: Event, error: NoKey) -> tuple[Handler, Claim]:
        """A stand-in for this handler that makes the event a dead letter, with the reason.

        The stand-in runs through the ordinary flow, so that a redelivery is a duplicate, and a crash between claim and
        settle leaves a lease that expires. It never calls the user's function."""
        stand_in = replace(
            self,
            fn=NoKeyStandIn(f"{NO_KEY}: {error}"),
            is_async=True,
            effect="retry",  # it has no effect that could happen twice
            probe=None,
            timeout_s=None,
            max_attempts=2**31,  # processes that vanish must not replace the reason
            fail_open=False,  # without a ledger no dead letter can be kept
        )
        text = event.id if event.id.isprintable() else ascii(event.id)
        claim = Claim(
            self.fallback_digest(event),
            self.name,
            text[:PART_MAX_CHARS] or event.type[:PART_MAX_CHARS],
            self.lease_ms,
            self.retention_ms,
            event.tenant,
        )
        return stand_in, claim

    def fallback_digest(self, event: Event) -> bytes:
        """The digest that identifies the dead letter of an event without a key.

        It covers the event's identity and its payload, or its whole document where it has no identity. Another content
        under the same id is another dead letter, so that none is lost."""
        namespace = self.namespaces.get(event.tenant) or self._namespace(event.tenant)
        content = event.payload() if event.identity else canonical(event.document)
        known = (event.origin, event.type, event.topic, *(event.identity or (event.delivery_id,)))
        return namespace.fallback_digest(known, content_digest(content))

    def _claim_for(self, event: Event) -> Claim:
        namespace = self.namespaces.get(event.tenant) or self._namespace(event.tenant)
        parts = checked(self.key(event))
        return Claim(
            namespace.digest(parts),
            self.name,
            "|".join(filter(None, parts)),
            self.lease_ms,
            self.retention_ms,
            event.tenant,
            content_digest(event.payload()) if self.identifies else None,
            self._aliases(event, namespace) if isinstance(self.key, tiers) else (),
            self._order(event, namespace) if self.order is not None else None,
            self.effect == "park",
        )

    def _aliases(self, event: Event, namespace: Namespace) -> tuple[Alias, ...]:
        assert isinstance(self.key, tiers)
        return tuple(
            Alias(namespace.digest(("tier", str(at), *checked(strategy(event)))), self.key.short_ms)
            for at, strategy in enumerate(self.key.short)
        )

    def _order(self, event: Event, namespace: Namespace) -> Order:
        assert self.order is not None
        subject = checked(self.order.subject(event))
        return Order(namespace.digest(("subject", *subject)), self.order.position(event))

    def _namespace(self, tenant: str) -> Namespace:
        if len(self.namespaces) >= REMEMBERED_MAX:
            self.namespaces.clear()
        namespace = self.namespaces[tenant] = Namespace(tenant, self.name)
        return namespace


class NoKeyStandIn:
    """Runs in place of a handler whose key cannot be computed for one event, and rejects the event."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def __call__(self, event: Event, ctx: Any) -> Reject:
        return Reject(self.reason)


class Router:
    """Finds the handlers of an event. Decisions are cached by type and topic."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self._decided: dict[tuple[str, str], list[Handler]] = {}  # (type, topic) -> handlers

    def add(self, handler: Handler) -> None:
        if any(other.name == handler.name for other in self.handlers):
            raise ConfigError(
                f"two handlers are named {handler.name!r}: a handler's name is part of its keys, so give one of them "
                "another by name="
            )
        self.handlers.append(handler)
        self._decided.clear()

    def match(self, event: Event) -> Sequence[Handler]:
        """The handlers of this event, in order of registration. A pattern may match its topic, its topic template or
        its type."""
        if "{" in event.type and (known := self._decided.get((event.type, ""))) is not None:
            return known  # no pattern distinguishes concrete topics of this template
        found = self._decided.get((event.type, event.topic))
        return self._decide(event.type, event.topic) if found is None else found

    def _decide(self, template: str, topic: str) -> list[Handler]:
        if len(self._decided) >= REMEMBERED_MAX:
            self._decided.clear()
        found = [h for h in self.handlers if any(p.matches(template) or p.matches(topic) for p in h.patterns)]
        by_topic = [h for h in self.handlers if h not in found or not any(p.matches(template) for p in h.patterns)]
        if "{" in template and not any(p.could_match_some(template) for h in by_topic for p in h.patterns):
            topic = ""  # the template alone decides
        self._decided[template, topic] = found
        return found


def check_handler(fn: Callable[..., Any], what: str) -> None:
    """Raise ConfigError unless `fn` can be called with (event, ctx) and returns a result."""
    if not callable(fn):
        raise ConfigError(f"{what} must be a function of (event, ctx), not {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"{what} must return a result, but {fn!r} is a generator")
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise ConfigError(f"{what} is called with (event, ctx), but {fn!r} does not take these arguments") from None
    except ValueError:
        pass  # written in C, without a signature


def is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


class Unmatched:
    """Answers events without a handler and logs them per topic: the first, second, fourth, eighth …

    A source forgets an acknowledged event, so the log is the only trace of it."""

    def __init__(
        self,
        topic_of: Callable[[Delivery], str],
        then: UnmatchedAnswer = "ack",
        source: str = "a source",
        count: Callable[[], None] | None = None,
    ) -> None:
        """`topic_of` is empty for a delivery that is no event, such as the heartbeat of a channel. `count` is called
        for each unmatched event."""
        self._topic_of = topic_of
        self._then = then
        self._source = source
        self._count = count
        self._counts: dict[str, int] = {}  # by topic

    async def answer(self, delivery: Delivery) -> bool:
        """Acknowledge or reject the delivery, as configured. True: it was rejected."""
        topic = self._topic_of(delivery)
        if topic:
            self._log(topic_class(topic))
        if topic and self._then == "reject":
            await delivery.reject(REASON)
            return True
        await delivery.ack()
        return False

    def _log(self, topic: str) -> None:
        if self._count is not None:
            self._count()
        if topic not in self._counts and len(self._counts) >= TOPICS_MAX:
            topic = OTHER
        count = self._counts[topic] = self._counts.get(topic, 0) + 1
        if count & (count - 1) == 0:
            log.warning("event_unmatched", source=self._source, topic=topic, count=count, answer=self._then)


def topic_class(topic: str) -> str:
    """The topic with "*" in place of each id and number."""
    parts = ("*" if _ID.fullmatch(part) else part for part in topic.split("."))
    text = ".".join(parts)[:TOPIC_CHARS]
    return text if text.isprintable() else repr(text)


Decode: TypeAlias = Callable[[Arrived, DecodeOptions], Event]


class Plan(Struct, frozen=True):
    """An event with its handlers and their claims. All keys are fixed before any handler sees the event."""

    event: Event
    decode_options: DecodeOptions
    handlers: Sequence[Handler]
    claims: Sequence[Claim]

    @property
    def fails_open(self) -> bool:
        """Whether all its handlers may run without the ledger."""
        return all(handler.fail_open for handler in self.handlers)


class Planner:
    """Decodes a delivery, finds its handlers and computes their claims."""

    def __init__(self, router: Router, decode: Decode, decode_options: DecodeOptions) -> None:
        self._router = router
        self._decode = decode
        self.decode_options = decode_options  # for deliveries without decode options of their own

    def read(self, delivery: Arrived) -> tuple[Event, DecodeOptions]:
        """The event of a delivery and its decode options. Raises MalformedEvent."""
        decode_options = delivery.decode_options or self.decode_options
        return self._decode(delivery, decode_options), decode_options

    def plan(self, delivery: Arrived) -> Plan | Outcome:
        """The plan of a delivery, or its outcome where no handler has to run."""
        only = delivery.only
        try:
            event, decode_options = self.read(delivery)
            handlers = self._router.match(event)
            if only:
                handlers = [handler for handler in handlers if handler.name == only]
            if not handlers or event.shape == CONTROL:
                return Outcome("ignored", reason=f"no handler matches: {event.type}", handler=only, id=event.id)
            event.document  # noqa: B018 - strictly parsed here, so that no malformed event is ever claimed
        except MalformedEvent as error:
            return Outcome("malformed", reason=str(error), handler=only)
        try:
            claims = [handler.claim_for(event) for handler in handlers]
        except NoKey:
            planned = [_claim_or_stand_in(handler, event) for handler in handlers]
            handlers, claims = [handler for handler, _ in planned], [claim for _, claim in planned]
        plan = Plan(event, decode_options, handlers, claims)
        if delivery.key and delivery.key != claims[0].digest:
            return _under_accepted_key(plan, delivery.key, delivery.tenant)
        return plan


def _under_accepted_key(plan: Plan, key: bytes, tenant: str) -> Plan | Outcome:
    """The plan of an inbox item that was accepted under another key than this process computes.

    Another version of the settings, the handler or Semel accepted it. Where this process cannot run it, the outcome is
    "ignored", and another process runs it.

    The item may have run before, under the key that it was accepted with: a claim of that key finds its attempts, its
    uncertain run and its result. The key of this process is claimed beside it where both are identities of the event.
    A business key may be shared with other events, and an accepted event must not be lost as their duplicate."""
    (handler,), (claim,) = plan.handlers, plan.claims
    if plan.event.tenant != tenant:
        return Outcome("ignored", reason=OTHER_TENANT, handler=handler.name)
    if isinstance(handler.fn, NoKeyStandIn):  # the process that accepted it could compute one
        return Outcome("ignored", reason=handler.fn.reason, handler=handler.name)
    if key == handler.fallback_digest(plan.event):  # its handler has never run, so it has no key to keep
        claim = replace(claim, aliases=(*claim.aliases, Alias(key, handler.retention_ms)))
    else:
        own = (Alias(claim.digest, handler.retention_ms),) if handler.identifies else ()
        claim = replace(claim, digest=key, aliases=(*claim.aliases, *own))
    return Plan(plan.event, plan.decode_options, plan.handlers, [claim])


def _claim_or_stand_in(handler: Handler, event: Event) -> tuple[Handler, Claim]:
    """The handler and its claim. If its key cannot be computed: a stand-in that makes a dead letter for it alone."""
    try:
        return handler, handler.claim_for(event)
    except NoKey as error:
        return handler.without_key(event, error)
