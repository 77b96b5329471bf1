"""Topics of Kafka as a source of deliveries.

    poller (a thread) → hand → receive → (the worker) → ack, retry, reject → positions → commits

A thread polls the consumer and fills the hand, which is bounded; the worker takes from it. Answers do not wait for the
network: they move positions, which the thread commits, each up to the lowest message of its partition that is not
settled. Whatever happens to this process, what was not settled comes again from there.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.adapters.sources.kafka.counting import Counts
from semel.adapters.sources.kafka.diagnosis import diagnose
from semel.adapters.sources.kafka.holding import Hand
from semel.adapters.sources.kafka.lanes import Held
from semel.adapters.sources.kafka.letters import Letters, headers_of
from semel.adapters.sources.kafka.options import Options, check_options
from semel.adapters.sources.kafka.polling import Poller
from semel.adapters.sources.kafka.sending import Header
from semel.adapters.sources.kafka.steps import Observer, Step
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.log import log
from semel.values.parcel import NOTE, note_beside
from semel.values.reading import Reading

IN_FLIGHT = 1_000
BEHIND = 10  # times max_in_flight
DRAIN_S = 10.0  # for the letters that are still to be sent at the end
CLOSE_S = 15.0  # for the last commit, and to leave the group
TOMBSTONE = "it has no value: a tombstone of a compacted topic is no event"


class KafkaDelivery:
    """One handing over of a message. Its answer counts when the call returns, and is committed soon after."""

    __slots__ = ("_held", "_source", "body", "headers", "reading", "tenant")

    def __init__(self, source: KafkaSource, held: Held, body: bytes) -> None:
        self.body = body
        self.tenant = source.tenant
        self.reading = source.reading
        self.headers: Mapping[str, str] | None = None
        self._source = source
        self._held: Held | None = held

    async def ack(self) -> None:
        if (held := self._held) is not None:
            self._held = None
            self._source._settle(held)

    async def retry(self, after_s: float) -> None:
        if (held := self._held) is not None:
            self._held = None
            self._source._wait(held, after_s)

    async def reject(self, reason: str) -> None:
        if (held := self._held) is not None:
            self._held = None
            self._source._bury(held, reason)


class KafkaSource:
    """Takes from topics, as a member of a consumer group. Opened by the first `receive`, on whose loop it lives;
    several workers may share it.

    servers: the bootstrap servers, "broker1:9092,broker2:9092".
    dead_letters: the topic for what nobody can act on; it has to exist.
    in_order: messages of one key run one after the other, also through failures.
    max_in_flight: messages that are received and not settled, those that wait for another try included.
    max_behind: how far a partition is read beyond its lowest unsettled message; ten times max_in_flight.
    reading: how bodies are read, where the app's own way is not right for these topics.
    handed_on: Semel itself fills these topics, so that the note beside a message is believed.
    options: whatever librdkafka knows, TLS and SASL for instance.
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
        reading: Reading | None = None,
        handed_on: bool = False,
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
        self.reading = reading
        self._handed_on = handed_on
        self._in_order = in_order
        self._max_in_flight = max_in_flight
        self._max_behind = behind
        self._options = Options(servers, options or {})
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._counts = Counts()
        self._loop: asyncio.AbstractEventLoop
        self._hand: Hand
        self._letters: Letters
        self._poller: Poller | None = None
        self._let_go: asyncio.Event
        self._stopping = False

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        return self._counts

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the topics, for `semel doctor`, also of a source that was never opened."""
        return await asyncio.to_thread(
            diagnose, self._options, self.servers, self.topics, self.group, self.dead_letters
        )

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[KafkaDelivery]:
        """At most `limit` deliveries; waits for one if there is none; empty when the source was stopped.

        Raises ConfigError for what only a person can change: a topic or a permission that is missing, credentials that
        are refused, a group that has shut us out."""
        poller = self._open()
        while not self._stopping and poller is not None:
            if taken := self._hand.take(limit):
                if deliveries := self._handed_over(taken):
                    return deliveries
                continue
            if poller.failure is not None:
                raise poller.failure
            await self._hand.changed()
        return []

    def _open(self) -> Poller | None:
        if self._stopping or (self._poller is not None and self._poller.failure is None):
            return self._poller
        if self._poller is None:
            self._loop = asyncio.get_running_loop()
            self._hand = Hand(in_order=self._in_order)
            self._letters = Letters(
                self._options,
                self.dead_letters,
                settle=self._settle,
                forget=self._hand.forget,
                counts=self._counts,
                observe=self._observe,
                random=self._random,
            )
        let_go = self._let_go = asyncio.Event()

        def ended() -> None:
            let_go.set()
            self._hand.wake()

        self._poller = Poller(
            self._options,
            self.topics,
            self.group,
            self.dead_letters,
            hand=self._hand,
            max_in_flight=self._max_in_flight,
            max_behind=self._max_behind,
            counts=self._counts,
            observe=self._observe,
            tell=self._tell,
            ended=ended,
        )
        self._poller.start()
        return self._poller

    def _tell(self, call: Callable[..., None], *given: Any) -> None:
        """By the poller's thread."""
        try:
            self._loop.call_soon_threadsafe(call, *given)
        except RuntimeError:  # the loop was closed, and this source was not
            if self._poller is not None:
                self._poller.ending = True

    def _handed_over(self, taken: Sequence[Held]) -> list[KafkaDelivery]:
        deliveries = []
        for held in taken:
            try:
                deliveries.append(self._delivery(held))
            except MalformedEvent as error:
                self._bury(held, str(error))
        return deliveries

    def _delivery(self, held: Held) -> KafkaDelivery:
        """Raises MalformedEvent for a message that no handler could get."""
        body = None if held.message is None else held.message.value()
        headers = [] if held.message is None else headers_of(held.message)
        note = note_beside(_note_in(headers), self._handed_on) if headers else None
        if headers and note is None:
            body = from_message(body, headers) or body  # CloudEvents in binary mode, perhaps without data
        if body is None:
            raise MalformedEvent(TOMBSTONE)
        delivery = KafkaDelivery(self, held, body)
        if note is not None:
            delivery.tenant, delivery.reading, delivery.headers = note.tenant, note.reading, note.headers
        return delivery

    # -------------------------------------------------------------------------------------------------- answering

    def _settle(self, held: Held) -> None:
        self._hand.settle(held)
        self._counts.settled += 1

    def _wait(self, held: Held, after_s: float) -> None:
        self._counts.retried += 1
        if not self._stopping:  # else it comes again, from the offset that stays uncommitted
            self._hand.wait(held, after_s)
            self._observe(Step.WAITING)

    def _bury(self, held: Held, reason: str) -> None:
        self._letters.send(held, reason)

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """From now on nothing is handed over, and whoever waits for a delivery comes back empty. What is in hand may be
        answered. Call it on the source's loop."""
        if self._stopping:
            return
        self._stopping = True
        if self._poller is not None:
            self._poller.quiet = True
            self._hand.clear()
            self._hand.wake()

    async def close(self) -> None:
        """Stop; commit every answer; leave the group. What was not answered comes again, to us or to others."""
        self.stop()
        if (poller := self._poller) is None:
            return
        self._poller = None
        try:
            await self._letters.close(DRAIN_S)
        finally:  # also when nobody waits for the end of it: a thread that polls on would keep its partitions for ever
            poller.ending = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._let_go.wait()
        except TimeoutError:
            log.warning("kafka_commit_lost", group=self.group)


def _note_in(headers: Sequence[Header]) -> str | bytes | None:
    """None: nobody wrote one, and the source's own settings hold."""
    for name, value in headers:
        if name == NOTE:
            return value or b""
    return None
