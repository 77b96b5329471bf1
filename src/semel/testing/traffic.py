"""Synthetic traffic of a Genesys Cloud organisation: duplicated, late, out of order, and in bursts.

The same seed gives the same bytes. Every event can be generated from its number, so a storm of a million events needs
little memory. There are two kinds of copies. A *redelivery* has the same bytes, because the transport sent it again. A
*producer's retry* follows a lost reply: EventBridge wraps the same `detail` in a new envelope with another `id` and
`time`, and the other shapes are serialized with different white space. Both copies are the same event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import chain
from random import Random
from typing import Literal, NamedTuple

from semel.testing.shapes import Conversation, Organisation, Shape, spell, spell_again

BEGIN_MS = int(datetime(2026, 3, 19, 22, 0, tzinfo=UTC).timestamp() * 1000)
STEP_MS = 7  # between two events: a contact centre with about 140 events a second
BURST_EVENTS = 50  # per millisecond, in a burst
ACTIVE = 10  # conversations at a time
REMEMBERED = 64  # conversations kept in memory; most neighbouring events belong to them

REORDER_EVENTS = 8.0  # neighbours this far apart swap places
REORDER_MAX = 4 * REORDER_EVENTS  # the maximum distance of a move
SOON_EVENTS = 40.0  # the usual distance of a copy from its original
LATE = 0.1  # share of copies that arrive at any later time
PRODUCER = 0.3  # share of copies that Genesys made
COPIES_MAX = 10.0  # for each event
BLOCK_EVENTS = 100  # copies are distributed among this many events at a time

Copy = Literal["", "redelivery", "producer"]


class TrafficArrival(NamedTuple):
    """One delivery of a storm."""

    at: int  # the number of its event, from 0
    copy: Copy
    body: bytes


@dataclass(frozen=True)
class Storm:
    """Deliveries in the order of their arrival, with their counts."""

    deliveries: list[bytes]
    distinct: int  # different events
    redeliveries: int  # copies with the same bytes
    producer_retries: int  # copies in a new envelope


def storm(events: int, duplicates: float, seed: int = 0) -> Storm:
    """A whole storm in memory."""
    arrivals = list(Traffic(seed).storm(events, duplicates))
    kinds = [arrival.copy for arrival in arrivals]
    deliveries = [arrival.body for arrival in arrivals]
    return Storm(deliveries, events, kinds.count("redelivery"), kinds.count("producer"))


def events(count: int, seed: int = 0) -> Iterator[bytes]:
    """Different events without copies, in order."""
    return map(Traffic(seed).body, range(count))


class Traffic:
    """The events of one organisation. Every event has a number and is generated on demand."""

    def __init__(self, seed: int = 0, shape: Shape = "eventbridge", *, burst: bool = False) -> None:
        self._seed = seed
        self._shape = shape
        self._burst = burst
        self._organisation = Organisation(Random(f"{seed}"))
        self._conversations: dict[int, Conversation] = {}

    def body(self, at: int) -> bytes:
        return spell(self._shape, self._organisation, *self._place(at))

    def sent_again(self, at: int, random: Random) -> bytes:
        """The document that the producer sends when it retries."""
        return spell_again(self._shape, self._organisation, *self._place(at), random)

    def identity(self, at: int) -> str:
        """The identity of this event by construction, without Semel's own key code."""
        conversation, step, moment_ms = self._place(at)
        if self._shape in ("eventbridge", "detail"):
            body = conversation.members
            return f"{conversation.topic(step)}|{body['participantId']}|{body['sessionId']}|{moment_ms}"
        return conversation.ids[step]

    def storm(self, events: int, duplicates: float, *, reorder: bool = True) -> Iterator[TrafficArrival]:
        """Generate `events` different events with a share of copies: `duplicates=0.3` adds 30 copies to 100 events.

        Copies follow their original, most of them soon, some at any later time."""
        if events < 1 or not 0 <= duplicates <= COPIES_MAX:
            raise ValueError(f"events={events!r}, duplicates={duplicates!r}: at least 1, and 0 to {COPIES_MAX:g}")
        return self._deliveries(events, duplicates, reorder)

    def _deliveries(self, events: int, duplicates: float, reorder: bool) -> Iterator[TrafficArrival]:
        retries = Random(f"{self._seed} retries")
        for at, copy in _order(events, duplicates, reorder, Random(f"{self._seed} order")):
            body = self.sent_again(at, retries) if copy == "producer" else self.body(at)
            yield TrafficArrival(at, copy, body)

    def _place(self, at: int) -> tuple[Conversation, int, int]:
        """The conversation of an event, its step in the conversation, and its time."""
        shift, within = divmod(at, ACTIVE * Conversation.STEPS)
        step, lane = divmod(within, ACTIVE)
        moment_ms = BEGIN_MS + STEP_MS * (at - at % BURST_EVENTS if self._burst else at)
        return self._conversation(shift * ACTIVE + lane), step, moment_ms

    def _conversation(self, number: int) -> Conversation:
        found = self._conversations.get(number)
        if found is None:
            if len(self._conversations) >= REMEMBERED:
                del self._conversations[next(iter(self._conversations))]
            found = self._conversations[number] = Conversation(Random(f"{self._seed}/{number}"))
        return found


def _order(events: int, duplicates: float, reorder: bool, random: Random) -> Iterator[tuple[int, Copy]]:
    """The order of events and copies. Only the position and the number of pending copies are held in memory."""
    waiting: list[tuple[float, int, int, Copy]] = []
    made = 0
    for first in chain(range(0, events, BLOCK_EVENTS), (events,)):
        last = min(first + BLOCK_EVENTS, events)
        moved = [_nudge(random) if reorder else 0.0 for _ in range(first, last)]
        for at in range(first, last):
            heappush(waiting, (at + moved[at - first], made := made + 1, at, ""))
        for _ in range(round(last * duplicates) - round(first * duplicates)):
            at = random.randrange(first, last)
            late = random.uniform(0, events) if random.random() < LATE else random.expovariate(1 / SOON_EVENTS)
            copy: Copy = "producer" if random.random() < PRODUCER else "redelivery"
            heappush(waiting, (at + moved[at - first] + late, made := made + 1, at, copy))
        # No event of a later block can precede this one.
        while waiting and (first == events or waiting[0][0] < last - REORDER_MAX):
            _, _, at, copy = heappop(waiting)
            yield at, copy


def _nudge(random: Random) -> float:
    return max(-REORDER_MAX, min(random.gauss(0, REORDER_EVENTS), REORDER_MAX))
