"""The transports of the storm: each is a queue of its own, with its dead letters, and how a consumer opens it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import botocore.session
from pamqp.commands import Basic
from tests.sources.kafka.topics import Topics
from tests.sources.places import Queue
from tests.sources.rabbitmq import places as rabbitmq
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import NoServer
from tests.support.servers.rabbitmq import Broker as RabbitBroker
from tests.support.servers.sqs import SqsServer

IN_FLIGHT = 32  # of one consumer: what a killed one held is taken over one by one
VISIBILITY_S = 3  # above the lease of the consumers; what a killed one held is seen again then
SESSION_MS = 1_000  # of a consumer group's member; its partitions go to others then
PARTITIONS = 4
PORTION = 500  # messages that are sent in one call
ANSWER_S = 10.0


class OnSqs:
    kind = "sqs"

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def options(self) -> Mapping[str, Any]:
        return {
            "queue": self._queue.url,
            "dead_letters": self._queue.dead_url,
            "endpoint": self._queue.server.endpoint or "",
            "region": self._queue.server.region,
            "visibility": VISIBILITY_S,
            "max_in_flight": IN_FLIGHT,
            "wait": 1,
        }

    def send(self, bodies: Sequence[bytes]) -> None:
        self._queue.send(bodies)

    def left(self) -> int:
        return self._queue.left()

    def dead_letters(self) -> int:
        return sum(self._queue.attributes(self._queue.dead_url).values())


@contextmanager
def on_sqs(server: SqsServer) -> Iterator[OnSqs]:
    aws: Any = botocore.session.get_session().create_client(
        "sqs", region_name=server.region, endpoint_url=server.endpoint or None
    )
    with closing(aws):
        yield OnSqs(Queue(server, aws))


class OnKafka:
    kind = "kafka"

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    @property
    def options(self) -> Mapping[str, Any]:
        topics = self._topics
        return {
            "servers": topics.server.servers,
            "topics": [topics.topic],
            "group": topics.group,
            "dead_letters": topics.dead,
            "max_in_flight": IN_FLIGHT,
            "options": topics.options(SESSION_MS),
        }

    def send(self, bodies: Sequence[bytes]) -> None:
        self._topics.send(bodies)

    def left(self) -> int:
        return self._topics.left()

    def dead_letters(self) -> int:
        return len(self._topics.dead_letters())


@contextmanager
def on_kafka(server: KafkaServer) -> Iterator[OnKafka]:
    with closing(Topics(server, partitions=PARTITIONS)) as topics:
        yield OnKafka(topics)


class OnRabbit:
    kind = "rabbitmq"

    def __init__(self, place: rabbitmq.Place) -> None:
        self._place = place

    @property
    def options(self) -> Mapping[str, Any]:
        place = self._place
        return {
            "url": place.broker.url,
            "queue": place.queue,
            "dead_letters": place.dead,
            "prefetch": IN_FLIGHT,
        }

    def send(self, bodies: Sequence[bytes]) -> None:
        """Many at a time: each is confirmed by itself."""

        async def work(some: Sequence[bytes]) -> None:
            channel = await self._place.client.channel()
            kept = Basic.Properties(delivery_mode=2)
            publish = partial(channel.basic_publish, routing_key=self._place.queue, properties=kept, mandatory=True)
            await asyncio.gather(*[publish(body) for body in some])
            await channel.close()

        for at in range(0, len(bodies), PORTION):
            self._place.client.run(work(bodies[at : at + PORTION]))

    def left(self) -> int:
        ends = time.monotonic() + ANSWER_S
        while True:
            try:
                return self._place.left()
            except NoServer:  # a queue was being declared in that moment
                if time.monotonic() > ends:
                    raise

    def dead_letters(self) -> int:
        return len(self._place.dead_letters())


@contextmanager
def on_rabbit(broker: RabbitBroker) -> Iterator[OnRabbit]:
    with rabbitmq.Client(broker.url) as client:
        place = rabbitmq.Place(broker, client)
        yield OnRabbit(place)
        place.delete()
