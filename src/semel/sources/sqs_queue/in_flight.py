"""Messages of SQS in flight: received, and not yet answered at the queue.

A FIFO queue delivers several messages of a group in one receive. They are delivered to the worker one at a time: the
next one when its predecessor is settled. When a message fails, the messages behind it in its group go back to the queue
with it, so that nothing overtakes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from semel.sources.lifecycle import InFlight


class SqsMessage:
    """One receipt of a message."""

    __slots__ = (
        "answered",
        "attributes",
        "given_up",
        "group",
        "id",
        "receipt",
        "received_at",
        "receives",
        "text",
        "visible_at",
    )

    def __init__(self, received: Mapping[str, Any], requested_at: float, visible_at: float) -> None:
        system_attributes: Mapping[str, str] = received.get("Attributes", {})
        self.id: str = received["MessageId"]
        self.receipt: str = received["ReceiptHandle"]
        self.text: str = received.get("Body", "")
        self.attributes: Mapping[str, Any] = received.get("MessageAttributes", {})
        self.group = system_attributes.get("MessageGroupId", "")
        self.receives = int(system_attributes.get("ApproximateReceiveCount", "1"))
        self.received_at = requested_at  # time of the request: the queue's own count starts later
        self.visible_at = visible_at  # when other consumers see it, unless it is extended
        self.answered = False  # its answer is decided, and perhaps not sent yet
        self.given_up = False  # its visibility is no longer extended

    def attribute(self, name: str) -> str | bytes:
        """Value of a message attribute; empty if the sender set none."""
        attribute: Mapping[str, Any] = self.attributes.get(name, {})
        value: str | bytes = attribute.get("StringValue") or attribute.get("BinaryValue") or ""
        return value


class SqsInFlight(InFlight[SqsMessage]):
    """At most `most` messages. Order is kept within a group only."""

    def __init__(self, most: int, *, fifo: bool) -> None:
        super().__init__()
        self._most = most
        self._fifo = fifo  # a standard queue can have groups too, but guarantees no order
        self._behind: dict[str, deque[SqsMessage]] = {}  # per group that has a ready or delivered message
        self._reserved = 0

    @property
    def extendable(self) -> list[SqsMessage]:
        """Messages whose visibility must be extended."""
        return [message for message in self._messages if not message.given_up]

    # ------------------------------------------------------------------------------------------------ receiving

    async def reserve(self, wanted: int) -> int:
        """Wait until this many messages fit, and reserve the capacity. A small receive costs as much as a large one."""
        wanted = min(wanted, self._most)
        while self._most - len(self._messages) - self._reserved < wanted:
            await self.changed()
        self._reserved += wanted
        return wanted

    def put(self, received: Iterable[SqsMessage], reserved: int) -> None:
        """Add received messages and free the reservation that was made for them."""
        self._reserved -= reserved
        for message in received:
            self._messages[message] = None
            if not self._fifo:
                self._ready.append(message)
            elif message.group in self._behind:
                self._behind[message.group].append(message)
            else:
                self._behind[message.group] = deque()
                self._ready.append(message)
        self.wake()

    # ---------------------------------------------------------------------------------------------- delivering

    def release_next(self, message: SqsMessage) -> None:
        """Make the next message of a settled message's group ready."""
        if not self._fifo or (behind := self._behind.get(message.group)) is None:
            return
        if behind:
            self._ready.append(behind.popleft())
            self.wake()
        else:
            del self._behind[message.group]

    def remove_group(self, message: SqsMessage) -> list[SqsMessage]:
        """Remove and return, in order, the messages that wait behind a message that goes back to the queue."""
        return list(self._behind.pop(message.group, ())) if self._fifo else []

    def mark_lost(self, message: SqsMessage) -> list[SqsMessage]:
        """Give up a message that the queue will deliver to another consumer.

        A message that is not delivered to a worker yet is removed, and so are the messages behind it in its group.
        Returns the messages behind it: they go back to the queue.
        """
        message.given_up = True
        if message in self._ready:
            self._ready.remove(message)
            self.forget(message)
            return self.remove_group(message)
        behind = self._behind.get(message.group) if self._fifo else None
        if behind is None or message not in behind:
            return []  # a worker is processing it
        at = behind.index(message)
        rest = list(behind)[at + 1 :]
        for _ in range(len(rest) + 1):
            behind.pop()
        self.forget(message)
        return rest

    # ------------------------------------------------------------------------------------------------- answering

    def forget(self, message: SqsMessage) -> None:
        message.given_up = True
        super().forget(message)
        self.wake()  # a poller may wait for the capacity

    def take_waiting(self) -> list[SqsMessage]:
        waiting = [*self._ready, *[message for behind in self._behind.values() for message in behind]]
        for message in self._ready:
            self._behind.pop(message.group, None)
        self._ready.clear()
        for behind in self._behind.values():  # groups of which a message is delivered
            behind.clear()
        return waiting
