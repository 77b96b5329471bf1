"""Invocations as AWS makes them, around bodies that the test chooses, and an app that notes what it acted on."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from semel import Context, Event, Reject, Retry, Semel
from semel.testing.traffic import Traffic

QUEUE = "arn:aws:sqs:eu-central-1:123456789012:events"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:events"
STREAM = "arn:aws:kinesis:eu-central-1:123456789012:stream/events"
TRAFFIC = Traffic(seed=7)


class Clocked:
    """The context of an invocation that has so long to go."""

    aws_request_id = "c6af9ac6-7b61-11e6-9a41-93e8deadbeef"
    function_name = "semel"

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._ends - time.monotonic()) * 1000))


def genesys(at: int) -> bytes:
    """One of Genesys Cloud's events, as EventBridge writes it."""
    return TRAFFIC.body(at)


def small(own_id: str, type: str = "ok", **data: Any) -> bytes:
    return json.dumps({"id": own_id, "type": type, "createdTime": 1678886400000, "data": data}).encode()


# ----------------------------------------------------------------------------------------------------------- shapes


def sqs(bodies: Sequence[bytes | str], ids: Sequence[str] = ()) -> dict[str, Any]:
    named = ids or [f"message-{at}" for at in range(len(bodies))]
    return {"Records": [_message(body, own_id) for body, own_id in zip(bodies, named, strict=True)]}


def fifo(messages: Sequence[tuple[str, bytes]]) -> dict[str, Any]:
    """(group, body) each."""
    records = []
    for at, (group, body) in enumerate(messages):
        record = _message(body, f"message-{at}")
        record["attributes"] |= {
            "MessageGroupId": group,
            "MessageDeduplicationId": uuid4().hex,
            "SequenceNumber": str(18849496460467696128 + at),
        }
        records.append({**record, "eventSourceARN": f"{QUEUE}.fifo"})
    return {"Records": records}


def _message(body: bytes | str, own_id: str) -> dict[str, Any]:
    return {
        "messageId": own_id,
        "receiptHandle": "AQEBwJnKyrHigUMZj6rYigCgxlaS3SLy0a…",
        "body": body if isinstance(body, str) else body.decode(),
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": "1545082649183",
            "SenderId": "AIDAIENQZJOLO23YVJ4VO",
            "ApproximateFirstReceiveTimestamp": "1545082649185",
        },
        "messageAttributes": {},
        "md5OfBody": "e4e68fb7bd0e697a0ae8f1bb342846b3",
        "eventSource": "aws:sqs",
        "eventSourceARN": QUEUE,
        "awsRegion": "eu-central-1",
    }


def notification(body: bytes) -> bytes:
    """As SNS writes it into a queue that has not asked for raw delivery."""
    return json.dumps(
        {
            "Type": "Notification",
            "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
            "TopicArn": TOPIC,
            "Message": body.decode(),
            "Timestamp": "2026-05-02T00:54:06.655Z",
            "SignatureVersion": "1",
            "Signature": "…",
            "SigningCertURL": "https://sns.eu-central-1.amazonaws.com/SimpleNotificationService-….pem",
            "UnsubscribeURL": "https://sns.eu-central-1.amazonaws.com/?Action=Unsubscribe",
        }
    ).encode()


def sns(bodies: Sequence[bytes]) -> dict[str, Any]:
    return {
        "Records": [
            {
                "EventVersion": "1.0",
                "EventSource": "aws:sns",
                "EventSubscriptionArn": f"{TOPIC}:21be56ed-a058-49f5-8c98-aedd2564c486",
                "Sns": {**json.loads(notification(body)), "Subject": None, "MessageAttributes": {}},
            }
            for body in bodies
        ]
    }


def kinesis(bodies: Sequence[bytes], keys: Sequence[str] = (), first: int = 0) -> dict[str, Any]:
    spread = keys or [f"key-{at}" for at in range(len(bodies))]
    return {
        "Records": [
            {
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": key,
                    "sequenceNumber": sequence(first + at),
                    "data": b64encode(body).decode(),
                    "approximateArrivalTimestamp": 1545084650.987,
                },
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"shardId-000000000006:{sequence(first + at)}",
                "eventName": "aws:kinesis:record",
                "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
                "awsRegion": "eu-central-1",
                "eventSourceARN": STREAM,
            }
            for at, (body, key) in enumerate(zip(bodies, spread, strict=True))
        ]
    }


