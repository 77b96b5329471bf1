"""What is handed on: it counts when the broker has it, and every call is answered in time."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from tests.facts import rendered
from tests.sources.kafka.test_kafka_groups import opened, received, run
from tests.sources.kafka.topics import Topics
from tests.support.servers.kafka import PRODUCE, KafkaServer

from semel.ports import Publisher
from semel.sources.kafka_topic import KafkaPublisher
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions
from semel.values.forwarded import ForwardedEvent, ForwardMetadata


def test_a_published_event_is_received_with_its_metadata_and_its_group(topics: Topics) -> None:
    async def story() -> None:
        metadata = ForwardMetadata(tenant="acme", decode_options=DecodeOptions(origin="org"), headers={"ce-type": "x"})
        publisher: Publisher = KafkaPublisher(topics.server.servers, topics.topic, timeout=30)
        parcels = [
            ForwardedEvent(f"{number}".encode(), metadata, group="customer" if number else "") for number in range(20)
        ]
        answers = await asyncio.gather(*[publisher.publish(parcels[at : at + 5]) for at in range(0, 20, 5)])
        assert answers == [[""] * 5] * 4
        assert await publisher.publish([]) == []
        fact = rendered(await publisher.diagnose())[f"topic {topics.topic}"]
        assert re.findall(r"\d+", fact) == ["1", "20"], "partitions and messages"
        await publisher.close()
        async with opened(topics.source(forwarded=True)) as source:
            deliveries = await received(source, 20)
            assert sorted(int(delivery.body) for delivery in deliveries) == list(range(20))
            assert {(d.tenant, d.decode_options) for d in deliveries} == {("acme", metadata.decode_options)}
            assert all(d.headers == metadata.headers for d in deliveries)
            keys = {d.body: d._message.record.key() for d in deliveries if d._message and d._message.record}
            assert keys[b"0"] is None
            assert keys[b"1"] == b"customer"

    run(story)


def test_every_call_is_answered_in_time_when_the_broker_is_down_or_silent(own_kafka: KafkaServer) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        publisher = KafkaPublisher(
            own_kafka.servers, topics.topic, timeout=2, options={"reconnect.backoff.max.ms": "200"}
        )
        assert await publisher.publish([ForwardedEvent(b"before")] * 2) == ["", ""]
        own_kafka.down()
        since = time.monotonic()
        answers = await publisher.publish([ForwardedEvent(b"down")] * 3)
        assert all(topics.topic in answer for answer in answers)
        own_kafka.up()
        await _until_it_works(publisher)
        own_kafka.process.pause()
        try:
            answers = await publisher.publish([ForwardedEvent(b"silent")])
        finally:
            own_kafka.process.resume()
        assert all(answers), "nobody knows whether it is there: it counts as not there"
        assert time.monotonic() - since < 60
        await _until_it_works(publisher)
        await publisher.close()

    run(story)
    topics.close()


async def _until_it_works(publisher: KafkaPublisher) -> None:
    ends = time.monotonic() + 60
    while (await publisher.publish([ForwardedEvent(b"again")])) != [""]:
        assert time.monotonic() < ends


def test_each_parcel_is_answered_for_itself(own_kafka: KafkaServer) -> None:
    topics = Topics(own_kafka)

    async def story() -> None:
        publisher = KafkaPublisher(
            own_kafka.servers,
            topics.topic,
            timeout=30,
            options={"message.max.bytes": "2000", "sasl.password": "hunter2"},
        )
        small, large, other = await publisher.publish(
            [ForwardedEvent(b"s"), ForwardedEvent(b"l" * 5_000), ForwardedEvent(b"o")]
        )
        assert (small, other) == ("", "")
        assert "large" in large
        own_kafka.refuse(PRODUCE, 29)  # TOPIC_AUTHORIZATION_FAILED
        (refused,) = await publisher.publish([ForwardedEvent(b"refused")])
        assert "uthoriz" in refused
        await _until_it_works(publisher)  # librdkafka believes the refusal until it asks again
        await publisher.close()

    run(story)
    assert topics.ends() == {0: 3}, "what was refused is not there"
    topics.close()


def test_a_wrong_publisher_is_refused() -> None:
    for servers, topic, timeout in (("", "t", 5.0), ("h:1", "no topic", 5.0), ("h:1", "t", 0.0)):
        with pytest.raises(ConfigError):
            KafkaPublisher(servers, topic, timeout=timeout)
