"""CloudEvents over RabbitMQ, written by the official SDK: by the binding of AMQP 1.0, and by Knative's of RabbitMQ."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cloudevents.core.bindings import amqp, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from tests.sources.rabbitmq.places import Place, headers_of, reason_of

from semel.envelopes import decode
from semel.sources.rabbitmq_queue import RabbitPublisher
from semel.testing.laws.source_harness import document
from semel.testing.laws.sources import received
from semel.values.forwarded import ForwardedEvent

ORDER = {"id": "order-1", "type": "order"}


def cloud_event(id: str, data: Any = ORDER) -> CloudEvent:
    attributes = {"specversion": "1.0", "id": id, "source": "/shop", "type": "order.changed", "subject": "50%25 é"}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, data)


def by_amqp(event: CloudEvent) -> tuple[bytes, dict[str, Any], str]:
    message = amqp.to_binary_event(event)
    return message.application_data, message.application_properties, message.properties["content-type"]


def by_amqp_with_colons(event: CloudEvent) -> tuple[bytes, dict[str, Any], str]:
    body, properties, content_type = by_amqp(event)
    return (
        body,
        {name.replace("cloudEvents_", "cloudEvents:"): value for name, value in properties.items()},
        content_type,
    )


def by_rabbitmq(event: CloudEvent) -> tuple[bytes, dict[str, Any], str]:
    message = rabbitmq.to_binary_event(event)
    return message.body, dict(message.headers), message.content_type or ""


def structured(event: CloudEvent) -> tuple[bytes, dict[str, Any], str]:
    message = rabbitmq.to_structured_event(event)
    return message.body, {"ce-specversion": "1.0", "ce-id": "beside it"}, message.content_type or ""


@pytest.mark.parametrize("write", [by_amqp, by_amqp_with_colons, by_rabbitmq, structured])
def test_two_ids_about_one_order_are_two_events(place: Place, write: Any) -> None:
    async def story() -> None:
        for id in ("1", "2"):
            body, headers, content_type = write(cloud_event(id))
            place.send([body], headers=headers, content_type=content_type)
        source = place.source()
        events = []
        for delivery in await received(source, 2):
            events.append(decode(delivery.body))
            await delivery.ack()
        await source.close()
        assert [event.identity for event in events] == [("1",), ("2",)]
        assert {(event.shape, event.subject) for event in events} == {("cloudevents", "50%25 é")}
        assert [event.body for event in events] == [ORDER, ORDER]

    asyncio.run(story())


def test_the_official_sdk_reads_an_event_that_was_forwarded_to_a_queue(place: Place) -> None:
    async def story() -> None:
        publisher = RabbitPublisher(place.broker.url, place.queue, timeout=30)
        body = rabbitmq.to_structured_event(cloud_event("1")).body
        assert await publisher.publish([ForwardedEvent(body, content_type="application/cloudevents+json")]) == [""]
        await publisher.close()

    asyncio.run(story())
    (found,) = place.peek(place.queue)
    properties = found.header.properties
    message = rabbitmq.RabbitMQMessage(headers_of(found), properties.content_type, found.body)
    read = rabbitmq.from_rabbitmq_event(message)
    assert (read.get_id(), read.get_data()) == ("1", ORDER)


def test_an_event_without_data_is_one_and_unreadable_attributes_make_a_dead_letter(place: Place) -> None:
    async def story() -> None:
        place.send([document("e")], headers={"cloudEvents:id": "1"})
        body, headers, content_type = by_amqp(cloud_event("1", None))
        place.send([body], headers=headers, content_type=content_type)
        source = place.source()
        (delivery,) = await received(source, 1)
        event = decode(delivery.body)
        assert (event.identity, event.body) == (("1",), None)
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())
    (dead_letter,) = place.dead_letters()
    assert "specversion" in reason_of(dead_letter)
