"""Forwards verified events to a broker, for consumers elsewhere. A delivery is answered when the broker has it.

    delivery -> event -> forwarded event -> lane -> Publisher.publish -> response

Nothing is routed or claimed here: this process may have no handler at all. The consumer makes the same key and finds
duplicates, conflicts and ignored events. Events that arrive while a lane publishes form its next batch. Events of one
group share a lane, so that none overtakes another.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from semel.app import IncomingMessage
from semel.core.batcher import Batcher
from semel.core.breaker import Breaker, State
from semel.core.routing import CONTROL, Planner
from semel.ports import Publisher
from semel.values.cloudevents import SHAPE as CLOUDEVENTS
from semel.values.cloudevents import STRUCTURED
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.forwarded import TOO_LARGE, UNFIT, ForwardedEvent, ForwardMetadata
from semel.values.log import IncidentLog
from semel.values.outcome import Outcome

PATIENCE_S = 4.0  # EventBridge's API destinations wait for 5 s
LANES = 8  # concurrent publishes; with the usual 64 senders each lane fills a batch of SQS (10)
OPEN_S = 0.1  # how long the breaker stays open, at first and at most: as for the ledger
OPEN_MAX_S = 1.0
DOWN = "the broker was unavailable a moment ago"
LATE = f"no answer within {PATIENCE_S:g} s"


def forwarded_event(
    planner: Planner, message: IncomingMessage, trace: str = ""
) -> tuple[ForwardedEvent, Outcome] | Outcome:
    """The event to publish, with the outcome after the broker has confirmed it. Only an outcome: nothing to publish."""
    try:
        event, options = planner.read(message)
        if event.shape == CONTROL:
            return Outcome("ignored", reason="a control message of the channel, not an event")
        event.document  # noqa: B018 - parsed strictly here: a webhook sender gets the error, a queue does not
    except MalformedEvent as error:
        return Outcome("malformed", reason=str(error))
    metadata = ForwardMetadata(tenant=event.tenant, decode_options=options, trace=trace)
    content_type = STRUCTURED if event.shape == CLOUDEVENTS else ""
    return ForwardedEvent(event.raw, metadata, group_of(event), content_type), Outcome("accepted", id=event.id)


def group_of(event: Event) -> str:
    """The ordering group: the events of one subject (such as a conversation) of one tenant."""
    subject = event.subject or event.id
    return f"{event.tenant}/{subject}" if event.tenant and subject else subject


class BrokerForwarding:
    """Publishes to one broker, on one event loop, behind a breaker."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lanes = [Batcher(self._publish) for _ in range(LANES)]
        self._next = 0
        self._error = ""
        self._unavailable = IncidentLog("broker_unavailable", "broker_recovered")
        self._partly = IncidentLog("broker_events_failed")
        self._refused = IncidentLog("broker_events_refused")
        self._breaker = Breaker(
            1, OPEN_S, open_max_s=OPEN_MAX_S, clock=time.monotonic, random=random.random, moved=self._breaker_changed
        )
        self._connecting = asyncio.ensure_future(self._connect())  # connects ahead of the first delivery

    async def forward(self, event: ForwardedEvent) -> str:
        """Publish one event. Returns an empty text if the broker confirmed it, else the reason."""
        if self._breaker.ready_in_s() > 0:
            return DOWN
        try:
            async with asyncio.timeout(PATIENCE_S):
                if event.group:
                    lane = crc32(event.group.encode("utf-8", "surrogatepass")) % LANES
                else:
                    lane = self._next = (self._next + 1) % LANES
                (answer,) = await self._lanes[lane].ask([event])
        except TimeoutError:  # the event may still arrive; then the redelivery is a duplicate
            self._failed(LATE)
            return LATE
        return answer

    async def _publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        if not self._breaker.admit():
            return [DOWN] * len(events)
        try:
            answers = await self._publisher.publish(events)
        except Exception as error:  # of an adapter: these senders retry, and the next batch is tried
            self._failed(f"{type(error).__name__}: {error}")
            return [DOWN] * len(events)
        temporary = [reason for reason in answers if not reason.startswith((TOO_LARGE, UNFIT))]
        failures = [reason for reason in temporary if reason]
        if failures and len(failures) == len(temporary):
            self._failed(failures[0])
        else:
            self._breaker.succeeded()
            if failures:
                self._partly.report(failures[0])
        for reason in answers:
            if reason.startswith((TOO_LARGE, UNFIT)):  # the broker can never take this event
                self._refused.report(reason)
        return answers

    async def _connect(self) -> None:
        with suppress(Exception):  # the first delivery reports it
            await self._publisher.publish([])

    def _failed(self, error: str) -> None:
        self._error = error
        self._breaker.trip()

    def _breaker_changed(self, state: State) -> None:
        if state == "open":
            self._unavailable.report(self._error)
        elif state == "closed":
            self._unavailable.resolve()
