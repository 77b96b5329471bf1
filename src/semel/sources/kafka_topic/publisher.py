"""Publishes to Kafka with an idempotent producer: dead letters, and forwarded events of `accept = "kafka"`."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from semel.ports import Fact
from semel.sources.kafka_topic.doctor import diagnose_topic
from semel.sources.kafka_topic.options import DriverOptions, check_servers, check_topic
from semel.sources.kafka_topic.poller import DebugLogger, driver, kafka_incident
from semel.values.errors import ConfigError
from semel.values.forwarded import METADATA_KEY, TOO_LARGE, ForwardedEvent, encode_metadata

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

ReportCallback: TypeAlias = "Callable[[KafkaError | None], None]"
Header: TypeAlias = tuple[str, str | bytes | None]

POLL_S = 0.1
BATCH_TOO_LARGE = "MSG_SIZE_TOO_LARGE"


class KafkaSender:
    """Producer whose delivery reports are called on the event loop of the first message, which opens it.

    Raises ConfigError if it cannot be opened.
    """

    def __init__(self, options: DriverOptions, settings: dict[str, Any], where: str) -> None:
        self._options = options
        self._settings = settings
        self._incident = kafka_incident(where)
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop
        self._reports: deque[tuple[ReportCallback, KafkaError | None]] = deque()  # from the thread, for the loop

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        report: ReportCallback,
        key: bytes | None = None,
        headers: list[Header] | None = None,
        timestamp: int = 0,
    ) -> None:
        """Send one message. `report` is called once on the loop, also if the message cannot be queued; no error means
        that the message is durable."""
        producer = self._producer or self._opened()
        kafka = driver()

        def delivered(error: KafkaError | None, record: Message) -> None:
            self._reports.append((report, error))

        try:
            producer.produce(topic, value, key, on_delivery=delivered, timestamp=timestamp, headers=headers or [])
        except kafka.KafkaException as refused:
            self._loop.call_soon(self._deliver_reports, [(report, refused.args[0])])
        except BufferError:
            full = kafka.KafkaError(kafka.KafkaError._QUEUE_FULL)
            self._loop.call_soon(self._deliver_reports, [(report, full)])

    async def close(self, within_s: float) -> None:
        """Wait for the reports. A message without a report by then is given up and reported as failed."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(_flush, producer, within_s)
            self._hand_over_reports()

    def _opened(self) -> Producer:
        kafka = driver()
        settings = self._settings | {"error_cb": self._on_error}
        try:
            producer: Producer = kafka.Producer(settings, logger=DebugLogger())
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka: {self._options.redact(error)}") from None
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        polling = threading.Thread(target=self._poll, args=(producer,), name="semel-kafka-sender", daemon=True)
        try:
            polling.start()
        except RuntimeError as error:  # without the thread no report would ever arrive
            self._producer = None
            raise ConfigError(f"Kafka: {error}") from None
        return producer

    def _poll(self, producer: Producer) -> None:
        """Poll until the producer is closed or replaced and has reported everything, at the latest when its messages
        time out."""
        while self._producer is producer or len(producer):
            producer.poll(POLL_S)
            self._hand_over_reports()

    def _hand_over_reports(self) -> None:
        reports = []
        with suppress(IndexError):  # the threads of a replaced and of a closed producer can run this concurrently
            while True:
                reports.append(self._reports.popleft())
        if reports:
            with suppress(RuntimeError):  # the loop has ended, and with it every caller
                self._loop.call_soon_threadsafe(self._deliver_reports, reports)

    def _deliver_reports(self, reports: Sequence[tuple[ReportCallback, KafkaError | None]]) -> None:
        for report, error in reports:
            if error is None:
                self._incident.resolve()
            elif error.fatal():
                self._producer = None  # the next message opens another
            report(error)

    def _on_error(self, error: KafkaError) -> None:
        self._incident.report(self._options.redact(f"{error.name()}: {error.str()}"), step="librdkafka retries")
        if error.fatal():
            self._producer = None


