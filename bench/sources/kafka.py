"""Kafka: Semel's source on librdkafka's mock cluster, compared with the same client without processing.

The cluster runs in its own process on this machine and shares its processors.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

from bench.sources.plan import DUPLICATES, Line, Sample, Scenario, Sizes
from bench.sources.sqs import MEMORY, WARM, messages
from bench.stores.on_semel import Counted
from bench.stores.servers import running
from bench.stores.timing import Watch, of_processes
from confluent_kafka import Consumer, Producer
from tests.support.servers.kafka import KafkaServer

from semel.sources.kafka_topic import KafkaSource
from semel.testing.traffic import events

TOPIC, DEAD = "bench", "bench-dead"
PARTITION_BYTES = 3_000_000  # the mock cluster drops data above 5 MB
BATCH = 500  # of the bare client
RECEIVE = 100  # as a worker receives them
WORKERS = 2
SOON_S = 60.0

LINES = (
    Line("semel", "client", rate_at_least=30_000, or_reaches="client"),
    Line("semel", "engine"),
    Line("source", "client", rate_at_least=30_000, or_reaches="client"),
    Line("engine"),
    Line("client"),
)


@contextmanager
def opened(folder: Path, sizes: Sizes) -> Iterator[Kafka]:
    with running(KafkaServer(folder)) as server:
        yield Kafka(server, sizes)


class Kafka:
    """Every measure reads the same topic from its beginning, as a group of its own, and begins with an empty ledger.
    The clock runs from the subscription on, for each of them: else the client fetches in advance what it is to be
    measured by."""

    name = "kafka"
    title = "Kafka, librdkafka's mock cluster of 3 brokers"
    lines: Sequence[Line] = LINES

    def __init__(self, server: KafkaServer, sizes: Sizes) -> None:
        self._server = server
        self._sizes = sizes
        self._watch = Watch(of_processes(server.process.pid))
        self._filled = False
        self.scenarios = [
            Scenario("client", "client alone", f"consume({BATCH}) and a commit, again and again", self._client),
            Scenario("source", "source alone", "Semel's source, everything acknowledged at once", self._run(by_source)),
            Scenario("semel", "Semel", f"the whole flow on a ledger in memory, {WORKERS} workers", self._run(by_semel)),
            Scenario("engine", "engine alone", "the same bodies from memory, by process_many", self._engine),
        ]

    def remarks(self) -> list[str]:
        return [
            f"{self._sizes.messages:,} messages of 1.4 KB on {self._partitions} partitions, of which {DUPLICATES:.0%} "
            "are copies; the mock cluster keeps everything in memory, and is no measure of a real one",
        ]

    def _run(
        self, measure: Callable[[Watch, str, Sequence[bytes]], Coroutine[Any, Any, Sample]]
    ) -> Callable[[], Sample]:
        return lambda: asyncio.run(measure(self._watch, self._servers, self._bodies))

    def _client(self) -> Sample:
        return by_client(self._watch, self._servers, self._bodies)

    def _engine(self) -> Sample:
        return asyncio.run(by_engine(self._watch, self._bodies))

    @property
    def _servers(self) -> str:
        if not self._filled:
            self._filled = True
            self._server.create(TOPIC, self._partitions)
            self._server.create(DEAD)
            fill(self._server.servers, self._bodies)
        return self._server.servers

    @property
    def _partitions(self) -> int:
        return 4 + sum(map(len, self._bodies)) // PARTITION_BYTES

    @cached_property
    def _bodies(self) -> list[bytes]:
        return messages(self._sizes.messages)


def fill(servers: str, bodies: Sequence[bytes]) -> None:
    """A copy has the key of its original, and stands behind it: on another partition it could come while the original
    is being handled, and then it would be the wait of a Busy that is measured."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    for at, body in enumerate(bodies):
        producer.produce(TOPIC, body, f"{crc32(body)}")
        if at % 10_000 == 0:
            producer.flush(SOON_S)
    if producer.flush(SOON_S):
        raise AssertionError("the mock cluster did not take all messages")


def by_client(watch: Watch, servers: str, bodies: Sequence[bytes]) -> Sample:
    """The ceiling: batches of the client with one commit each, and no processing."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "group.id": uuid4().hex, "log_level": 0}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})

    def work() -> None:
        consumer.subscribe([TOPIC])
        count = 0
        ends = time.monotonic() + SOON_S
        while count < len(bodies):
            if time.monotonic() > ends:
                raise AssertionError(f"only {count:,} of {len(bodies):,} messages came")
            if batch := consumer.consume(min(BATCH, len(bodies) - count), 0.1):
                count += len(batch)
                consumer.commit(asynchronous=True)

    sample = watch.timed_sync(len(bodies), work)
    consumer.close()
    return sample


async def by_source(watch: Watch, servers: str, bodies: Sequence[bytes]) -> Sample:
    """Receive and acknowledge, without a handler."""
    source = _source(servers)

    async def work() -> None:
        while source.counts.settled < len(bodies):
            for delivery in await source.receive(RECEIVE):
                await delivery.ack()

    sample = await watch.timed(len(bodies), work())
    await source.close()
    return sample


async def by_semel(watch: Watch, servers: str, bodies: Sequence[bytes]) -> Sample:
    """The whole flow: decode, key, claim, handler, settle, and the offset is ready to be committed."""
    counted = Counted(MEMORY)
    source = _source(servers)
    async with counted.app as app:
        await app.process_many(list(events(WARM, seed=1)))
        counted.ran = 0
        tasks: list[asyncio.Task[int]] = []

        async def work() -> None:
            tasks.extend(asyncio.create_task(app.worker(source).run()) for _ in range(WORKERS))
            while source.counts.settled < len(bodies):
                await asyncio.wait(tasks, timeout=0.005, return_when=asyncio.FIRST_COMPLETED)
                if any(task.done() for task in tasks):
                    break

        sample = await watch.timed(len(bodies), work())
        source.stop()
        await asyncio.gather(*tasks)  # raises what went wrong
        await source.close()
    _check(counted.ran, bodies)
    return sample


async def by_engine(watch: Watch, bodies: Sequence[bytes]) -> Sample:
    counted = Counted(MEMORY)
    async with counted.app as app:
        await app.process_many(list(events(WARM, seed=1)))
        counted.ran = 0

        async def work() -> None:
            for at in range(0, len(bodies), RECEIVE):
                await app.process_many(bodies[at : at + RECEIVE])

        sample = await watch.timed(len(bodies), work())
    _check(counted.ran, bodies)
    return sample


def _source(servers: str) -> KafkaSource:
    return KafkaSource(servers, [TOPIC], group=uuid4().hex, dead_letters=DEAD)


def _check(ran: int, bodies: Sequence[bytes]) -> None:
    if ran != len(set(bodies)):
        raise AssertionError(f"{ran:,} handlers ran where {len(set(bodies)):,} had to: its time means nothing")
