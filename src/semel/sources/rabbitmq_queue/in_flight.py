"""Messages of RabbitMQ in flight: delivered on an open channel, and not yet answered."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from pamqp.commands import Basic

if TYPE_CHECKING:
    from semel.sources.rabbitmq_queue.session import RabbitSession

ID_MAX_CHARS = 80


class RabbitMessage:
    """One delivery of a message."""

    __slots__ = ("answered", "body", "exchange", "properties", "received_at", "routing_key", "session", "tag")

    def __init__(self, session: RabbitSession, received: Any, received_at: float) -> None:
        """`received` is the driver's message."""
        self.session = session
        self.body: bytes = received.body
        self.properties: Basic.Properties = received.header.properties
        self.tag: int = received.delivery.delivery_tag
        self.exchange: str = received.delivery.exchange or ""
        self.routing_key: str = received.delivery.routing_key or ""
        self.received_at = received_at
        self.answered = False  # its answer is decided, and perhaps not sent yet

    @property
    def id(self) -> str:
        """Id for log lines. The sender chose it, so it is quoted and cut: it cannot break a line of the log."""
        id = self.properties.message_id
        return repr(id)[:ID_MAX_CHARS] if id else f"without id (delivery {self.tag})"

    @property
    def returns(self) -> int:
        """How often any consumer returned it. Only quorum queues count; other queues have no limit either."""
        count = self.header("x-delivery-count")
        return count if type(count) is int and count > 0 else 0

    def header(self, name: str) -> Any:
        return (self.properties.headers or {}).get(name)


class RabbitInFlight:
    """Messages in flight, in the order of arrival. The broker bounds them: it delivers no more than the prefetch."""

    def __init__(self) -> None:
        self._messages: dict[RabbitMessage, None] = {}
        self._ready: deque[RabbitMessage] = deque()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: RabbitMessage) -> None:
        self._messages[message] = None
        self._ready.append(message)
        self.wake()

    def take(self, limit: int) -> list[RabbitMessage]:
        """Remove and return up to `limit` messages that are ready for delivery."""
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def take_waiting(self) -> list[RabbitMessage]:
        """Remove and return every message that was not delivered to a worker, in order."""
        return self.take(len(self._ready))

    def older_than(self, moment: float) -> list[RabbitMessage]:
        """Unanswered messages that arrived before this moment."""
        return [message for message in self._messages if message.received_at <= moment and not message.answered]

    def unanswered(self) -> list[RabbitMessage]:
        return [message for message in self._messages if not message.answered]

    def forget(self, message: RabbitMessage) -> None:
        """Remove a message whose answer the broker has, or can no longer get."""
        message.answered = True
        self._messages.pop(message, None)

    def lose_session(self, session: RabbitSession) -> int:
        """Remove the messages of a closed channel: the broker redelivers them. Returns their number."""
        lost = [message for message in self._messages if message.session is session]
        for message in lost:
            self.forget(message)
        self._ready = deque(message for message in self._ready if message.session is not session)
        return len(lost)

    def withdraw(self, message: RabbitMessage) -> None:
        """Do not deliver a message to a worker, if that has not happened yet."""
        if message in self._ready:
            self._ready.remove(message)

    async def changed(self) -> None:
        """Wait until a message arrives or `wake` is called."""
        await self._changed.wait()

    def wake(self) -> None:
        """Wake every waiter of `changed`."""
        self._changed.set()
        self._changed = asyncio.Event()