def _flush(producer: Producer, within_s: float) -> None:
    if producer.flush(within_s):
        producer.purge()
        producer.flush(0)


TIMEOUT_S = 5.0  # the sender of a webhook waits for the response
DRIVER_TIMEOUT_SHARE = 0.9  # librdkafka gives up first, so that its own error is reported


class KafkaPublisher:
    """Publishes events to one topic. The first `publish` opens it on its event loop.

    An event counts as published when all in-sync replicas have it.
    timeout: seconds after which an unconfirmed event is reported as not published.
    """

    def __init__(
        self, servers: str, topic: str, *, timeout: float = TIMEOUT_S, options: Mapping[str, str] | None = None
    ) -> None:
        check_servers(servers)
        check_topic("topic", topic)
        if not 0.1 <= timeout <= 300:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, at least 0.1 and at most 300")
        self.servers = servers
        self.topic = topic
        self._timeout_s = timeout
        self._options = DriverOptions(servers, options or {})
        settings = self._options.producer(timeout * DRIVER_TIMEOUT_SHARE, **{"allow.auto.create.topics": False})
        self._batched = KafkaSender(self._options, settings, f"Kafka, topic {topic}")
        # The broker refuses an oversized batch as a whole. Sending each event alone shows which one is too large.
        self._single = KafkaSender(
            self._options, settings | {"batch.num.messages": 1}, f"Kafka, topic {topic}, one by one"
        )

    async def publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        """Return one answer per event: empty when Kafka has it durably, else the reason."""
        answers: list[str | None] = [None] * len(events)
        left = len(events)
        all_answered = asyncio.Event()

        def answer(at: int, reason: str) -> None:
            nonlocal left
            answers[at] = reason
            left -= 1
            if not left:
                all_answered.set()

        def sent_alone(at: int, error: KafkaError | None) -> None:
            answer(at, self._reason(error))

        def sent_in_batch(at: int, error: KafkaError | None) -> None:
            if error is None or error.name() != BATCH_TOO_LARGE:
                answer(at, self._reason(error))
                return
            try:
                self._send(self._single, events[at], partial(sent_alone, at))
            except ConfigError as failed:
                answer(at, str(failed))

        try:
            for at, event in enumerate(events):
                self._send(self._batched, event, partial(sent_in_batch, at))
        except ConfigError as error:  # an option that librdkafka refuses
            return [str(error)] * len(events)
        try:
            async with asyncio.timeout(self._timeout_s):
                if events:
                    await all_answered.wait()
        except TimeoutError:
            pass
        late = f"Kafka, topic {self.topic}: no answer within {self._timeout_s:g} s; the event may be published"
        return [late if reason is None else reason for reason in answers]

    def _send(self, sender: KafkaSender, event: ForwardedEvent, report: ReportCallback) -> None:
        headers: list[Header] = [(METADATA_KEY, encode_metadata(event.metadata).encode())]
        if event.content_type:
            headers.append(("content-type", event.content_type.encode()))
        key = event.group.encode("utf-8", "surrogatepass") if event.group else None
        sender.send(self.topic, event.body, key=key, headers=headers, report=report)

    def _reason(self, error: KafkaError | None) -> str:
        if error is None:
            return ""
        if error.name() == BATCH_TOO_LARGE:
            return f"{TOO_LARGE}Kafka, topic {self.topic}, refuses messages of this size (message.max.bytes)"
        return f"Kafka, topic {self.topic}: {self._options.redact(error.str())}"

    async def diagnose(self) -> list[Fact]:
        """Facts about the topic for `semel doctor`. The publisher need not be open."""
        return await asyncio.to_thread(diagnose_topic, self._options, self.servers, self.topic)

    async def close(self) -> None:
        """Wait for running calls, then disconnect."""
        await self._batched.close(self._timeout_s)
        await self._single.close(self._timeout_s)
