"""CloudEvents over Kafka, written by the official SDK."""

from __future__ import annotations

from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from cloudevents.core.v1.event import CloudEvent
from tests.sources.kafka.test_kafka_groups import opened, received, run, until
from tests.sources.kafka.topics import Topics

from semel.envelopes import decode
from semel.sources.kafka_topic import KafkaPublisher
from semel.values.forwarded import ForwardedEvent

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.changed", "subject": "50%25 é"}
ORDER = {"id": "order-1", "type": "order"}


def put(topics: Topics, message: Any, *, without_value: bool = False) -> None:
    headers = [(name, value) for name, value in message.headers.items()]
    topics.send([None if without_value else message.value], headers=headers)


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_two_ids_about_one_order_are_two_events(topics: Topics, mode: str) -> None:
    async def story() -> None:
        write = kafka.to_binary_event if mode == "binary" else kafka.to_structured_event
        for id in ("1", "2"):
            put(topics, write(CloudEvent({**ATTRIBUTES, "id": id, "datacontenttype": "application/json"}, ORDER)))
        async with opened(topics.source()) as source:
            events = [decode(delivery.body) for delivery in await received(source, 2)]
        assert sorted(event.identity for event in events) == [("1",), ("2",)]
        assert {(event.shape, event.subject) for event in events} == {("cloudevents", "50%25 é")}
        assert [event.body for event in events] == [ORDER, ORDER]

    run(story)


def test_a_message_without_value_but_with_attributes_is_an_event_without_data(topics: Topics) -> None:
    async def story() -> None:
        put(topics, kafka.to_binary_event(CloudEvent(ATTRIBUTES, None)), without_value=True)
        async with opened(topics.source()) as source:
            (delivery,) = await received(source, 1)
            event = decode(delivery.body)
            assert (event.identity, event.body) == (("1",), None)
            await delivery.ack()
            await until(lambda: topics.left() == 0, "the commit")
        assert topics.dead_letters() == []

    run(story)


def test_the_official_sdk_reads_an_event_that_was_forwarded_to_a_topic(topics: Topics) -> None:
    async def story() -> None:
        whole = kafka.to_structured_event(
            CloudEvent({**ATTRIBUTES, "datacontenttype": "application/json"}, ORDER)
        ).value
        publisher = KafkaPublisher(topics.server.servers, topics.topic, timeout=30)
        assert await publisher.publish([ForwardedEvent(whole, content_type="application/cloudevents+json")]) == [""]
        await publisher.close()
        async with opened(topics.source(forwarded=True)) as source:
            (delivery,) = await received(source, 1)
            assert delivery._message is not None
            assert delivery._message.record is not None
            headers: Any = dict(delivery._message.record.headers() or ())
        read = kafka.from_kafka_event(kafka.KafkaMessage(headers, None, delivery.body))
        assert (read.get_id(), read.get_data()) == ("1", ORDER)

    run(story)


def test_unreadable_attributes_make_a_dead_letter_with_the_reason(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"{}"], headers=[("ce_specversion", b"1.0"), ("ce_id", b"\xff")])
        topics.send([b"{}"], headers=[("ce_id", b"1")])
        topics.send([b"after"])
        async with opened(topics.source()) as source:
            (delivery,) = await received(source, 1)
            assert delivery.body == b"after"
            await delivery.ack()
            await until(lambda: topics.left() == 0, "the letters")
        assert sorted("specversion" in dead_letter.reason for dead_letter in topics.dead_letters()) == [False, True]

    run(story)
