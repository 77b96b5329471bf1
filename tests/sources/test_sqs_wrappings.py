"""SNS and EventBridge before the queue: the event arrives, whatever it was wrapped in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import botocore.session
import pytest
from tests.sources.places import Queue
from tests.sources.test_sqs_answers import received

from semel.sources.sqs_queue.source import unwrap
from semel.testing.laws.source_harness import document

pytestmark = pytest.mark.usefixtures("quick_end")

NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
    "TopicArn": "arn:aws:sns:eu-central-1:123456789012:MyTopic",
    "Message": '{"id":"é"}',
    "Timestamp": "2026-05-02T00:54:06.655Z",
    "SignatureVersion": "1",
    "Signature": "…",
    "SigningCertURL": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-….pem",
    "UnsubscribeURL": "https://sns.eu-central-1.amazonaws.com/?Action=Unsubscribe",
}


def test_a_notification_of_sns_is_opened() -> None:
    assert unwrap(json.dumps(NOTIFICATION).encode()) == '{"id":"é"}'.encode()
    assert unwrap(json.dumps(NOTIFICATION, ensure_ascii=False, indent=2).encode()) == '{"id":"é"}'.encode()
    assert (
        unwrap(json.dumps({**NOTIFICATION, "Subject": "s", "MessageAttributes": {}}).encode()) == b'{"id":"\xc3\xa9"}'
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"TopicArn",
        b'["TopicArn"]',
        b"\xff TopicArn",
        b'{"Type":"Notification","TopicArn":' + b"[" * 5_000,
        document("e", TopicArn="arn:aws:sns:eu-central-1:123456789012:MyTopic"),
        json.dumps({**NOTIFICATION, "Type": "SubscriptionConfirmation"}).encode(),
        json.dumps({**NOTIFICATION, "Message": {"id": "an object"}}).encode(),
        json.dumps({**NOTIFICATION, "TopicArn": "MyTopic"}).encode(),
        json.dumps({name: value for name, value in NOTIFICATION.items() if name != "MessageId"}).encode(),
        json.dumps({name: value for name, value in NOTIFICATION.items() if name != "Timestamp"}).encode(),
        json.dumps({"detail-type": "x", "detail": NOTIFICATION}).encode(),
        json.dumps(NOTIFICATION).encode()[:-1] + b', "Message": "another one"}',
        json.dumps({**NOTIFICATION, "Message": "\ud800"}).encode(),
    ],
)
def test_every_other_body_is_unchanged(body: bytes) -> None:
    assert unwrap(body) == body


EVENT = {
    "source": "aws.partner/genesys.com/cloud/org/suffix",
    "detail-type": "v2.detail.events.conversation.{id}.customer.end",
    "detail": {
        "topicName": "v2.detail.events.conversation.1.customer.end",
        "version": "2",
        "eventBody": {"eventTime": 1649237504949, "conversationId": "1", "participantId": "p", "sessionId": "s"},
        "metadata": {"CorrelationId": "c"},
    },
}


def _arn(queue: Queue) -> str:
    told = queue.aws.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["QueueArn"])["Attributes"]
    arn: str = told["QueueArn"]
    return arn


def _client(queue: Queue, service: str) -> Any:
    session = botocore.session.get_session()
    return session.create_client(service, region_name=queue.server.region, endpoint_url=queue.server.endpoint or None)


def _the_body(queue: Queue) -> Mapping[str, Any]:
    async def story() -> bytes:
        source = queue.source()
        (delivery,) = await received(source, 1)
        await delivery.ack()
        await source.close()
        return delivery.body

    body: Mapping[str, Any] = json.loads(asyncio.run(story()))
    assert queue.left() == 0
    return body


@pytest.mark.parametrize("raw", ["true", "false"])
def test_an_event_from_sns_is_delivered_unwrapped(queue: Queue, raw: str) -> None:
    sns = _client(queue, "sns")
    topic = sns.create_topic(Name=f"semel-{uuid4().hex}")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=_arn(queue), Attributes={"RawMessageDelivery": raw})
    sns.publish(TopicArn=topic, Message=json.dumps(EVENT))
    sns.close()
    assert _the_body(queue) == EVENT


def test_a_dead_letter_is_the_message_as_it_was_with_its_wrapping(queue: Queue) -> None:
    wrapped = json.dumps({**NOTIFICATION, "Message": "no event"})
    queue.aws.send_message(QueueUrl=queue.url, MessageBody=wrapped)

    async def story() -> None:
        source = queue.source()
        (delivery,) = await received(source, 1)
        assert delivery.body == b"no event"
        await delivery.reject("for a test")
        await source.close()

    asyncio.run(story())
    (dead_letter,) = queue.dead_letters()
    assert dead_letter["Body"] == wrapped


def test_an_event_from_eventbridge_is_delivered_unchanged(queue: Queue) -> None:
    events = _client(queue, "events")
    rule = f"semel-{uuid4().hex}"
    source = f"semel.test.{rule}"
    events.put_rule(Name=rule, EventPattern=json.dumps({"source": [source]}))
    events.put_targets(Rule=rule, Targets=[{"Id": "queue", "Arn": _arn(queue)}])
    answer = events.put_events(
        Entries=[{"Source": source, "DetailType": EVENT["detail-type"], "Detail": json.dumps(EVENT["detail"])}]
    )
    assert answer["FailedEntryCount"] == 0
    events.close()
    body = _the_body(queue)
    assert body["detail"] == EVENT["detail"]
    assert body["detail-type"] == EVENT["detail-type"]
