"""CloudEvents in binary mode in the records of Lambda's triggers. The official SDK writes the messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from cloudevents.core.bindings import amqp, kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent
from tests.aws_lambda import invocations
from tests.aws_lambda.invocations import gone_wrong, piped

from semel.aws_lambda.records import read
from semel.envelopes import decode

ORDER = {"id": "order-1", "type": "order"}
ATTRIBUTES = {"specversion": "1.0", "source": "/shop", "type": "order.changed", "subject": "50%25 é"}


def cloud_event(id: str, data: Any = ORDER) -> CloudEvent:
    return CloudEvent({**ATTRIBUTES, "id": id, "datacontenttype": "application/json"}, data)


def octets(value: bytes | str) -> list[int]:
    """Java's bytes, which are signed."""
    raw = value.encode() if isinstance(value, str) else value
    return [octet - 256 if octet > 127 else octet for octet in raw]


def by_kafka(events: list[CloudEvent], *, without_value: bool = False) -> dict[str, Any]:
    messages = [kafka.to_binary_event(event) for event in events]
    invocation = invocations.kafka([None if without_value else message.value for message in messages])
    for message, record in zip(messages, records_of(invocation["records"]), strict=True):
        record["headers"] = [{name: octets(value)} for name, value in message.headers.items()]
    return invocation


def by_rabbitmq(events: list[CloudEvent]) -> dict[str, Any]:
    messages = [rabbitmq.to_binary_event(event) for event in events]
    invocation = invocations.rabbitmq([message.body for message in messages])
    for message, record in zip(messages, records_of(invocation["rmqMessagesByQueue"]), strict=True):
        headers = {name: {"bytes": octets(value)} for name, value in message.headers.items()}
        record["basicProperties"] = {"contentType": message.content_type, "headers": {**headers, "number": 10}}
    return invocation


def by_activemq(events: list[CloudEvent]) -> dict[str, Any]:
    messages = [amqp.to_binary_event(event) for event in events]
    invocation = invocations.activemq([message.application_data for message in messages])
    for message, record in zip(messages, invocation["messages"], strict=True):
        record["properties"] = {**message.application_properties, "content-type": "application/json"}
    return invocation


def by_sqs(events: list[CloudEvent]) -> dict[str, Any]:
    messages = [kafka.to_binary_event(event) for event in events]
    invocation = invocations.sqs([message.value for message in messages])
    for message, record in zip(messages, invocation["Records"], strict=True):
        record["messageAttributes"] = {
            name: {"stringValue": value.decode(), "stringListValues": [], "dataType": "String"}
            for name, value in message.headers.items()
        }
    return invocation


def records_of(lists: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """In the order of the bodies: the records of Kafka alternate between two partitions."""
    both = list(lists.values())
    if len(both) == 1:
        return both[0]
    return sorted((record for records in both for record in records), key=lambda record: record["offset"])


@pytest.mark.parametrize("write", [by_kafka, by_rabbitmq, by_activemq, by_sqs])
@pytest.mark.parametrize("around", [lambda invocation: invocation, piped, gone_wrong], ids=["alone", "pipe", "failed"])
def test_two_ids_about_one_order_are_two_events(write: Any, around: Any) -> None:
    records = read(around(write([cloud_event("1"), cloud_event("2")]))).records
    events = [decode(body) for record in records for body in record.bodies]
    assert sorted(event.identity for event in events) == [("1",), ("2",)]
    assert {(event.shape, event.subject) for event in events} == {("cloudevents", "50%25 é")}
    assert [event.body for event in events] == [ORDER, ORDER]


def test_a_message_without_value_but_with_attributes_is_an_event_without_data() -> None:
    (record,) = read(by_kafka([cloud_event("1", None)], without_value=True)).records
    (body,) = record.bodies
    assert (decode(body).identity, decode(body).body) == (("1",), None)


def test_attributes_that_cannot_be_read_are_the_reason_of_their_record() -> None:
    invocation = by_kafka([cloud_event("1")])
    (record,) = records_of(invocation["records"])
    record["headers"] = [{"ce_id": octets("1")}]
    (found,) = read(invocation).records
    assert "specversion" in found.unfit
    record["headers"] = [{"ce_specversion": octets("1.0")}, {"ce_id": octets(b"\xff")}]
    (found,) = read(invocation).records
    assert "UTF-8" in found.unfit


def test_data_that_is_not_base64_is_no_event_without_data() -> None:
    invocation = by_kafka([cloud_event("1")])
    (record,) = records_of(invocation["records"])
    record["value"] = "no base64!"
    (found,) = read(invocation).records
    assert "base64" in found.unfit


def test_other_headers_change_nothing() -> None:
    invocation = invocations.kafka([b'{"id":"1","type":"t"}'])
    (record,) = records_of(invocation["records"])
    assert record["value"] == b64encode(b'{"id":"1","type":"t"}').decode()
    record["headers"] = [{"content-type": octets("text/plain")}, {"x": "not octets"}, 5, {"y": [300]}]
    assert read(invocation).records[0].bodies == (b'{"id":"1","type":"t"}',)
