"""Dead letters: the message as it was, on another topic, with where it came from and the reason in its headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.adapters.sources.kafka.counting import Counts
from semel.adapters.sources.kafka.lanes import Held
from semel.adapters.sources.kafka.options import LETTER_TIMEOUT_S, Options
from semel.adapters.sources.kafka.sending import TOO_LARGE, Header, Sender
from semel.adapters.sources.kafka.steps import Observer, Step
from semel.values.log import log
from semel.values.retry import backoff_s

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

PREFIX = "semel."
REASON_MAX_BYTES = 2_000
ANY_SIZE = 1_000_000_000  # the most that librdkafka takes: what is too large, the broker decides
CUT_FIRST = 512 * 1024  # what every broker takes as it comes, with headers to spare; then half of it, and so on
BACKOFF_CAP_S = 30.0


class Letter:
    """A message that nobody can act on, on its way to the dead letters."""

    __slots__ = ("failures", "held", "keep", "message", "reason", "size")

    def __init__(self, held: Held, message: Message, reason: str) -> None:
        self.held = held
        self.message = message
        self.reason = reason
        self.size = len(message.value() or b"")
        self.keep = self.size  # bytes of the body
        self.failures = 0

    @property
    def whole(self) -> bool:
        return self.keep == self.size

    @property
    def value(self) -> bytes | None:
        value = self.message.value()
        return value if value is None or self.whole else value[: self.keep]

    def cut(self) -> bool:
        """Make it smaller; False: it has nothing more to give."""
        if self.keep == 0:
            return False
        self.keep = min(self.keep // 2, CUT_FIRST)
        return True

    def headers(self) -> list[Header]:
        lane = self.held.lane
        ours = {
            "topic": lane.topic,
            "partition": str(lane.partition),
            "offset": str(self.held.offset),
            "reason": self.reason or "rejected",
        }
        theirs = [(name, value) for name, value in headers_of(self.message) if not name.startswith(PREFIX)]
        if not self.whole:
            theirs = []
            ours["truncated"] = str(self.size)
        return [*theirs, *((PREFIX + name, _bytes(text)) for name, text in ours.items())]

    def key(self) -> bytes | None:
        return self.message.key() if self.whole or self.keep else None

    def timestamp(self) -> int:
        kind, at_ms = self.message.timestamp()
        return at_ms if kind and at_ms > 0 else 0


class Letters:
    """Sends them one by one. `settle` is called on the loop when one is durable, and never before; `forget` where its
    message is no longer ours to settle."""

    def __init__(
        self,
        options: Options,
        topic: str,
        *,
        settle: Callable[[Held], None],
        forget: Callable[[Held], None],
        counts: Counts,
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
        # A batch that is too large would be refused as a whole: each letter is a batch of its own.
        settings = options.producer(LETTER_TIMEOUT_S, **{"message.max.bytes": ANY_SIZE, "linger.ms": 0})
        self._sender = Sender(options, settings | {"batch.num.messages": 1}, f"dead letters of Kafka, {topic}")
        self._under_way: set[Letter] = set()
        self._none = asyncio.Event()
        self._closing = False
        self._closed = False

    def send(self, held: Held, reason: str) -> None:
        if held.message is not None:
            letter = Letter(held, held.message, reason)
            self._under_way.add(letter)
            self._send(letter)

    async def close(self, within_s: float) -> None:
        """Waits for those that are under way. What does not become durable in time comes again."""
        self._closing = True
        self._look()
        try:
            async with asyncio.timeout(within_s):
                await self._none.wait()
        except TimeoutError:
            log.warning("messages_unanswered", source=self._topic, messages=len(self._under_way))
        finally:
            self._closed = True
            await self._sender.close(0.1)

    def _send(self, letter: Letter) -> None:
        if self._closed:  # not settled: it comes again
            return
        if letter.held.lane.gone:  # somebody else has it by now, or gets it: it must not count as settled
            self._over(letter, self._forget)
            return
        self._observe(Step.BEFORE_LETTER)
        try:
            self._sender.send(
                self._topic,
                letter.value,
                key=letter.key(),
                headers=letter.headers(),
                timestamp=letter.timestamp(),
                report=lambda error: self._reported(letter, error),
            )
        except Exception as error:  # no producer can be made, or it does not take this: nobody else holds the message
            self._later(letter, f"{type(error).__name__}: {error}")

    def _reported(self, letter: Letter, error: KafkaError | None) -> None:
        if error is None:
            self._observe(Step.AFTER_LETTER)
            self._counts.letters += 1
            log.warning("message_dead_lettered", message_id=str(letter.held), dead_letters=self._topic)
            self._over(letter, self._settle)
        elif error.name() == TOO_LARGE and letter.cut():
            self._send(letter)
        elif self._closing:
            self._under_way.discard(letter)  # not settled: it comes again
            self._look()
        else:
            self._later(letter, f"{error.name()}: {error.str()}")

    def _later(self, letter: Letter, why: str) -> None:
        letter.failures += 1
        self._counts.failures += 1
        fields = {"message_id": str(letter.held), "dead_letters": self._topic, "failures": letter.failures}
        log.error("message_dead_letter_failed", **fields, error=self._options.plain(why))
        after_s = backoff_s(letter.failures, self._random, cap_s=BACKOFF_CAP_S)
        asyncio.get_running_loop().call_later(after_s, self._send, letter)

    def _over(self, letter: Letter, leave: Callable[[Held], None]) -> None:
        self._under_way.discard(letter)
        leave(letter.held)
        self._look()

    def _look(self) -> None:
        if not self._under_way and self._closing:
            self._none.set()


def headers_of(message: Message) -> list[Header]:
    """As they came; none where librdkafka cannot read them."""
    try:
        return list(message.headers() or ())  # type: ignore[arg-type]
    except (UnicodeError, ValueError):
        return []


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:REASON_MAX_BYTES].decode("utf-8", "ignore").encode()
