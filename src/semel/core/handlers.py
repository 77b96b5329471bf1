"""Handlers: what the user registered, and which of them an event is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from semel.values.claim import Alias, Claim, Order
from semel.values.effect import Effect
from semel.values.errors import ConfigError, NoKey
from semel.values.event import Event
from semel.values.key import Namespace, content_digest
from semel.values.keys import PART_MAX_CHARS, Strategy, checked, latest, tiers
from semel.values.outcome import Reject
from semel.values.strict_json import canonical
from semel.values.topic import Pattern

REMEMBERED_MAX = 4096  # a sender that makes up event types or tenants must not fill our memory
NO_KEY = "the key cannot be computed"  # the reason of such a dead letter begins with it: replay them all by --matching


class Handler(Struct, frozen=True):
    """One registered function with everything that decides how it runs."""

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
        """The claim of this event: the key is fixed here, before the handler sees the event."""
        try:
            return self._claim_for(event)
        except NoKey:
            raise
        except Exception as error:  # of a strategy that the user wrote: it concerns this handler and this event alone
            raise NoKey(f"the key function raised {type(error).__name__}: {error}") from error

    def without_key(self, event: Event, error: NoKey) -> tuple[Handler, Claim]:
        """A stand-in for this handler and this event: it takes the event to the dead letters, with the reason.

        The stand-in runs through the ordinary flow, so that a redelivery is a duplicate, and a crash between claim and
        settle leaves a lease that lapses. It never calls the user's function."""
        stand_in = replace(
            self,
            fn=NoKeyStandIn(f"{NO_KEY}: {error}"),
            is_async=True,
            effect="retry",  # nothing is done that could be done twice
            probe=None,
            timeout_s=None,
            max_attempts=2**31,  # processes that vanish must not replace the reason
            fail_open=False,  # without a ledger nothing can be kept
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
        """Identifies the dead letter of an event without a key: by its identity and its payload, or by its whole
        document where it has no identity. Another content under the same id is another dead letter: none is lost."""
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
    """Which handlers an event is for. What was decided is remembered."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []
        self._decided: dict[tuple[str, str], list[Handler]] = {}

    def add(self, handler: Handler) -> None:
        if any(other.name == handler.name for other in self.handlers):
            raise ConfigError(
                f"two handlers are named {handler.name!r}: a handler's name is part of its keys, so give one of them "
                "another by name="
            )
        self.handlers.append(handler)
        self._decided.clear()

    def match(self, event: Event) -> Sequence[Handler]:
        """In order of registration. Concrete topic, topic template and type are all matchable."""
        asked = (event.type, event.topic)
        if "{" in event.type and (known := self._decided.get((event.type, ""))) is not None:
            return known  # no pattern tells concrete topics of this template apart
        found = self._decided.get(asked)
        return self._decide(event.type, event.topic) if found is None else found

    def _decide(self, template: str, topic: str) -> list[Handler]:
        if len(self._decided) >= REMEMBERED_MAX:
            self._decided.clear()
        found = [h for h in self.handlers if any(p.matches(template) or p.matches(topic) for p in h.patterns)]
        undecided = [h for h in self.handlers if h not in found or not _by_template(h, template)]
        if "{" in template and not any(p.could_match_some(template) for h in undecided for p in h.patterns):
            topic = ""
        self._decided[template, topic] = found
        return found


def _by_template(handler: Handler, template: str) -> bool:
    return any(pattern.matches(template) for pattern in handler.patterns)


def check_handler(fn: Callable[..., Any], what: str) -> None:
    """A handler is called with the event and its context, and returns a result."""
    if not callable(fn):
        raise ConfigError(f"{what} must be a function of (event, ctx), not {fn!r}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"{what} must return a result, and {fn!r} yields")
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise ConfigError(f"{what} is called with (event, ctx), and {fn!r} does not take them") from None
    except ValueError:
        pass  # written in C, without a signature


def is_async(fn: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
