"""Kafka topics as a source of deliveries.

    poller (a thread) → in flight → receive → (the worker) → ack, retry, reject → positions → commits

A thread polls the consumer and fills the bounded set of messages in flight. The worker takes from it. Answers do not
wait for the network: they move positions. The thread commits each position up to the lowest unsettled message of its
partition. After a crash, consumption resumes there: unsettled messages are redelivered.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.ports import Delivery, Fact
from semel.sources.kafka_topic.dead_letters import DeadLetterTopic, headers_of
from semel.sources.kafka_topic.doctor import diagnose
from semel.sources.kafka_topic.in_flight import KafkaInFlight, KafkaMessage
from semel.sources.kafka_topic.options import KafkaOptions, check_options
from semel.sources.kafka_topic.poller import KafkaCounts, KafkaStep, Poller
from semel.sources.kafka_topic.publisher import Header
from semel.sources.lifecycle import Observer
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.event import DecodeOptions
from semel.values.forwarded import METADATA_KEY, read_metadata
from semel.values.log import log

IN_FLIGHT = 1_000
BEHIND = 10  # times max_in_flight
DRAIN_S = 10.0  # for the dead letters that are not sent at close
CLOSE_S = 15.0  # for the last commit and for leaving the group
TOMBSTONE = "the message has no value: a tombstone of a compacted topic is no event"


class KafkaDelivery(Delivery):
    """One delivery of a message. An answer counts when its call returns; the offset is committed soon after."""

    __slots__ = ("_message", "_source", "body", "decode_options", "headers", "tenant")

    def __init__(self, source: KafkaSource, message: KafkaMessage, body: bytes) -> None:
        self.body = body
        self.tenant = source.tenant
        self.decode_options = source.decode_options
        self.headers: Mapping[str, str] | None = None
        self._source = source
        self._message: KafkaMessage | None = message

    async def ack(self) -> None:
        if (message := self._message) is not None:
            self._message = None
            self._source._settle(message)

    async def retry(self, after_s: float) -> None:
        if (message := self._message) is not None:
            self._message = None
            self._source._retry(message, after_s)

    async def reject(self, reason: str) -> None:
        if (message := self._message) is not None:
            self._message = None
            self._source._dead_letter(message, reason)


class KafkaSource:
    """Receives from topics as a member of a consumer group. The first `receive` opens it on its event loop; several
    workers can share it.

    servers: the bootstrap servers, "broker1:9092,broker2:9092".
    dead_letters: the topic for rejected messages; it must exist.
    in_order: messages of one key run one after the other, also after failures.
    max_in_flight: messages that are received and not settled, including those that wait for a retry.
    max_behind: how far a partition is read beyond its lowest unsettled message; by default ten times max_in_flight.
    reading: decode options of these topics, if they differ from the app's.
    forwarded: endpoints of Semel fill these topics. The metadata of a message sets its tenant and decode options, so
        every producer with access to the topics is trusted.
    options: options of librdkafka, for example TLS and SASL.
    """

    def __init__(
        self,
        servers: str,
        topics: Sequence[str],
        *,
        group: str,
        dead_letters: str = "",
        in_order: bool = False,
        max_in_flight: int = IN_FLIGHT,
        max_behind: int | None = None,
        tenant: str = "",
        decode_options: DecodeOptions | None = None,
        forwarded: bool = False,
        options: Mapping[str, str] | None = None,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
    ) -> None:
        behind = BEHIND * max_in_flight if max_behind is None else max_behind
        check_options(servers, topics, group, dead_letters, max_in_flight, behind)
        self.servers = servers
        self.topics = tuple(topics)
        self.group = group
        self.dead_letters = dead_letters
        self.tenant = tenant
        self.decode_options = decode_options
        self._forwarded = forwarded
        self._in_order = in_order
        self._max_in_flight = max_in_flight
        self._max_behind = behind
        self._options = KafkaOptions(servers, options or {})
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._counts = KafkaCounts()
        self._loop: asyncio.AbstractEventLoop
        self._in_flight: KafkaInFlight
        self._dead_letter_topic: DeadLetterTopic
        self._poller: Poller | None = None
        self._poller_ended: asyncio.Event
        self._stopping = False

    @property
    def counts(self) -> KafkaCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the topics for `semel doctor`. The source need not be open."""
        return await asyncio.to_thread(
            diagnose, self._options, self.servers, self.topics, self.group, self.dead_letters
        )

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[KafkaDelivery]:
        """Return up to `limit` deliveries, after waiting for the first; empty when the source is stopped.

        Raises ConfigError for a problem that needs a change by an operator: a missing topic or permission, refused
        credentials, a consumer that the group has fenced.
        """
        poller = self._open()
        while not self._stopping and poller is not None:
            if taken := self._in_flight.take(limit):
                if deliveries := self._deliveries(taken):
                    return deliveries
                continue
            if poller.failure is not None:
                raise poller.failure
            await self._in_flight.changed()
        return []

    def _open(self) -> Poller | None:
        if self._stopping or (self._poller is not None and self._poller.failure is None):
            return self._poller
        if self._poller is None:
            self._loop = asyncio.get_running_loop()
            self._in_flight = KafkaInFlight(in_order=self._in_order)
            self._dead_letter_topic = DeadLetterTopic(
                self._options,
                self.dead_letters,
                settle=self._settle,
                forget=self._in_flight.forget,
                counts=self._counts,
                observe=self._observe,
                random=self._random,
            )
        poller_ended = self._poller_ended = asyncio.Event()

        def ended() -> None:
            poller_ended.set()
            self._in_flight.wake()

        self._poller = Poller(
            self._options,
            self.topics,
            self.group,
            self.dead_letters,
            in_flight=self._in_flight,
            max_in_flight=self._max_in_flight,
            max_behind=self._max_behind,
            counts=self._counts,
            observe=self._observe,
            call_on_loop=self._call_on_loop,
            ended=ended,
        )
        self._poller.start()
        return self._poller

    def _call_on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Run a function on the event loop. The poller's thread calls this."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed before this source
            if self._poller is not None:
                self._poller.ending = True

    def _deliveries(self, taken: Sequence[KafkaMessage]) -> list[KafkaDelivery]:
        deliveries = []
        for message in taken:
            try:
                deliveries.append(self._delivery(message))
            except MalformedEvent as error:
                self._dead_letter(message, str(error))
        return deliveries

    def _delivery(self, message: KafkaMessage) -> KafkaDelivery:
        """Build a delivery. Raises MalformedEvent for a message that has no event."""
        body = None if message.record is None else message.record.value()
        headers = [] if message.record is None else headers_of(message.record)
        metadata = read_metadata(_metadata_header(headers), self._forwarded) if headers else None
        if headers and metadata is None:
            body = from_message(body, headers) or body  # a binary-mode CloudEvent can have no data
        if body is None:
            raise MalformedEvent(TOMBSTONE)
        delivery = KafkaDelivery(self, message, body)
        if metadata is not None:
            delivery.tenant, delivery.decode_options, delivery.headers = (
                metadata.tenant,
                metadata.decode_options,
                metadata.headers,
            )
        return delivery

    # -------------------------------------------------------------------------------------------------- answering

    def _settle(self, message: KafkaMessage) -> None:
        self._in_flight.settle(message)
        self._counts.settled += 1

    def _retry(self, message: KafkaMessage, after_s: float) -> None:
        self._counts.retried += 1
        if not self._stopping:  # else it is redelivered from its uncommitted offset
            self._in_flight.wait(message, after_s)
            self._observe(KafkaStep.WAITING)

    def _dead_letter(self, message: KafkaMessage, reason: str) -> None:
        self._dead_letter_topic.send(message, reason)

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """Stop delivering. Waiting receives return empty, and delivered messages can still be answered.

        Call it on the source's loop.
        """
        if self._stopping:
            return
        self._stopping = True
        if self._poller is not None:
            self._poller.stop_receiving = True
            self._in_flight.clear()
            self._in_flight.wake()

    async def close(self) -> None:
        """Stop, commit every answer and leave the group. Unanswered messages are redelivered to the group."""
        self.stop()
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
            log.warning("kafka_commit_lost", group=self.group)


def _metadata_header(headers: Sequence[Header]) -> str | bytes | None:
    """Value of the metadata header. None: the message has none, and the source's own settings apply."""
    for name, value in headers:
        if name == METADATA_KEY:
            return value or b""
    return None
