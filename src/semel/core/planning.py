"""From a delivery to what is to be done: its event, its handlers and their claims. The store is not asked yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from semel.core.handlers import Handler, NoKeyStandIn, Router
from semel.values.claim import Alias, Claim
from semel.values.errors import MalformedEvent, NoKey
from semel.values.event import Event
from semel.values.outcome import Outcome
from semel.values.reading import Reading

OTHER_TENANT = "accepted for another tenant: the default tenant is another one here"
CONTROL = "control"  # the shape of a channel's own frames: heartbeats and the like, no events


class Arrived(Protocol):
    """What is needed of a delivery; answering it is the business of whoever received it.

    It may also have a `reading`, where the app's own is not right for it, `only`, the one handler it is for, and `key`,
    under which it was accepted and under which it may have run already."""

    @property
    def body(self) -> bytes: ...
    @property
    def tenant(self) -> str: ...


Decode: TypeAlias = Callable[[Arrived, Reading], Event]


class Plan(Struct, frozen=True):
    """All keys of an event, fixed before any handler sees it."""

    event: Event
    reading: Reading
    handlers: Sequence[Handler]
    claims: Sequence[Claim]


class Planner:
    """Decodes, routes and keys."""

    def __init__(self, router: Router, decode: Decode, reading: Reading) -> None:
        self._router = router
        self._decode = decode
        self.reading = reading  # of deliveries that bring none of their own

    def read(self, delivery: Arrived) -> tuple[Event, Reading]:
        """The event of a delivery, whoever it is for. Raises MalformedEvent."""
        reading: Reading = getattr(delivery, "reading", None) or self.reading
        return self._decode(delivery, reading), reading

    def plan(self, delivery: Arrived) -> Plan | Outcome:
        """What to do with a delivery; an outcome where there is nothing to do."""
        only = getattr(delivery, "only", "")
        try:
            event, reading = self.read(delivery)
            handlers = self._router.match(event)
            if only:
                handlers = [handler for handler in handlers if handler.name == only]
            if not handlers or event.shape == CONTROL:
                return Outcome("ignored", reason=f"no handler matches: {event.type}", handler=only, id=event.id)
            event.document  # noqa: B018 - strictly parsed here, so that nothing malformed is ever claimed
        except MalformedEvent as error:
            return Outcome("malformed", reason=str(error), handler=only)
        try:
            claims = [handler.claim_for(event) for handler in handlers]
        except NoKey:
            handlers, claims = _keyed_one_by_one(handlers, event)
        key = getattr(delivery, "key", b"")
        if key and key != claims[0].digest:
            return _under_accepted_key(Plan(event, reading, handlers, claims), key, delivery.tenant)
        return Plan(event, reading, handlers, claims)


def _under_accepted_key(plan: Plan, key: bytes, tenant: str) -> Plan | Outcome:
    """The plan of an inbox item that was accepted under another key than the one that is computed here, by another
    version of the settings, the handler or Semel; "ignored" where this process must leave it to others.

    The item may have run before, under the key that it was accepted with: a claim of that key finds its attempts, its
    doubt and its result. The key of this process is claimed beside it where both are identities of the event. Under a
    business key other events may share it, and an accepted event must not be lost as their duplicate."""
    (handler,), (claim,) = plan.handlers, plan.claims
    if plan.event.tenant != tenant:
        return Outcome("ignored", reason=OTHER_TENANT, handler=handler.name)
    if isinstance(handler.fn, NoKeyStandIn):  # whoever accepted it could compute one
        return Outcome("ignored", reason=handler.fn.reason, handler=handler.name)
    if key == handler.fallback_digest(plan.event):  # its handler has never run, so it has no key to keep
        claim = replace(claim, aliases=(*claim.aliases, Alias(key, handler.retention_ms)))
    else:
        own = (Alias(claim.digest, handler.retention_ms),) if handler.identifies else ()
        claim = replace(claim, digest=key, aliases=(*claim.aliases, *own))
    return Plan(plan.event, plan.reading, plan.handlers, [claim])


def _keyed_one_by_one(handlers: Sequence[Handler], event: Event) -> tuple[list[Handler], list[Claim]]:
    """A key that cannot be computed concerns its handler alone: for that one, a stand-in makes a dead letter."""
    planned: list[tuple[Handler, Claim]] = []
    for handler in handlers:
        try:
            planned.append((handler, handler.claim_for(event)))
        except NoKey as error:
            planned.append(handler.without_key(event, error))
    return [handler for handler, _ in planned], [claim for _, claim in planned]
