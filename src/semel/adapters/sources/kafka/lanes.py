"""How far a partition may be committed: up to the lowest message that is not settled, and never past it.

    offsets    40 41 42 43 44 45
    settled     ✓  ✓  ·  ✓  ✓  ·        42 waits for its retry
    position   ------42                 where a restart begins: 43 and 44 come again, and are duplicates

Two threads look at a lane, without a lock: the poller appends to it and reads `position`, the event loop settles and
moves `position`. Each attribute is written by one of them, and whatever position is read is a safe one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Message

NONE = -1  # no offset yet


class Held:
    """One message in our hands."""

    __slots__ = ("key", "lane", "message", "offset", "settled")

    def __init__(self, lane: Lane, offset: int, message: Message) -> None:
        self.lane = lane
        self.offset = offset
        self.message: Message | None = message
        self.key: bytes | None = None  # whose order is kept; None: nobody's
        self.settled = False

    def __str__(self) -> str:
        return f"{self.lane}@{self.offset}"


class Lane:
    """A partition for as long as it is ours. When it comes back it is another lane."""

    __slots__ = (
        "asked",
        "behind",
        "committed",
        "gone",
        "last",
        "outstanding",
        "partition",
        "paused",
        "position",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.outstanding: deque[Held] = deque()  # in the order of their offsets, from the lowest unsettled one on
        self.behind: dict[bytes, deque[Held]] = {}  # of each key that somebody works on, where order is kept
        self.position = NONE  # everything before it is settled; written by the loop
        self.last = NONE  # the newest that was received; this and what follows is written by the poller
        self.asked = NONE  # what a commit was asked for
        self.committed = NONE
        self.gone = False  # not ours any more: nothing of it is committed
        self.paused = False

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    def add(self, offset: int, message: Message) -> Held:
        held = Held(self, offset, message)
        self.outstanding.append(held)
        self.last = offset
        return held

    def settle(self, held: Held) -> None:
        """The position moves when this was the lowest, past all that were settled before it."""
        held.settled = True
        held.message = None  # the rest of it may stay for as long as one before it waits
        outstanding = self.outstanding
        while outstanding and outstanding[0].settled:
            self.position = outstanding.popleft().offset + 1
