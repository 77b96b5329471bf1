"""Messages of Kafka in flight, and the offset up to which each partition can be committed.

A partition is committed up to its lowest unsettled message, and never past it:

    offsets    40 41 42 43 44 45
    settled     ✓  ✓  ·  ✓  ✓  ·        42 waits for its retry
    position   ------42                 a restart begins here: 43 and 44 are redelivered, as duplicates

Two threads use a lane without a lock: the poller appends messages and reads `position`, the event loop settles messages
and moves `position`. Each attribute has one writer, and every position that is read is safe to commit.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from semel.sources.lifecycle import ReadyMessages

if TYPE_CHECKING:
    from confluent_kafka import Message

NONE = -1  # no offset yet


class KafkaMessage:
    """One message in flight. `record` is the driver's message, dropped when the message is settled."""

    __slots__ = ("key", "lane", "offset", "record", "settled")
    answered = False  # no answer is given without a delivery

    def __init__(self, lane: PartitionLane, offset: int, record: Message) -> None:
        self.lane = lane
        self.offset = offset
        self.record: Message | None = record
        self.key: bytes | None = None  # messages of one key stay in order; None: no order
        self.settled = False

    def __str__(self) -> str:
        return f"{self.lane}@{self.offset}"


class PartitionLane:
    """One assignment of a partition to this consumer. A new assignment of the same partition gets a new lane."""

    __slots__ = (
        "behind",
        "commit_requested",
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
        self.outstanding: deque[KafkaMessage] = deque()  # by offset, from the lowest unsettled message on
        self.behind: dict[bytes, deque[KafkaMessage]] = {}  # with `in_order`: per key of a ready or delivered message
        self.position = NONE  # every message before it is settled; written by the loop
        self.last = NONE  # newest received offset; the poller writes this and the attributes below
        self.commit_requested = NONE
        self.committed = NONE
        self.gone = False  # assigned to another consumer: no more commits
        self.paused = False

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"

    def add(self, offset: int, record: Message) -> KafkaMessage:
        message = KafkaMessage(self, offset, record)
        self.outstanding.append(message)
        self.last = offset
        return message

    def settle(self, message: KafkaMessage) -> None:
        """Settle a message. If it is the lowest, the position moves past all settled messages that follow."""
        message.settled = True
        message.record = None  # frees the memory: the rest stays while a lower message waits
        outstanding = self.outstanding
        while outstanding and outstanding[0].settled:
            self.position = outstanding.popleft().offset + 1


NEVER = 1 << 62


class KafkaInFlight(ReadyMessages[KafkaMessage]):
    """Messages in flight on the event loop: ready, delivered to a worker, or waiting for a retry.

    With `in_order`, messages of one key in a partition stay in order: the next one is ready when its predecessor is
    settled. A message without a key has no predecessor.
    """

    def __init__(self, *, in_order: bool) -> None:
        super().__init__()
        self._in_order = in_order
        self._timers: dict[KafkaMessage, asyncio.TimerHandle] = {}
        self.received_total = 0  # written by the poller
        self.released_total = 0  # messages that are no longer in flight
        self._wanted = NEVER  # the poller waits until `released_total` reaches this
        self._capacity_event = threading.Event()

    # ------------------------------------------------------------------------------------------------- coming in

    def put(self, arrived: Sequence[KafkaMessage]) -> None:
        if self._in_order:
            for message in arrived:
                self._queue_by_key(message)
        else:
            self._ready.extend(arrived)
        self.wake()

    def _queue_by_key(self, message: KafkaMessage) -> None:
        record = message.record
        key = message.key = None if record is None else record.key()
        if key is None:
            self._ready.append(message)
        elif (behind := message.lane.behind.get(key)) is not None:
            behind.append(message)
        else:
            message.lane.behind[key] = deque()
            self._ready.append(message)

    def capacity(self, most: int) -> int:
        """Number of messages that can still be received."""
        return most - (self.received_total - self.released_total)

    def wait_for_capacity(self, most: int, enough: int, within_s: float) -> None:
        """Sleep until there is enough capacity. The poller's thread calls this.

        It sleeps for as long as possible, because the event loop cannot run while the thread runs.
        """
        self._capacity_event.clear()
        self._wanted = self.received_total - most + enough
        if self.released_total < self._wanted:
            self._capacity_event.wait(within_s)
        self._wanted = NEVER

    def _release(self, count: int = 1) -> None:
        self.released_total += count
        if self.released_total >= self._wanted:
            self._wanted = NEVER
            self._capacity_event.set()

    # --------------------------------------------------------------------------------------------- going through

    def wait(self, message: KafkaMessage, after_s: float) -> None:
        """Make a message ready again after this time. Its key waits with it, the rest of its partition does not."""
        if message.lane.gone:
            self.forget(message)
            return
        self._timers[message] = asyncio.get_running_loop().call_later(max(0.0, after_s), self._retry_due, message)

    def _retry_due(self, message: KafkaMessage) -> None:
        del self._timers[message]
        if message.lane.gone:
            self.forget(message)
            return
        self._ready.append(message)  # at the end: messages that fail repeatedly do not starve the others
        self.wake()

    # ----------------------------------------------------------------------------------------------- going out

    def settle(self, message: KafkaMessage) -> None:
        self._release()
        lane = message.lane
        lane.settle(message)
        if message.key is None or (behind := lane.behind.get(message.key)) is None:
            return
        if behind:
            self._ready.append(behind.popleft())
            self.wake()
        else:
            del lane.behind[message.key]

    def forget(self, message: KafkaMessage) -> None:
        """Remove a message without settling it: this consumer may still commit its partition."""
        self._release()

    def drop(self, gone: Iterable[PartitionLane]) -> None:
        """Remove the messages of partitions that were taken away. Delivered messages stay until they are answered."""
        lanes = set(gone)
        ready = self._ready
        self._ready = deque(message for message in ready if message.lane not in lanes)
        self._release(len(ready) - len(self._ready))
        for message in [message for message in self._timers if message.lane in lanes]:
            self._timers.pop(message).cancel()
            self._release()
        for lane in lanes:
            self._release(sum(len(behind) for behind in lane.behind.values()))
            lane.behind.clear()
        self.wake()

    def clear(self) -> None:
        """Remove every message that is not delivered to a worker."""
        self._release(len(self._ready) + len(self._timers))
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
