"""The parts that all sources share: options, messages in flight, deliveries, and the life of a source.

    receive ─▶ _open (one task for all callers) ─▶ deliveries ─▶ answers ─▶ stop ─▶ close (one task for all callers)

Kafka opens and closes in its own way, because its consumer runs in a separate thread.
"""

from __future__ import annotations

import asyncio
import random as _random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from semel.ports import Delivery, Fact
from semel.values.errors import MalformedEvent
from semel.values.event import DecodeOptions
from semel.values.forwarded import ForwardMetadata
from semel.values.log import log
from semel.values.retry import backoff_s

Observer: TypeAlias = Callable[[str], None]
"""Called with each step between which a consumer can die. The crash tests kill the process at every step."""

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 20.0  # a source resumes at most this long after an outage ends


TRUSTED_METADATA = Fact("forwarded", "every sender with access to this queue can set any tenant (trusted metadata)")


class SourceOptions(Struct, frozen=True, kw_only=True):
    """Options of every source.

    dead_letters: the queue or topic for rejected messages.
    tenant, decode_options: of its events; without decode options, those of the app apply.
    forwarded: endpoints of Semel fill this source. The metadata of a message sets its tenant and decode options, so
        every sender with access to the broker is trusted. Messages without metadata are processed as usual.
    """

    dead_letters: str = ""
    tenant: str = ""
    decode_options: DecodeOptions | None = None
    forwarded: bool = False


class QueueMessage(Protocol):
    """A received message, whatever its broker."""

    answered: bool  # its answer is decided, and perhaps not sent yet


M = TypeVar("M", bound=QueueMessage)
M_contra = TypeVar("M_contra", bound=QueueMessage, contravariant=True)


class ReadyMessages(Generic[M]):
    """Messages that are ready for delivery to a worker, in order."""

    def __init__(self) -> None:
        self._ready: deque[M] = deque()
        self._changed = asyncio.Event()
        self._awaited = False

    def take(self, limit: int) -> list[M]:
        """Remove and return up to `limit` messages that are ready for delivery."""
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    async def changed(self) -> None:
        """Wait until a message was added or removed, or until `wake` is called."""
        self._awaited = True
        await self._changed.wait()

    def wake(self) -> None:
        """Wake every waiter of `changed`."""
        if self._awaited:  # usually false, and this is called for each message
            self._changed.set()
            self._changed = asyncio.Event()
            self._awaited = False


class InFlight(ReadyMessages[M]):
    """Messages that were received and whose answer has not reached the broker, in the order of receipt."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: dict[M, None] = {}

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def unanswered(self) -> list[M]:
        return [message for message in self._messages if not message.answered]

    def take_waiting(self) -> list[M]:
        """Remove and return every message that was not delivered to a worker, in order."""
        return self.take(len(self._ready))

    def forget(self, message: M) -> None:
        """Remove a message whose answer the broker has, or can no longer get."""
        message.answered = True
        self._messages.pop(message, None)


class Answers(Protocol[M_contra]):
    """Sends answers to a broker. Only `drained` waits for the network."""

    def ack(self, message: M_contra) -> None: ...

    def retry(self, message: M_contra, after_s: float) -> None: ...

    def reject(self, message: M_contra, reason: str) -> None: ...


class ReturningAnswers(Answers[M_contra], Protocol[M_contra]):
    """Answers of a broker that takes messages back."""

    def return_unused(self, unused: Iterable[M_contra]) -> None:
        """Return messages to the queue, at once and in order."""

    async def drained(self) -> None:
        """Wait until every answer is sent or given up."""

    def cancel(self) -> None: ...


class QueueDelivery(Delivery, Generic[M]):
    """One delivery of a message. An answer is queued for sending when its call returns.

    Only the first answer counts, and none if the source has already returned the message to the broker.
    """

    __slots__ = ("_answers", "_message", "body", "decode_options", "headers", "receives", "tenant")

    def __init__(
        self,
        answers: Answers[M],
        message: M,
        body: bytes,
        options: SourceOptions,
        metadata: ForwardMetadata | None,
        receives: int = 1,
    ) -> None:
        """`metadata` marks an event that an endpoint of Semel forwarded: it replaces the source's own options."""
        self._answers = answers
        self._message: M | None = message
        self.body = body
        self.receives = receives
        self.tenant = options.tenant if metadata is None else metadata.tenant
        self.decode_options = options.decode_options if metadata is None else metadata.decode_options
        self.headers = None if metadata is None else metadata.headers

    async def ack(self) -> None:
        message, self._message = self._message, None
        if message is not None and not message.answered:
            self._answers.ack(message)

    async def retry(self, after_s: float) -> None:
        message, self._message = self._message, None
        if message is not None and not message.answered:
            self._answers.retry(message, after_s)

    async def reject(self, reason: str) -> None:
        message, self._message = self._message, None
        if message is not None and not message.answered:
            self._answers.reject(message, reason)


