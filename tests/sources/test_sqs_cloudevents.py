"""CloudEvents in binary mode over SQS. No specification has a binding for it: attributes are message attributes."""

from __future__ import annotations

import asyncio

import pytest
from tests.sources.places import Queue, reason_of
from tests.sources.test_sqs_answers import received, until

from semel.envelopes import decode

pytestmark = pytest.mark.usefixtures("quick_end")

ATTRIBUTES = {"specversion": "1.0", "source": "/shop", "type": "order.changed", "subject": "50%25 é"}
ORDER = '{"id":"order-1","type":"order"}'


def put(queue: Queue, **attributes: str) -> None:
    told = {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()}
    queue.aws.send_message(QueueUrl=queue.url, MessageBody=ORDER, MessageAttributes=told)


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents_"])
def test_two_ids_about_one_order_are_two_events(queue: Queue, prefix: str) -> None:
    for id in ("1", "2"):
        named = {prefix + name: value for name, value in {**ATTRIBUTES, "id": id}.items()}
        put(queue, **named, **{"Content-Type": "application/json"})

    async def story() -> None:
        source = queue.source()
        deliveries = await received(source, 2)
        events = [decode(delivery.body) for delivery in deliveries]
        for delivery in deliveries:
            await delivery.ack()
        await source.close()
        assert sorted(event.identity for event in events) == [("1",), ("2",)]
        assert {(event.shape, event.subject) for event in events} == {("cloudevents", "50%25 é")}
        assert events[0].body == {"id": "order-1", "type": "order"}

    asyncio.run(story())


def test_unreadable_attributes_make_a_dead_letter_with_the_reason(queue: Queue) -> None:
    put(queue, ce_id="1")
    put(queue, other="1")

    async def story() -> None:
        source = queue.source()
        (delivery,) = await received(source, 1)
        assert delivery.body == ORDER.encode()
        await delivery.ack()
        await until(lambda: queue.left() == 0)
        await source.close()

    asyncio.run(story())
    (dead_letter,) = queue.dead_letters()
    assert dead_letter["Body"] == ORDER
    assert "specversion" in reason_of(dead_letter)
