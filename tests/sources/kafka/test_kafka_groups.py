"""Consumers of one group: partitions come and go, the broker too, and nothing is lost or committed too far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from tests.sources.kafka.topics import OUTLASTING, SOON_S, Topics
from tests.support.servers.kafka import KafkaServer

from semel.sources.kafka_topic import KafkaSource
from semel.sources.kafka_topic.in_flight import KafkaMessage
from semel.sources.kafka_topic.poller import KafkaStep
from semel.sources.lifecycle import QueueDelivery
from semel.values.errors import SemelError

IMPATIENT = {"session.timeout.ms": 1_000, "heartbeat.interval.ms": 250, "max.poll.interval.ms": 1_500}


@asynccontextmanager
async def opened(source: KafkaSource) -> AsyncIterator[KafkaSource]:
    try:
        yield source
    finally:
        await source.close()


async def received(source: KafkaSource, count: int) -> list[QueueDelivery[KafkaMessage]]:
    found: list[QueueDelivery[KafkaMessage]] = []
    async with asyncio.timeout(SOON_S):
        while len(found) < count:
            found += await source.receive(count - len(found))
    return found


async def until(true: Callable[[], bool], what: str) -> None:
    """Asked in a thread: it may ask a broker."""
    ends = time.monotonic() + SOON_S
    while not await asyncio.to_thread(true):
        assert time.monotonic() < ends, f"waited for {what}"
        await asyncio.sleep(0.02)


def bodies(count: int) -> list[bytes]:
    return [f"{number:03}".encode() for number in range(count)]


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await story()

    asyncio.run(within())


def place_of(delivery: QueueDelivery[KafkaMessage]) -> tuple[int, int]:
    """Partition and offset."""
    held = delivery._message
    assert held is not None
    return held.lane.partition, held.offset


def partitions_move(topics: Topics) -> None:
    """From one consumer, which has answered all but the first of each partition, to another."""

    async def story() -> None:
        topics.send(bodies(80))
        async with opened(topics.source()) as first, opened(topics.source()) as second:
            mine = await received(first, 80)
            lowest: dict[int, int] = {}  # of each partition: the one that stays unanswered
            for delivery in mine:
                partition, offset = place_of(delivery)
                if lowest.setdefault(partition, offset) != offset:
                    await delivery.ack()
            looking = asyncio.ensure_future(second.receive(100))
            await until(lambda: 0 < first.counts.revoked == second.counts.assigned, "the end of a rebalance")
            before, ends = topics.positions(), topics.ends()
            assert all(before[p] <= offset for p, offset in lowest.items()), "what is unsettled is buried"
            theirs = list(await asyncio.wait_for(looking, SOON_S))
            assert second._poller is not None
            moved = {partition for _, partition in second._poller._lanes}
            theirs += await received(second, sum(ends[p] - before[p] for p in moved) - len(theirs))
            for delivery in mine:
                await delivery.ack()  # also those that are not ours any more
            stayed = lowest.keys() - moved
            await until(lambda: all(topics.positions()[p] == ends[p] for p in stayed), "the commit of what stayed")
            assert all(topics.positions()[p] == before[p] for p in moved), "a commit of what is not ours"
            for delivery in theirs:
                await delivery.ack()
            await until(lambda: topics.left() == 0, "everything to be committed")

    run(story)


def test_partitions_that_move_take_everything_unsettled_with_them(new_topics: Callable[..., Topics]) -> None:
    partitions_move(new_topics(partitions=4))


def test_a_closed_consumer_hands_its_partitions_on_at_once(new_topics: Callable[..., Topics]) -> None:
    topics = new_topics(partitions=2)

    async def story() -> None:
        sent = bodies(20)
        topics.send(sent)
        async with opened(topics.source()) as first:
            some = await received(first, 20)
            for delivery in some[:5]:
                await delivery.ack()
        assert topics.left() >= 15
        async with opened(topics.source()) as second:
            rest = await received(second, topics.left())
            assert {delivery.body for delivery in rest} >= {delivery.body for delivery in some[5:]}

    run(story)


def test_a_consumer_that_the_group_gave_up_on_commits_nothing(topics: Topics) -> None:
    """Its thread stands still for longer than the group waits; then its partition is lost, and comes back."""
    handed_over: list[bytes] = []
    stood_still: list[str] = []

    def observe(step: str) -> None:
        if step == KafkaStep.AFTER_RECEIVE and handed_over and not stood_still:
            stood_still.append(step)
            time.sleep(2.5)

    async def story() -> None:
        topics.send(bodies(1))
        async with opened(topics.source(options=IMPATIENT, observe=observe)) as source:
            (first,) = await received(source, 1)
            handed_over.append(first.body)
            await asyncio.to_thread(topics.send, bodies(2)[1:])
            await until(lambda: source.counts.lost > 0, "the partition to be lost")
            await first.ack()
            again = await received(source, 2)
            assert [delivery.body for delivery in again] == bodies(2), "what was answered too late comes again"
            assert topics.left() == 2, "an answer of then was committed"
            for delivery in again:
                await delivery.ack()
        assert topics.left() == 0

    run(story)
    assert stood_still


def test_a_handler_may_take_longer_than_the_longest_poll_interval(topics: Topics) -> None:
    async def story() -> None:
        topics.send(bodies(3))
        source = topics.source(options=IMPATIENT, max_in_flight=1)
        async with opened(source):
            for body in bodies(3):
                (delivery,) = await source.receive(10)
                assert delivery.body == body, "it came again"
                if body == bodies(1)[0]:
                    await asyncio.sleep(3.0)  # twice max.poll.interval.ms
                    assert source.counts.paused > 0, "inconclusive: nothing was paused"
                await delivery.ack()
            assert (source.counts.revoked, source.counts.lost) == (0, 0), "the group has taken us for dead"
        assert topics.left() == 0

    run(story)


def test_messages_in_flight_are_bounded_and_the_rest_waits_at_the_broker(topics: Topics) -> None:
    async def story() -> None:
        topics.send(bodies(100))
        source = topics.source(max_in_flight=10)
        async with opened(source):
            held = await received(source, 10)
            more = asyncio.ensure_future(source.receive(100))
            await until(lambda: source.counts.paused > 0, "the partition to be paused")
            assert not more.done()
            assert source.counts.received == 10
            seen = [delivery.body for delivery in held]
            while len(seen) < 100:
                for delivery in held:
                    await delivery.ack()
                held = list(await asyncio.wait_for(more, SOON_S))
                seen += [delivery.body for delivery in held]
                more = asyncio.ensure_future(source.receive(100))
            assert seen == bodies(100), "in order, and each once"
            for delivery in held:
                await delivery.ack()
            source.stop()
            assert list(await more) == []
        assert topics.left() == 0

    run(story)


def test_a_partition_is_not_read_far_beyond_its_lowest_unsettled_message(topics: Topics) -> None:
    """One message that waits holds up the commit: what a restart would bring again is bounded."""

    async def story() -> None:
        topics.send(bodies(200))
        source = topics.source(max_in_flight=10, max_behind=30)
        async with opened(source):
            (first,) = await source.receive(1)
            await first.retry(3_600)
            seen = 1
            async with asyncio.timeout(SOON_S):
                while source.counts.paused == 0:
                    with suppress(TimeoutError):  # it may be paused while we wait for more
                        for delivery in await asyncio.wait_for(source.receive(10), 0.5):
                            await delivery.ack()
                            seen += 1
            assert topics.positions() == {0: 0}, "nothing before it is settled"
            assert seen <= 30 + 10
        assert topics.left() == 200

    run(story)


def test_offsets_that_go_back_do_not_skip_unsettled_messages(topics: Topics) -> None:
    """As when a broker has lost the end of its log: what is read again begins after a message that is unsettled."""
    went_back: list[str] = []

    def observe(step: str) -> None:
        if step == KafkaStep.BEFORE_COMMIT and source._poller is not None and not went_back:
            went_back.append(step)
            source._poller._consumer.incremental_unassign([TopicPartition(topics.topic, 0)])
            source._poller._consumer.incremental_assign([TopicPartition(topics.topic, 0, 3)])

    source = topics.source(observe=observe)

    async def story() -> None:
        topics.send(bodies(6))
        async with opened(source):
            first, waiting, *rest = await received(source, 6)
            for delivery in (first, *rest):
                await delivery.ack()
            with pytest.raises(SemelError, match=r"\b5\b.*\b3\b"):
                await received(source, 1)
            assert topics.positions() == {0: 1}
            again = await received(source, 5)  # a source that broke is asked again
            assert [delivery.body for delivery in again] == bodies(6)[1:]
            await waiting.ack()  # of before
            for delivery in again:
                await delivery.ack()
        assert topics.left() == 0

    run(story)
    assert went_back


def test_a_broker_that_is_down_is_waited_for(own_kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        topics.send(bodies(3))
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "retry.backoff.max.ms": 300}
        async with opened(topics.source(options={**OUTLASTING, **quick})) as source:
            done, given_up, again = await received(source, 3)
            own_kafka.down()
            await done.ack()
            await given_up.reject("nobody can act on it")
            await again.retry(0.1)
            (again,) = await received(source, 1)
            await again.ack()
            waiting = asyncio.ensure_future(source.receive(10))
            await until(lambda: source.counts.failures > 4, "the outage to be noticed")
            assert not waiting.done(), "it goes on waiting"
            assert source.counts.dead_letters == 0
            own_kafka.up()
            await until(lambda: topics.left() == 0, "all answers to be told")
            assert [(dead_letter.value, dead_letter.reason) for dead_letter in topics.dead_letters()] == [
                (given_up.body, "nobody can act on it")
            ]
            await asyncio.to_thread(topics.send, [b"after"])
            (delivery,) = await asyncio.wait_for(waiting, SOON_S)
            assert delivery.body == b"after"
            told = [record for record in caplog.records if record.levelname == "WARNING"]
            assert told, "an outage is told"
            assert len(told) < source.counts.failures + 5

    run(story)
    topics.close()


def test_offsets_that_could_not_be_committed_are_committed_later(own_kafka: KafkaServer) -> None:
    topics = Topics(own_kafka)
    refused: list[Any] = []

    async def story() -> None:
        topics.send(bodies(2))
        async with opened(topics.source()) as source:
            first, second = await received(source, 2)
            own_kafka.refuse(8, 28, 1)  # OffsetCommit: INVALID_COMMIT_OFFSET_SIZE, which librdkafka does not repeat
            await first.ack()
            await until(lambda: source.counts.failures > 0, "the refusal")
            refused.append(source.counts.failures)
            await until(lambda: topics.positions() == {0: 1}, "the commit")
            await second.ack()
        assert topics.left() == 0

    run(story)
    topics.close()
    assert refused
