"""From a delivery to what is to be done: its event, its handlers and their claims. The store is not asked yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from semel.core.handlers import Handler, Router
from semel.values.claim import Claim
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.outcome import Outcome
from semel.values.reading import Reading

REKEYED = "accepted under another key: its handler's key, name or tenant changed since, and it may have acted"
CONTROL = "control"  # the shape of a channel's own frames: heartbeats and the like, no events


class Arrived(Protocol):
    """What is needed of a delivery; answering it is the business of whoever received it.

    It may also have a `reading`, where the app's own is not right for it, `only`, the one handler it is for, and `key`,
    under which it was accepted: what would be another effect now must not be run in its name."""

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
        try:
            event, reading = self.read(delivery)
            handlers = self._router.match(event)
            if only := getattr(delivery, "only", ""):
                handlers = [handler for handler in handlers if handler.name == only]
            if not handlers or event.shape == CONTROL:
                return Outcome("ignored", reason="no handler matches")
            event.document  # noqa: B018 - strictly parsed here, so that nothing malformed is ever claimed
            claims = [handler.claim_for(event) for handler in handlers]
            key = getattr(delivery, "key", b"")
            if key and key != claims[0].digest:
                return Outcome("conflict", reason=REKEYED)
            return Plan(event, reading, handlers, claims)
        except MalformedEvent as error:
            return Outcome("malformed", reason=str(error))
