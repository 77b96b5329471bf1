"""Where a message could be lost, or held for ever, between the thread of the consumer and the event loop."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.sources.kafka.test_kafka_groups import bodies, opened, place_of, received, run, until
from tests.sources.kafka.topics import SOON_S, Topics
from tests.support.servers.kafka import PRODUCE, KafkaServer

from semel.sources.kafka_topic import KafkaPublisher, KafkaSource
from semel.sources.kafka_topic.poller import KafkaStep
from semel.sources.kafka_topic.publisher import KafkaSender
from semel.values.errors import ConfigError, SemelError
from semel.values.forwarded import TOO_LARGE as PARCEL_TOO_LARGE
from semel.values.forwarded import ForwardedEvent

TOO_LARGE, NOT_ENOUGH_REPLICAS = 10, 19  # errors, as the protocol numbers them


def threads(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == name}


async def work_off(source: KafkaSource) -> None:
    while deliveries := await source.receive(10):
        for delivery in deliveries:
            await delivery.ack()


@pytest.mark.parametrize(
    "options",
    [
        {"auto.offset.reset": "LATEST"},
        {"auto.offset.reset": " end"},
        {"topic.auto.offset.reset": "latest"},
        {"topic.acks": "0"},
        {"topic.enable.auto.commit": "true"},
        {"offset.store.method": "file"},
        {"delivery.report.only.error": True},
    ],
)
def test_other_names_of_options_that_would_lose_messages_are_refused_too(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=re.escape(next(iter(options)).removeprefix("topic."))):
        KafkaSource("127.0.0.1:9092", ["t"], group="g", dead_letters="t-dead", options=options)


def test_a_rejected_message_of_a_revoked_partition_is_not_committed(
    new_topics: Callable[..., Topics],
) -> None:
    """Its letter was never written, so whoever gets the partition next has to see it."""
    topics = new_topics(partitions=2)
    leaving, rejected = threading.Event(), threading.Event()

    def observe(step: str) -> None:
        if step == KafkaStep.BEFORE_COMMIT and not leaving.is_set():  # the only commit is that of the revoke
            leaving.set()
            assert rejected.wait(SOON_S), "nobody has rejected"

    async def story() -> None:
        for partition in range(2):
            topics.send(bodies(2), partition=partition)
        async with opened(topics.source(observe=observe)) as first, opened(topics.source()) as second:
            mine = await received(first, 4)
            assert first._poller is not None
            first._poller._commit_at = math.inf
            at = {place_of(delivery): delivery for delivery in mine}
            for partition in range(2):
                await at[partition, 0].ack()
            looking = asyncio.ensure_future(second.receive(10))
            await until(leaving.is_set, "the commit of what is taken away")
            gone = {held.lane.partition for d in mine if (held := d._message) is not None and held.lane.gone}
            assert len(gone) == 1, "inconclusive: nothing is being taken away"
            (moved,) = gone
            await at[moved, 1].reject("nobody can act on it")
            rejected.set()
            again = list(await asyncio.wait_for(looking, SOON_S))
            while (moved, 1) not in map(place_of, again):  # a refused commit brings the one before it, too
                again += await asyncio.wait_for(second.receive(10), SOON_S)
            for delivery in (*again, at[1 - moved, 1]):
                await delivery.ack()
        assert topics.left() == 0
        assert topics.dead_letters() == []

    run(story)


def test_a_partition_that_was_paused_when_it_was_taken_away_runs_again_when_it_is_back(
    new_topics: Callable[..., Topics],
) -> None:
    topics = new_topics(partitions=2)

    async def story() -> None:
        for partition in range(2):
            topics.send(bodies(3), partition=partition)
        async with opened(topics.source(max_in_flight=1)) as source:
            (held,) = await received(source, 1)
            await until(lambda: source.counts.paused == 2, "both partitions to be paused")
            async with opened(topics.source()) as other:
                looking = asyncio.ensure_future(other.receive(1))
                await until(lambda: 0 < other.counts.assigned == source.counts.revoked, "the end of a rebalance")
                await asyncio.wait_for(looking, SOON_S)
            await until(lambda: source.counts.assigned == 3, "the partition to come back")
            await held.ack()
            working = asyncio.ensure_future(work_off(source))
            await until(lambda: topics.left() == 0, "all of both partitions")
            source.stop()
            await working

    run(story)


def test_a_close_that_is_not_waited_for_leaves_the_group_all_the_same(own_kafka: KafkaServer) -> None:
    """Else a thread that nobody knows of keeps the partitions, and hands nothing over."""
    topics = Topics(own_kafka)
    before = threads("semel-kafka")

    async def story() -> None:
        topics.send(bodies(1))
        source = topics.source()
        (delivery,) = await received(source, 1)
        own_kafka.refuse(PRODUCE, NOT_ENOUGH_REPLICAS, 10_000)
        await delivery.reject("nobody can act on it")
        await until(lambda: len(threads("semel-kafka-sender")) > 0, "the letter to be under way")
        closing = asyncio.ensure_future(source.close())
        await asyncio.sleep(0)
        assert not closing.done(), "inconclusive: there was nothing to wait for"
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: threads("semel-kafka") <= before, "the end of the thread")
        await source.close()
        assert topics.left() == 1, "it was settled without a letter"

    run(story)
    topics.close()


def test_small_parcels_are_not_refused_for_good_because_their_batch_was_too_large(own_kafka: KafkaServer) -> None:
    """A broker refuses a batch as a whole, and whoever is told that its event is too large never brings it again."""
    topics = Topics(own_kafka)

    async def story() -> None:
        publisher = KafkaPublisher(own_kafka.servers, topics.topic, timeout=30, options={"linger.ms": "200"})
        parcels = [ForwardedEvent(body, group="customer") for body in bodies(5)]
        own_kafka.refuse(PRODUCE, TOO_LARGE, 1)
        assert await publisher.publish(parcels) == [""] * 5
        assert topics.ends() == {0: 5}
        own_kafka.refuse(PRODUCE, TOO_LARGE, 2)  # in company, and alone
        (answer,) = await publisher.publish(parcels[:1])
        assert answer.startswith(PARCEL_TOO_LARGE), "what is too large by itself is told so"
        await publisher.close()
        async with opened(topics.source(forwarded=True)) as source:
            found = await received(source, 5)
            assert [delivery.body for delivery in found] == bodies(5), "in their order"

    run(story)
    topics.close()


class Threadless:
    """A machine that has no more threads, for those of one name and for so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.refused = 0
        start = threading.Thread.start

        def refusing(thread: threading.Thread) -> None:
            if thread.name == name and self.refused < times:
                self.refused += 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", refusing)


