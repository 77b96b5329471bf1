"""Dead letters on another topic: the unchanged message, with its origin and the reason in its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.sources.kafka_topic.in_flight import KafkaMessage
from semel.sources.kafka_topic.options import DEAD_LETTER_TIMEOUT_S, DriverOptions
from semel.sources.kafka_topic.poller import KafkaCounts, KafkaStep
from semel.sources.kafka_topic.publisher import BATCH_TOO_LARGE, Header, KafkaSender
from semel.sources.lifecycle import Observer
from semel.values.log import log
from semel.values.retry import backoff_s

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

PREFIX = "semel."
REASON_MAX_BYTES = 2_000
ANY_SIZE = 1_000_000_000  # the maximum of librdkafka: the broker decides what is too large
CUT_FIRST = 512 * 1024  # every broker accepts this by default, with headers; then half of it, and so on
BACKOFF_CAP_S = 30.0


class KafkaDeadLetter:
    """A rejected message on its way to the dead-letter topic."""

    __slots__ = ("failures", "kept_bytes", "message", "reason", "record", "size")

    def __init__(self, message: KafkaMessage, record: Message, reason: str) -> None:
        self.message = message
        self.record = record
        self.reason = reason
        self.size = len(record.value() or b"")
        self.kept_bytes = self.size  # bytes of the body
        self.failures = 0

    @property
    def whole(self) -> bool:
        return self.kept_bytes == self.size

    @property
    def value(self) -> bytes | None:
        value = self.record.value()
        return value if value is None or self.whole else value[: self.kept_bytes]

    def cut(self) -> bool:
        """Cut the body. False: nothing is left to cut."""
        if self.kept_bytes == 0:
            return False
        self.kept_bytes = min(self.kept_bytes // 2, CUT_FIRST)
        return True

    def headers(self) -> list[Header]:
        lane = self.message.lane
        reason = self.reason.encode("utf-8", "replace")[:REASON_MAX_BYTES].decode("utf-8", "ignore")
        ours = {
            "topic": lane.topic,
            "partition": str(lane.partition),
            "offset": str(self.message.offset),
            "reason": reason or "rejected",
        }
        theirs = [(name, value) for name, value in headers_of(self.record) if not name.startswith(PREFIX)]
        if not self.whole:
            theirs = []
            ours["truncated"] = str(self.size)
        return [*theirs, *((PREFIX + name, text.encode("utf-8", "replace")) for name, text in ours.items())]

    def key(self) -> bytes | None:
        return self.record.key() if self.whole or self.kept_bytes else None

    def timestamp(self) -> int:
        kind, at_ms = self.record.timestamp()
        return at_ms if kind and at_ms > 0 else 0


class DeadLetterTopic:
    """Sends dead letters one by one.

    `settle` is called on the loop when a dead letter is durable, and never before. `forget` is called instead if the
    partition of its message was revoked.
    """

    def __init__(
        self,
        options: DriverOptions,
        topic: str,
        *,
        settle: Callable[[KafkaMessage], None],
        forget: Callable[[KafkaMessage], None],
        counts: KafkaCounts,
        observe: Observer,
        random: Callable[[], float],
    ) -> None:
        self._topic = topic
        self._settle = settle
        self._forget = forget
        self._counts = counts
        self._observe = observe
        self._random = random
        self._options = options
        # The broker refuses a batch that is too large as a whole, so each dead letter is its own batch.
        settings = options.producer(DEAD_LETTER_TIMEOUT_S, **{"message.max.bytes": ANY_SIZE, "linger.ms": 0})
        self._sender = KafkaSender(options, settings | {"batch.num.messages": 1}, f"dead letters of Kafka, {topic}")
        self._unconfirmed: set[KafkaDeadLetter] = set()
        self._drained = asyncio.Event()
        self._closing = False
        self._closed = False

    def send(self, message: KafkaMessage, reason: str) -> None:
        if message.record is not None:
            dead_letter = KafkaDeadLetter(message, message.record, reason)
            self._unconfirmed.add(dead_letter)
            self._send(dead_letter)

    async def close(self, within_s: float) -> None:
        """Wait for unconfirmed dead letters. The message of one that is not durable in time is redelivered."""
        self._closing = True
        self._check_drained()
        try:
            async with asyncio.timeout(within_s):
                await self._drained.wait()
        except TimeoutError:
            log.warning("messages_unanswered", source=self._topic, messages=len(self._unconfirmed))
        finally:
            self._closed = True
            await self._sender.close(0.1)

    def _send(self, dead_letter: KafkaDeadLetter) -> None:
        if self._closed:  # not settled: the message is redelivered
            return
        if dead_letter.message.lane.gone:  # another consumer receives it: it must not count as settled
            self._finish(dead_letter, self._forget)
            return
        self._observe(KafkaStep.BEFORE_DEAD_LETTER)
        try:
            self._sender.send(
                self._topic,
                dead_letter.value,
                key=dead_letter.key(),
                headers=dead_letter.headers(),
                timestamp=dead_letter.timestamp(),
                report=lambda error: self._reported(dead_letter, error),
            )
        except Exception as error:  # no producer, or it refuses the message: only this process still has it
            self._retry_later(dead_letter, f"{type(error).__name__}: {error}")

    def _reported(self, dead_letter: KafkaDeadLetter, error: KafkaError | None) -> None:
        if error is None:
            self._observe(KafkaStep.AFTER_DEAD_LETTER)
            self._counts.dead_letters += 1
            log.warning("message_dead_lettered", message_id=str(dead_letter.message), dead_letters=self._topic)
            self._finish(dead_letter, self._settle)
        elif error.name() == BATCH_TOO_LARGE and dead_letter.cut():
            self._send(dead_letter)
        elif self._closing:
            self._unconfirmed.discard(dead_letter)  # not settled: the message is redelivered
            self._check_drained()
        else:
            self._retry_later(dead_letter, f"{error.name()}: {error.str()}")

    def _retry_later(self, dead_letter: KafkaDeadLetter, error: str) -> None:
        dead_letter.failures += 1
        self._counts.failures += 1
        fields = {"message_id": str(dead_letter.message), "dead_letters": self._topic, "failures": dead_letter.failures}
        log.error("message_dead_letter_failed", **fields, error=self._options.redact(error))
        after_s = backoff_s(dead_letter.failures, self._random, cap_s=BACKOFF_CAP_S)
        asyncio.get_running_loop().call_later(after_s, self._send, dead_letter)

    def _finish(self, dead_letter: KafkaDeadLetter, leave: Callable[[KafkaMessage], None]) -> None:
        self._unconfirmed.discard(dead_letter)
        leave(dead_letter.message)
        self._check_drained()

    def _check_drained(self) -> None:
        if not self._unconfirmed and self._closing:
            self._drained.set()


def headers_of(record: Message) -> list[Header]:
    """Headers of a message; none if librdkafka cannot read them."""
    try:
        return list(record.headers() or ())  # type: ignore[arg-type]
    except (UnicodeError, ValueError):
        return []