def sequence(at: int) -> str:
    """As long as they are: to be compared as numbers, not as texts."""
    return str(9_590_338_271_490_244_560_967_909_843_428_381_052_869_216_220_500_461_494 * 10 + at)


def kafka(bodies: Sequence[bytes | None], keys: Sequence[str | None] = ()) -> dict[str, Any]:
    records = [
        {
            "topic": "events",
            "partition": at % 2,
            "offset": 15 + at,
            "timestamp": 1545084650987,
            "timestampType": "CREATE_TIME",
            **({"key": b64encode(key.encode()).decode()} if key is not None else {}),
            "value": None if body is None else b64encode(body).decode(),
            "headers": [{"headerKey": [104, 101, 97, 100, 101, 114]}],
        }
        for at, (body, key) in enumerate(zip(bodies, keys or [None] * len(bodies), strict=True))
    ]
    return {
        "eventSource": "aws:kafka",
        "eventSourceArn": "arn:aws:kafka:eu-central-1:123456789012:cluster/c/751d2973-a626-431c-9d4e-d7975eb44dd7-2",
        "bootstrapServers": "b-2.demo-cluster-1.a1bcde.c1.kafka.eu-central-1.amazonaws.com:9092",
        "records": {"events-0": records[::2], "events-1": records[1::2]},
    }


def rabbitmq(bodies: Sequence[bytes]) -> dict[str, Any]:
    messages = [
        {
            "basicProperties": {"contentType": "application/json", "deliveryMode": 2, "bodySize": len(body)},
            "redelivered": False,
            "data": b64encode(body).decode(),
        }
        for body in bodies
    ]
    return {
        "eventSource": "aws:rmq",
        "eventSourceArn": "arn:aws:mq:eu-central-1:123456789012:broker:events:b-9bcfa592-423a-4942-879d-eb284b418fc8",
        "rmqMessagesByQueue": {"events::/": messages},
    }


def activemq(bodies: Sequence[bytes], source: str = "aws:mq") -> dict[str, Any]:
    messages = [
        {
            "messageID": f"ID:b-9bcfa592-1.mq.1:{at + 1}",
            "messageType": "jms/text-message",
            "deliveryMode": 1,
            "replyTo": None,
            "type": None,
            "expiration": "60000",
            "priority": 1,
            "correlationId": "myJMSCoID",
            "redelivered": False,
            "destination": {"physicalName": "testQueue"},
            "data": b64encode(body).decode(),
            "timestamp": 1598827811958,
            "brokerInTime": 1598827811958,
            "brokerOutTime": 1598827811959,
            "properties": {"index": "1", "doAlarm": "false"},
        }
        for at, body in enumerate(bodies)
    ]
    arn = "arn:aws:mq:eu-central-1:123456789012:broker:test:b-9bcfa592-423a-4942-879d-eb284b418fc8"
    return {"eventSource": source, "eventSourceArn": arn, "messages": messages}


def firehose(datas: Sequence[bytes]) -> dict[str, Any]:
    return {
        "invocationId": "5a3e7a8b-0ed5-4c1d-9cf1-5a2f6d0b1a7e",
        "deliveryStreamArn": "arn:aws:firehose:eu-central-1:123456789012:deliverystream/events",
        "region": "eu-central-1",
        "records": [
            {"recordId": f"record-{at}", "approximateArrivalTimestamp": 1, "data": b64encode(data).decode()}
            for at, data in enumerate(datas)
        ],
    }


def piped(invocation: dict[str, Any]) -> list[dict[str, Any]]:
    """The same records as a pipe hands them over: a list, with the members of its source in each."""
    if "Records" in invocation:
        return [{**record.pop("kinesis", {}), **record} for record in invocation["Records"]]
    if "messages" in invocation:
        return [{**record, "eventSource": "aws:amq"} for record in invocation["messages"]]
    queues = invocation.get("records") or invocation["rmqMessagesByQueue"]
    beside = {name: invocation[name] for name in ("eventSource", "eventSourceArn")}
    return [{**record, **beside} for records in queues.values() for record in records]