def test_a_consumer_without_a_thread_is_an_error_and_the_next_one_works(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever be told of a message, nor that there is none."""
    machine = Threadless(monkeypatch, "semel-kafka", 1)

    async def story() -> None:
        topics.send(bodies(1))
        async with opened(topics.source()) as source:
            with pytest.raises(SemelError, match="can't start new thread"):
                await asyncio.wait_for(source.receive(1), SOON_S)
            (delivery,) = await received(source, 1)
            await delivery.ack()
        assert topics.left() == 0

    run(story)
    assert machine.refused == 1


def test_a_dead_letter_whose_producer_has_no_thread_is_sent_by_another(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Threadless(monkeypatch, "semel-kafka-sender", 1)

    async def story() -> None:
        topics.send(bodies(1))
        async with opened(topics.source(random=lambda: 0.1)) as source:
            (delivery,) = await received(source, 1)
            await delivery.reject("nobody can act on it")
            await until(lambda: topics.left() == 0, "the letter")
        assert [dead_letter.value for dead_letter in topics.dead_letters()] == bodies(1)

    run(story)
    assert machine.refused == 1


def test_a_dead_letter_without_a_producer_waits_and_is_sent_later(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message without value is given up while others are handed over: those must not vanish with its error."""
    make, failed = KafkaSender._opened, list[KafkaSender]()

    def refused(self: KafkaSender) -> Any:
        if len(failed) < 2:
            failed.append(self)
            raise ConfigError("Kafka: Failed to create thread: Resource temporarily unavailable")
        return make(self)

    monkeypatch.setattr(KafkaSender, "_opened", refused)

    async def story() -> None:
        topics.send([b"before", None, b"after"])
        async with opened(topics.source(random=lambda: 0.1)) as source:
            for delivery in await received(source, 2):
                await delivery.ack()
            await until(lambda: topics.left() == 0, "the letter")
        assert [dead_letter.value for dead_letter in topics.dead_letters()] == [None]

    run(story)
    assert len(failed) == 2
