"""Kafka topics as a source of deliveries.

    poller (a thread) → in flight → receive → (the worker) → ack, retry, reject → positions → commits

A thread polls the consumer and fills the bounded set of messages in flight. The worker takes from it. Answers do not
wait for the network: they move positions. The thread commits each position up to the lowest unsettled message of its
partition. After a crash, consumption resumes there: unsettled messages are redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.ports import Fact
from semel.sources.kafka_topic.dead_letters import DeadLetterTopic, headers_of
from semel.sources.kafka_topic.doctor import diagnose
from semel.sources.kafka_topic.in_flight import KafkaInFlight, KafkaMessage
from semel.sources.kafka_topic.options import DriverOptions, KafkaOptions
from semel.sources.kafka_topic.poller import KafkaCounts, KafkaStep, Poller
from semel.sources.lifecycle import Observer, QueueDelivery, QueueSource
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.forwarded import METADATA_KEY, read_metadata
from semel.values.log import log

DRAIN_S = 10.0  # for the dead letters that are not sent at close
CLOSE_S = 15.0  # for the last commit and for leaving the group
TOMBSTONE = "the message has no value: a tombstone of a compacted topic is not an event"


class KafkaSource(QueueSource[KafkaMessage]):
    """Receives from topics as a member of a consumer group. The first `receive` opens it on its event loop; several
    workers can share it.

    `options` are those of KafkaOptions. Raises ConfigError.
    """

    _in_flight: KafkaInFlight

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        *,
        options: Mapping[str, str] | None = None,
        random: Callable[[], float] | None = None,
        observe: Observer | None = None,
        **more: Any,
    ) -> None:
        super().__init__(random, observe)
        self.options = KafkaOptions(servers=servers, topics=topics, options=options or {}, **more)
        self._driver_options = DriverOptions(servers, self.options.options)
        self._counts = KafkaCounts()
        self._answers = self
        self._loop: asyncio.AbstractEventLoop
        self._dead_letter_topic: DeadLetterTopic
        self._poller: Poller | None = None
        self._poller_ended: asyncio.Event

    @property
    def counts(self) -> KafkaCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the topics for `semel doctor`. The source need not be open."""
        return await asyncio.to_thread(diagnose, self.options, self._driver_options)

    # -------------------------------------------------------------------------------------------------- receiving

    def _raise_failure(self) -> None:
        if self._poller is not None and self._poller.failure is not None:
            raise self._poller.failure

    async def _open(self) -> None:
        """Start a poller, also after the previous one has failed."""
        if not self._stopping and (self._poller is None or self._poller.failure is not None):
            await self._open_once()

    async def _open_once(self) -> None:
        if self._poller is None:
            self._loop = asyncio.get_running_loop()
            self._in_flight = KafkaInFlight(in_order=self.options.in_order)
            self._dead_letter_topic = DeadLetterTopic(
                self._driver_options,
                self.options.dead_letters,
                settle=self.ack,
                forget=self._in_flight.forget,
                counts=self._counts,
                observe=self._observe,
                random=self._random,
            )
            self._opened = True
        poller_ended = self._poller_ended = asyncio.Event()

        def ended() -> None:
            poller_ended.set()
            self._in_flight.wake()

        self._poller = Poller(
            self.options,
            self._driver_options,
            in_flight=self._in_flight,
            counts=self._counts,
            observe=self._observe,
            call_on_loop=self._call_on_loop,
            ended=ended,
        )
        self._poller.start()

    def _call_on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the event loop. The poller's thread calls this."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed before this source
            if self._poller is not None:
                self._poller.ending = True

    def _delivery(self, message: KafkaMessage) -> QueueDelivery[KafkaMessage]:
        body = None if message.record is None else message.record.value()
        headers = [] if message.record is None else headers_of(message.record)
        text = next((value or b"" for name, value in headers if name == METADATA_KEY), None)
        metadata = read_metadata(text, self.options.forwarded)
        if headers and metadata is None:
            body = from_message(body, headers) or body  # a binary-mode CloudEvent can have no data
        if body is None:
            raise MalformedEvent(TOMBSTONE)
        return QueueDelivery(self, message, body, self.options, metadata)

    # ------------------------------------------------------------------------------------- answers of its deliveries

    def ack(self, message: KafkaMessage) -> None:
        self._in_flight.settle(message)
        self._counts.settled += 1

    def retry(self, message: KafkaMessage, after_s: float) -> None:
        self._counts.retried += 1
        if not self._stopping:  # else it is redelivered from its uncommitted offset
            self._in_flight.wait(message, after_s)
            self._observe(KafkaStep.WAITING)

    def reject(self, message: KafkaMessage, reason: str) -> None:
        self._dead_letter_topic.send(message, reason)

    # ---------------------------------------------------------------------------------------------------- stopping

    def _return_waiting(self) -> None:
        if self._poller is not None:
            self._poller.stop_receiving = True
        self._in_flight.clear()

    async def _close_once(self) -> None:
        """Commit every answer and leave the group. Unanswered messages are redelivered to the group."""
        if (poller := self._poller) is None:
            return
        self._poller = None
        try:
            await self._dead_letter_topic.close(DRAIN_S)
        finally:  # also after a cancellation: a thread that polls on would keep its partitions forever
            poller.ending = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._poller_ended.wait()
        except TimeoutError:
            log.warning("kafka_commit_lost", group=self.options.group)