def gone_wrong(invocation: Any) -> dict[str, Any]:
    """What Lambda hands to the destination for failures of an asynchronous invocation."""
    return {
        "version": "1.0",
        "timestamp": "2026-03-19T22:10:00.000Z",
        "requestContext": {
            "requestId": "e4b46cbf-b738-xmpl-8880-a18cdf61200e",
            "functionArn": "arn:aws:lambda:eu-central-1:123456789012:function:semel:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 3,
        },
        "requestPayload": invocation,
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": "RequestId: … Process exited before completing request"},
    }


def on_a_bus(report: dict[str, Any]) -> dict[str, Any]:
    """The same where the destination is a bus of EventBridge."""
    return {
        "version": "0",
        "id": "8f8d5e0a-1111-2222-3333-444455556666",
        "detail-type": "Lambda Function Invocation Result - Failure",
        "source": "lambda",
        "account": "123456789012",
        "time": "2026-03-19T22:10:00Z",
        "region": "eu-central-1",
        "resources": [],
        "detail": report,
    }


def every_shape(bodies: Sequence[bytes]) -> Iterator[tuple[str, Any]]:
    """The same events by every road that carries several of them."""
    yield "sqs", sqs(bodies)
    yield "sqs fifo", fifo([(f"group-{at % 2}", body) for at, body in enumerate(bodies)])
    yield "sns in sqs", sqs([notification(body) for body in bodies])
    yield "sns", sns(bodies)
    yield "kinesis", kinesis(bodies)
    yield "kafka", kafka(bodies)
    yield "rabbitmq", rabbitmq(bodies)
    yield "activemq", activemq(bodies)
    yield "by hand", {"Records": [json.loads(body) for body in bodies]}
    yield "texts by hand", {"Records": [body.decode() for body in bodies]}
    yield "firehose", firehose(bodies)
    yield "firehose, all in one", firehose([b"\n".join(bodies)])
    yield "a pipe of events", [json.loads(body) for body in bodies]
    yield "a pipe from sqs", piped(sqs(bodies))
    yield "a pipe from kinesis", piped(kinesis(bodies))
    yield "a pipe from kafka", piped(kafka(bodies))
    yield "a pipe from rabbitmq", piped(rabbitmq(bodies))
    yield "a pipe from activemq", piped(activemq(bodies))
    yield "a pipe of texts", [body.decode() for body in bodies]
    yield "a failed invocation by sns", gone_wrong(sns(bodies))
    yield "failed invocations in sqs", sqs([json.dumps(gone_wrong(json.loads(body))) for body in bodies])
    yield "failed invocations on a bus", sqs([json.dumps(on_a_bus(gone_wrong(json.loads(body)))) for body in bodies])


# --------------------------------------------------------------------------------------------------------------- app


class Noting:
    """An app with a handler for each way to end, and what was acted on."""

    def __init__(self, ledger: str = "memory://", **options: Any) -> None:
        self.acted: list[str] = []
        self.app = Semel(ledger, random=lambda: 0.0, **options)
        self._behave("ok", lambda event: None)
        self._behave("v2.**", lambda event: None)
        self._behave("later", lambda event: Retry(60))
        self._behave("never", lambda event: Reject("of no use"))
        self._behave("breaks", _break)

    def _behave(self, pattern: str, end: Callable[[Event], Any]) -> None:
        @self.app.on(pattern, name=pattern)
        async def act(event: Event, ctx: Context) -> Any:
            self.acted.append(event.id)
            return end(event)


def _break(event: Event) -> None:
    raise RuntimeError(f"the secret of {event.id} is s3cret")


def failures(*ids: str) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": own_id} for own_id in ids]}


def summary(processed: int = 0, skipped: int = 0, errors: int = 0) -> dict[str, Any]:
    body = f'{{"processed":{processed},"skipped":{skipped},"errors":{errors}}}'
    return {"statusCode": 200, "body": body}
