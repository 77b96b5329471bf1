"""The handler of a route without code: it posts the event to a destination."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from semel.adapters.destinations.answers import came_to
from semel.adapters.destinations.destination import Destination
from semel.adapters.destinations.headers import JSON
from semel.values.cloudevents import SHAPE, STRUCTURED
from semel.values.errors import NoKey
from semel.values.event import Event
from semel.values.first_byte import checked_by
from semel.values.outcome import Reject

_encode = msgspec.json.Encoder().encode


class Attempt(Protocol):
    """What a forward needs of a handler's context."""

    @property
    def key(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def check(self) -> None: ...


class Forward:
    """Posts the document as it arrived, or the part at `select`, under the key of the effect. A CloudEvent leaves in
    structured mode.

    `park`: the route may not repeat its effect, so what may have reached the destination without an answer is unknown
    (the engine lists it as uncertain). Else it is tried again, under the same key."""

    def __init__(self, destination: Destination, select: str = "", park: bool = False) -> None:
        self.destination = destination
        self._select = select
        self._park = park

    async def __call__(self, event: Event, ctx: Attempt) -> dict[str, Any]:
        """The status of the answer, and its body where that is small JSON. Raises Retry, Reject or NotNow."""
        body = self._part_of(event)
        content_type = STRUCTURED if event.shape == SHAPE and not self._select else JSON
        with checked_by(ctx.check):
            answer = await self.destination.post(body, ctx.key, ctx.attempt, content_type)
        return came_to(answer, self.destination.who, self._park, self.destination.secrets())

    @property
    def concurrency(self) -> int:
        """How many events it is worth having in hand: while the destination is only probed, one."""
        return self.destination.concurrency if self.destination.state == "closed" else 1

    def ready_in_s(self) -> float:
        """0 when the destination takes events now, else when it is worth trying."""
        return self.destination.ready_in_s()

    def _part_of(self, event: Event) -> bytes:
        if not self._select:
            return event.raw
        try:
            return _encode(event.field(self._select))
        except NoKey as error:
            raise Reject(f"nothing to send: {error}") from None
