"""Handing events on to a broker, for consumers elsewhere: a delivery becomes a parcel, and is answered when the broker
has it.

    delivery → event → parcel → lane → Publisher.publish → answer

Nothing is routed here and nothing is claimed: this process may have no handler at all. Whether an event is a duplicate,
a conflict or of no interest is for the consumer to find, who makes the same key of it. What arrives while a lane is
publishing forms its next batch. Parcels of one group share a lane, so that none overtakes another on its way.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from zlib import crc32

from semel.app import Message
from semel.core.batcher import Batcher
from semel.core.breaker import Breaker, State
from semel.core.planning import CONTROL, Planner
from semel.ports import Publisher
from semel.service.trouble import Trouble
from semel.values.cloudevents import SHAPE as CLOUDEVENTS
from semel.values.cloudevents import STRUCTURED
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.outcome import Outcome
from semel.values.parcel import TOO_LARGE, UNFIT, Note, Parcel

PATIENCE_S = 4.0  # EventBridge's API destinations wait for 5 s
LANES = 8  # publishes at a time; with the usual 64 senders each has a batch of SQS's ten
OPEN_S = 0.1  # how long nothing is tried after a failure, at first and at most: as for the ledger
OPEN_MAX_S = 1.0
DOWN = "the broker could not be reached a moment ago"
LATE = f"no answer within {PATIENCE_S:g} s"


def parcel_of(planner: Planner, message: Message, trace: str = "") -> tuple[Parcel, Outcome] | Outcome:
    """What to hand on, and what to say when the broker has it; an outcome alone where there is nothing to hand on."""
    try:
        event, reading = planner.read(message)
        if event.shape == CONTROL:
            return Outcome("ignored", reason="no event, but a word of its channel")
        event.document  # noqa: B018 - strictly parsed here: its sender can be told what is wrong with it, a queue cannot
    except MalformedEvent as error:
        return Outcome("malformed", reason=str(error))
    note = Note(tenant=event.tenant, reading=reading, trace=trace)
    content_type = STRUCTURED if event.shape == CLOUDEVENTS else ""
    return Parcel(event.raw, note, group_of(event), content_type), Outcome("accepted", id=event.id)


def group_of(event: Event) -> str:
    """What must stay in order: the events of one conversation (or whatever they are about) of one tenant."""
    about = event.subject or event.id
    return f"{event.tenant}/{about}" if event.tenant and about else about


def _is_for_good(why: str) -> bool:
    return why.startswith((TOO_LARGE, UNFIT))


class HandingOn:
    """One for a publisher, on one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lanes = [Batcher(self._publish) for _ in range(LANES)]
        self._next = 0
        self._why = ""
        self._down = Trouble("broker_unavailable", "broker_recovered")
        self._partly = Trouble("broker_events_failed")
        self._refused = Trouble("broker_events_refused")
        self._breaker = Breaker(
            1, OPEN_S, open_max_s=OPEN_MAX_S, clock=time.monotonic, random=random.random, moved=self._moved
        )
        self._opening = asyncio.ensure_future(self._open())  # so that the first sender need not wait for it

    async def hand_on(self, parcel: Parcel) -> str:
        """Empty when the broker has it; else why it is not known to be there."""
        if self._breaker.ready_in_s() > 0:
            return DOWN
        try:
            async with asyncio.timeout(PATIENCE_S):
                (answer,) = await self._lane(parcel.group).ask([parcel])
        except TimeoutError:  # it may arrive yet, and then its sender's repetition is a duplicate
            self._failed(LATE)
            return LATE
        return answer

    def _lane(self, group: str) -> Batcher[Parcel, str]:
        if group:
            return self._lanes[crc32(group.encode("utf-8", "surrogatepass")) % LANES]
        self._next = (self._next + 1) % LANES
        return self._lanes[self._next]

    async def _publish(self, parcels: Sequence[Parcel]) -> list[str]:
        if not self._breaker.admit():
            return [DOWN] * len(parcels)
        try:
            answers = await self._publisher.publish(parcels)
        except Exception as error:  # of an adapter: its senders come again, and those of the next batch are heard
            self._failed(f"{type(error).__name__}: {error}")
            return [DOWN] * len(parcels)
        self._judge([why for why in answers if not _is_for_good(why)])
        for why in filter(_is_for_good, answers):
            self._refused.is_there(why)
        return answers

    def _judge(self, answers: Sequence[str]) -> None:
        """What the broker's answers, to what it could have taken, say about the broker."""
        failures = [why for why in answers if why]
        if failures and len(failures) == len(answers):
            self._failed(failures[0])
            return
        self._breaker.succeeded()
        if failures:
            self._partly.is_there(failures[0])

    async def _open(self) -> None:
        with suppress(Exception):  # said by whoever has something to hand on
            await self._publisher.publish([])

    def _failed(self, why: str) -> None:
        self._why = why
        self._breaker.trip()

    def _moved(self, state: State) -> None:
        if state == "open":
            self._down.is_there(self._why)
        elif state == "closed":
            self._down.is_over()
