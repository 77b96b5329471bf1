"""Telling shapes apart: alone, one in another, broken, and made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.aws_lambda.invocations import (
    activemq,
    fifo,
    firehose,
    genesys,
    gone_wrong,
    kafka,
    kinesis,
    notification,
    on_a_bus,
    piped,
    rabbitmq,
    sequence,
    small,
    sns,
    sqs,
)

from semel import MalformedEvent
from semel.aws_lambda.records import WRAPPINGS_MAX, LambdaRecord, documents, read

EVENT = genesys(0)


@pytest.mark.parametrize(
    ("invocation", "trigger", "ids"),
    [
        (sqs([EVENT, EVENT]), "sqs", ["message-0", "message-1"]),
        (piped(sqs([EVENT])), "sqs", ["message-0"]),
        (sns([EVENT]), "sns", [""]),
        (kinesis([EVENT, EVENT], first=9), "kinesis", [sequence(9), sequence(10)]),
        (kafka([EVENT, EVENT, EVENT]), "kafka", ["", "", ""]),
        (rabbitmq([EVENT]), "rabbitmq", [""]),
        (activemq([EVENT, EVENT]), "activemq", ["ID:b-9bcfa592-1.mq.1:1", "ID:b-9bcfa592-1.mq.1:2"]),
        (activemq([EVENT], source="aws:amq"), "activemq", ["ID:b-9bcfa592-1.mq.1:1"]),
        (piped(activemq([EVENT])), "direct", ["ID:b-9bcfa592-1.mq.1:1"]),
        ({"Records": [EVENT.decode(), EVENT.decode()]}, "direct", ["", ""]),
        ([EVENT.decode()], "direct", [""]),
        (firehose([EVENT]), "firehose", ["record-0"]),
        ({"Records": []}, "sqs", []),
        ({"records": {}}, "kafka", []),
        ([], "direct", []),
    ],
)
def test_a_shape_is_recognised_by_its_names(invocation: Any, trigger: str, ids: list[str]) -> None:
    batch = read(invocation)
    assert batch.trigger == trigger
    assert [record.id for record in batch.records] == ids
    assert [record.bodies for record in batch.records] == [(EVENT,)] * len(ids)


def test_an_event_alone_keeps_its_values() -> None:
    document = {"id": "é", "type": "x", "data": {"n": 1.0, "big": 2**60, "none": None, "list": [1, "\u2028"]}}
    (record,) = read(document).records
    (body,) = record.bodies
    assert json.loads(body) == document
    assert isinstance(json.loads(body)["data"]["n"], float)


@pytest.mark.parametrize(
    "invocation",
    [
        gone_wrong(json.loads(EVENT)),
        on_a_bus(gone_wrong(json.loads(EVENT))),
        gone_wrong(gone_wrong(json.loads(EVENT))),
        gone_wrong(sns([EVENT])),
        gone_wrong(sns([notification(EVENT)])),
        gone_wrong(kinesis([json.dumps(gone_wrong(sqs([notification(EVENT)]))).encode()])),
        {"requestPayload": json.loads(EVENT)},
        sqs([notification(json.dumps(gone_wrong([json.loads(EVENT)])).encode())]),
        sqs([notification(notification(EVENT))]),
        [gone_wrong(json.loads(EVENT))],
    ],
)
def test_wrappings_around_an_event_are_removed(invocation: Any) -> None:
    (record,) = read(invocation).records
    assert [json.loads(body) for body in record.bodies] == [json.loads(EVENT)]


def test_nothing_is_unwrapped_for_ever() -> None:
    body = EVENT
    for _ in range(WRAPPINGS_MAX + 1):
        body = notification(body)
    (record,) = read(sqs([body])).records
    (left,) = record.bodies
    assert json.loads(left)["Type"] == "Notification"  # no event: the decoder says so
    wrapped: Any = json.loads(EVENT)
    for _ in range(50):
        wrapped = {"requestPayload": wrapped}
    (record,) = read(wrapped).records
    assert len(record.bodies) == 1


@pytest.mark.parametrize(
    "document",
    [
        {"id": "1", "type": "x", "data": {}, "requestPayload": {"id": "2", "type": "y"}},
        {"detail-type": "x", "detail": {"id": "1", "requestPayload": {"id": "2", "type": "y"}}},
        {"id": "1", "type": "x", "TopicArn": "arn:aws:sns:eu-central-1:123456789012:t", "Message": "{}"},
        {"requestPayload": {"Records": [5]}},
        {"requestPayload": "a text"},
    ],
)
def test_an_event_that_only_looks_wrapped_stays_as_it_is(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    (record,) = read(sqs([text])).records
    assert record.bodies == (text.encode(),)


def test_a_fifo_queue_is_recognised_by_its_name_or_its_sequence() -> None:
    first, second = fifo([("g", EVENT), ("g", EVENT)])["Records"]
    del second["eventSourceARN"]
    assert [record.group for record in read({"Records": [first, second]}).records] == ["g", "g"]


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"messageId": "1", "eventSource": "aws:sqs"}, "1"),
        ({"messageId": "1", "body": None, "eventSource": "aws:sqs"}, "1"),
        ({"messageId": "1", "body": "\ud800", "eventSource": "aws:sqs"}, "1"),
        ({"EventSource": "aws:sns"}, ""),
        ({"Sns": {"Message": 5}}, ""),
        ({"kinesis": {"sequenceNumber": "7", "data": "no base64!"}}, "7"),
        ({"kinesis": {"sequenceNumber": "7"}}, "7"),
        ({"eventSource": "aws:kinesis", "kinesis": 5}, ""),
    ],
)
def test_a_record_that_cannot_be_read_is_unfit_and_keeps_its_name(record: Any, named: str) -> None:
    (found,) = read({"Records": [record]}).records
    assert found.unfit
    assert found.id == named
    assert found.bodies == ()


@pytest.mark.parametrize(
    ("invocation", "named"),
    [
        (None, "NoneType"),
        ("a text", "str"),
        (5, "int"),
        ([5], "int"),
        ({"Records": [["s3cret"]]}, "Records.*list"),
        ({"Records": [sqs([b"s3cret"])["Records"][0], sns([b"s3cret"])["Records"][0]]}, "Records.*sns.*sqs"),
        ({"records": {"topic-0": "s3cret"}}, "records.*str"),
        ({"records": {"topic-0": ["s3cret"]}}, "records.*str"),
        ({"rmqMessagesByQueue": {"queue": {"s3cret": 1}}}, "rmqMessagesByQueue.*dict"),
        ({"invocationId": "1", "records": ["s3cret"]}, "records.*str"),
        ({"id": "1", "type": "x", "data": {1, 2}}, "JSON.*'id', 'type', 'data'"),
        ({"id": "s3cret", "n": float("nan")}, "JSON.*'id', 'n'"),
    ],
)
def test_the_error_of_an_unknown_shape_shows_names_and_no_values(invocation: Any, named: str) -> None:
    with pytest.raises(MalformedEvent, match=named) as raised:
        read(invocation)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"a":1}{"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b' {"a":1}\n\n{"b":"}{"} ', [b'{"a":1}', b'{"b":"}{"}']),
        (b'{"a":1}{"b":', [b'{"a":1}', b'{"b":']),
        (b'{"a":"\xc3\xa9"}[]', [b'{"a":"\xc3\xa9"}', b"[]"]),
        (b"", [b""]),
        (b"  ", [b"  "]),
        (b'\xff{"a":1}', [b'\xff{"a":1}']),
        (b"[" * 100_000, [b"[" * 100_000]),
    ],
)
def test_concatenated_documents_are_split(data: bytes, found: list[bytes]) -> None:
    assert list(documents(data)) == found


def test_many_documents_are_read_in_no_time() -> None:
    assert len(documents(small("1") * 20_000)) == 20_000


SECRET = "s3cret"
VALUES = st.recursive(
    st.sampled_from([None, True, 0, -1.5, "", SECRET, "e30=", '{"id":"1","type":"x"}', "aws:sqs", "arn:aws:sns:x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("Records", "records", "rmqMessagesByQueue", "requestPayload", "detail", "kinesis", "Sns", "body"),
                    *("messageId", "data", "value", "Message", "topic", "partition", "offset", "eventSource", "Type"),
                    *("attributes", "MessageGroupId", "recordId", "invocationId", "basicProperties", "id", "key"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@example({"Records": [{"eventSource": []}]})
@given(VALUES)
def test_any_input_is_read_or_refused_without_showing_a_value(invocation: Any) -> None:
    said = ""
    records: list[LambdaRecord] = []
    try:
        batch = read(invocation)
        records = batch.records
    except MalformedEvent as refused:
        said = str(refused)
    assert SECRET not in said
    for record in records:
        assert SECRET not in record.unfit
        assert not (record.unfit and record.bodies)
