"""An independent reader of the same records: AWS's own Powertools see in them what we see, and answer the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    SqsFifoPartialProcessor,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes import (
    KafkaEvent,
    KinesisFirehoseEvent,
    KinesisStreamEvent,
    SNSEvent,
    SQSEvent,
)
from aws_lambda_powertools.utilities.data_classes.active_mq_event import ActiveMQEvent
from aws_lambda_powertools.utilities.data_classes.rabbit_mq_event import RabbitMQEvent
from tests.aws_lambda.invocations import (
    Clocked,
    Noting,
    activemq,
    fifo,
    firehose,
    genesys,
    kafka,
    kinesis,
    rabbitmq,
    small,
    sns,
    sqs,
)

from semel.aws_lambda.records import read

BODIES = [genesys(at) for at in range(4)]


@pytest.mark.parametrize(
    ("invocation", "bodies"),
    [
        (sqs(BODIES), lambda event: [record.body.encode() for record in SQSEvent(event).records]),
        (sns(BODIES), lambda event: [record.sns.message.encode() for record in SNSEvent(event).records]),
        (
            kinesis(BODIES),
            lambda event: [record.kinesis.data_as_bytes() for record in KinesisStreamEvent(event).records],
        ),
        (kafka(BODIES), lambda event: [record.decoded_value for record in KafkaEvent(event).records]),
        (firehose(BODIES), lambda event: [record.data_as_bytes for record in KinesisFirehoseEvent(event).records]),
        (
            rabbitmq(BODIES),
            lambda event: [
                message.decoded_data.encode()
                for messages in RabbitMQEvent(event).rmq_messages_by_queue.values()
                for message in messages
            ],
        ),
        (
            activemq(BODIES),
            lambda event: [message.decoded_data.encode() for message in ActiveMQEvent(event).messages],
        ),
    ],
    ids=["sqs", "sns", "kinesis", "kafka", "firehose", "rabbitmq", "activemq"],
)
def test_powertools_find_the_same_bodies(invocation: Any, bodies: Callable[[Any], list[bytes]]) -> None:
    assert [body for record in read(invocation).records for body in record.bodies] == bodies(invocation)
    assert sorted(bodies(invocation)) == sorted(BODIES)


def _act(record: Any) -> None:
    if '"later"' in record.body:
        raise RuntimeError


@pytest.mark.parametrize("types", [["ok"] * 3, ["ok", "later", "ok"], ["later", "ok", "ok", "later"]])
def test_powertools_tell_a_queue_the_same(types: list[str]) -> None:
    bodies = [small(str(at), type) for at, type in enumerate(types)]
    processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
    theirs = process_partial_response(sqs(bodies), _act, processor)
    assert Noting().app.lambda_handler()(sqs(bodies), Clocked(60)) == theirs


@pytest.mark.parametrize("types", [["ok"] * 4, ["ok", "later", "ok", "ok"], ["later", "ok", "ok", "ok", "ok", "later"]])
def test_powertools_stop_a_group_at_the_same_place(types: list[str]) -> None:
    messages = [("ab"[at % 2], small(str(at), type)) for at, type in enumerate(types)]
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)
    theirs = process_partial_response(fifo(messages), _act, processor)
    assert Noting().app.lambda_handler()(fifo(messages), Clocked(60)) == theirs