class QueueSource(ABC, Generic[M]):
    """Opens a source with the first `receive` and closes it once, however many workers share it.

    Opening and closing run in tasks of their own, so that the cancellation of one caller does not end them.
    """

    _in_flight: ReadyMessages[M]
    _answers: Answers[M]

    def __init__(self, random: Callable[[], float] | None, observe: Observer | None) -> None:
        self._random = random or _random.random
        self._observe: Observer = observe or (lambda _: None)
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opened = False
        self._stopping = False
        self._stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []  # an error of one of them is raised by `receive`

    @abstractmethod
    async def _open_once(self) -> None:
        """Connect, check the queues and start receiving. Sets `_opened`."""

    @abstractmethod
    def _delivery(self, message: M) -> QueueDelivery[M]:
        """Build a delivery. Raises MalformedEvent for a message without a readable event."""

    @abstractmethod
    def _return_waiting(self) -> None:
        """Stop receiving, and return messages that were not delivered to a worker."""

    @abstractmethod
    async def _close_once(self) -> None:
        """Send every answer, return the rest to the queue and disconnect. Called for an opened source only."""

    async def receive(self, limit: int) -> Sequence[QueueDelivery[M]]:
        """Return up to `limit` deliveries, after waiting for the first; empty when the source is stopped.

        Raises ConfigError for a problem that needs a change by an operator, such as a missing queue or permission.
        """
        await self._open()
        while not self._stopping:
            while taken := self._in_flight.take(limit):
                if deliveries := self._deliveries(taken):  # none if all of them became dead letters
                    return deliveries
            self._raise_failure()
            await self._in_flight.changed()
        return []

    def _deliveries(self, taken: Sequence[M]) -> list[QueueDelivery[M]]:
        deliveries = []
        for message in taken:
            try:
                deliveries.append(self._delivery(message))
            except MalformedEvent as error:
                self._answers.reject(message, str(error))
        return deliveries

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _open(self) -> None:
        if self._opened or self._stopping:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_once())
        opening = self._opening
        await asyncio.wait([opening])
        if opening.done() and not opening.cancelled() and opening.exception() is not None:
            if self._opening is opening:
                self._opening = None  # the next receive tries again
            opening.result()

    async def _pause(self, failures: int) -> None:
        """Wait until the source is stopped, at most the backoff. Full jitter keeps many consumers from resuming at the
        same moment."""
        try:
            async with asyncio.timeout(backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def stop(self) -> None:
        """Stop delivering. Waiting receives return empty, and undelivered messages go back to the queue at once.

        Delivered messages can still be answered. Call it on the source's loop.
        """
        if self._stopping:
            return
        self._stopping = True
        self._stopped.set()
        if self._opened:
            self._return_waiting()
            self._in_flight.wake()
        elif self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Stop, send every answer, return unanswered messages to the queue and disconnect.

        Closing continues when its caller is cancelled: an open connection would keep messages from other consumers.
        """
        self.stop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_opened())
        await asyncio.shield(self._closing)

    async def _close_opened(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._opened:
            self._opened = False
            await self._close_once()


async def return_and_drain(in_flight: InFlight[M], answers: ReturningAnswers[M], within_s: float, source: str) -> None:
    """Return unanswered messages and wait for all answers. Answers that are late are given up: the broker redelivers
    their messages."""
    answers.return_unused(in_flight.unanswered)
    try:
        async with asyncio.timeout(within_s):
            await answers.drained()
    except TimeoutError:
        log.warning("messages_unanswered", source=source, messages=len(in_flight))
        answers.cancel()
