"""An idempotent producer whose reports come back to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from semel.adapters.sources.kafka.options import Options
from semel.adapters.sources.kafka.telling import Complaints, Quiet, driver
from semel.values.errors import ConfigError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Report: TypeAlias = "Callable[[KafkaError | None], None]"
Header: TypeAlias = tuple[str, str | bytes | None]

POLL_S = 0.1
TOO_LARGE = "MSG_SIZE_TOO_LARGE"


class Sender:
    """Opened by the first message, on whose loop its reports are told. Raises ConfigError where it cannot be."""

    def __init__(self, options: Options, settings: dict[str, Any], where: str) -> None:
        self._options = options
        self._settings = settings
        self._complaints = Complaints(where, options)
        self._producer: Producer | None = None
        self._loop: asyncio.AbstractEventLoop
        self._told: deque[tuple[Report, KafkaError | None]] = deque()  # by the thread, and not yet handed over

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        report: Report,
        key: bytes | None = None,
        headers: list[Header] | None = None,
        timestamp: int = 0,
    ) -> None:
        """The report is told once, on the loop: no error means that the message is durable. Also when it cannot even
        be queued."""
        producer = self._producer or self._opened()
        kafka = driver()

        def told(error: KafkaError | None, message: Message) -> None:
            self._told.append((report, error))

        try:
            producer.produce(topic, value, key, on_delivery=told, timestamp=timestamp, headers=headers or [])
        except kafka.KafkaException as refused:
            self._loop.call_soon(self._tell, [(report, refused.args[0])])
        except BufferError:
            full = kafka.KafkaError(kafka.KafkaError._QUEUE_FULL)
            self._loop.call_soon(self._tell, [(report, full)])

    async def close(self, within_s: float) -> None:
        """Waits for the reports; what has none by then is given up, and reported so."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await asyncio.to_thread(_emptied, producer, within_s)
            self._hand_over()

    def _opened(self) -> Producer:
        kafka = driver()
        settings = self._settings | {"error_cb": self._error}
        try:
            producer: Producer = kafka.Producer(settings, logger=Quiet())
        except (kafka.KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka: {self._options.plain(error)}") from None
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        polling = threading.Thread(target=self._poll, args=(producer,), name="semel-kafka-sender", daemon=True)
        try:
            polling.start()
        except RuntimeError as error:  # without it nothing would ever be reported
            self._producer = None
            raise ConfigError(f"Kafka: {error}") from None
        return producer

    def _poll(self, producer: Producer) -> None:
        """Until it is closed or replaced, and everything was reported: at the latest when its messages time out."""
        while self._producer is producer or len(producer):
            producer.poll(POLL_S)
            self._hand_over()

    def _hand_over(self) -> None:
        told = []
        with suppress(IndexError):  # several threads hand over: of a producer that was replaced, of one that is closed
            while True:
                told.append(self._told.popleft())
        if told:
            with suppress(RuntimeError):  # the loop has ended: nobody waits for it
                self._loop.call_soon_threadsafe(self._tell, told)

    def _tell(self, told: Sequence[tuple[Report, KafkaError | None]]) -> None:
        for report, error in told:
            if error is None:
                self._complaints.over()
            elif error.fatal():
                self._producer = None  # the next message opens another
            report(error)

    def _error(self, error: KafkaError) -> None:
        self._complaints.add("librdkafka goes on trying", f"{error.name()}: {error.str()}")
        if error.fatal():
            self._producer = None


def _emptied(producer: Producer, within_s: float) -> None:
    if producer.flush(within_s):
        producer.purge()
        producer.flush(0)
