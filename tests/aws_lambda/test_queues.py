"""Real queues, a redrive policy and a rule of EventBridge, in an emulator. What AWS does between queue and function is
done here as it says it does: the answer alone decides what is deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import botocore.session
from tests.aws_lambda.invocations import Clocked, Noting, genesys, notification, small
from tests.sources.places import Queue

from semel.testing.traffic import storm

ROUNDS_MAX = 100  # far more than any of these needs


class Mapping:
    """An event source mapping with ReportBatchItemFailures. A visibility of 0 s: what failed comes again at once."""

    def __init__(self, queue: Queue, handler: Callable[..., dict[str, Any]]) -> None:
        self._queue = queue
        self._handler = handler
        self.batches: list[tuple[int, int]] = []  # received, failed

    def run(self) -> None:
        """Until the queue is empty."""
        for _ in range(ROUNDS_MAX):
            if not self.invoke():
                return
        raise AssertionError(f"the queue does not become empty: {self.batches[-5:]}")

    def invoke(self) -> int:
        answer = self._queue.aws.receive_message(
            QueueUrl=self._queue.url, MaxNumberOfMessages=10, AttributeNames=["All"], VisibilityTimeout=60
        )
        messages = answer.get("Messages", [])
        if not messages:
            return 0
        told = self._handler({"Records": [self._record(message) for message in messages]}, Clocked(60))
        failed = {failure["itemIdentifier"] for failure in told["batchItemFailures"]}
        assert failed <= {message["MessageId"] for message in messages}
        for message in messages:
            named = {"QueueUrl": self._queue.url, "ReceiptHandle": message["ReceiptHandle"]}
            if message["MessageId"] in failed:
                self._queue.aws.change_message_visibility(**named, VisibilityTimeout=0)
            else:
                self._queue.aws.delete_message(**named)
        self.batches.append((len(messages), len(failed)))
        return len(messages)

    def _record(self, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {},
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": arn_of(self._queue, self._queue.url),
            "awsRegion": self._queue.server.region,
        }


def arn_of(queue: Queue, url: str) -> str:
    told = queue.aws.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]
    arn: str = told["QueueArn"]
    return arn


def test_a_storm_through_a_queue_is_acted_on_once(queue: Queue) -> None:
    noting = Noting()
    deliveries = storm(50, 0.5, seed=5).deliveries
    queue.send([notification(body) if at % 3 == 0 else body for at, body in enumerate(deliveries)])
    Mapping(queue, noting.app.lambda_handler()).run()
    assert queue.left() == 0
    assert len(set(noting.acted)) == len(noting.acted) == 50


def test_a_record_that_never_succeeds_goes_to_the_dead_letter_queue_and_the_rest_is_done(queue: Queue) -> None:
    policy = {"deadLetterTargetArn": arn_of(queue, queue.dead_url), "maxReceiveCount": "3"}
    queue.aws.set_queue_attributes(QueueUrl=queue.url, Attributes={"RedrivePolicy": json.dumps(policy)})
    noting = Noting()
    mapping = Mapping(queue, noting.app.lambda_handler())
    queue.send([small("1"), b"no event", small("2"), b"{}", small("3", "never")])
    mapping.run()
    assert sorted(noting.acted) == ["1", "2", "3"]
    assert queue.left() == 0
    assert sorted(message["Body"] for message in queue.dead_letters()) == ["no event", "{}"]
    assert sum(failed for _, failed in mapping.batches) == 2 * 3


def test_a_group_of_a_fifo_queue_resumes_where_it_stopped(new_queue: Callable[..., Queue]) -> None:
    queue = new_queue(fifo=True)
    noting = Noting()
    app = noting.app
    order: list[str] = []

    @app.on("step")
    async def step(event: Any, ctx: Any) -> None:
        if event.id == "g2" and ctx.attempt < 3:
            raise RuntimeError
        order.append(event.id)

    queue.send([small(f"g{at}", "step") for at in range(5)], group="g")
    queue.send([small(f"h{at}", "step") for at in range(3)], group="h")
    mapping = Mapping(queue, app.lambda_handler())
    mapping.run()
    assert queue.left() == 0
    assert [own_id for own_id in order if own_id[0] == "g"] == ["g0", "g1", "g2", "g3", "g4"]
    assert [own_id for own_id in order if own_id[0] == "h"] == ["h0", "h1", "h2"]
    assert any(failed for _, failed in mapping.batches)


def test_an_event_by_a_rule_of_eventbridge_is_acted_on_once(queue: Queue) -> None:
    bus: Any = botocore.session.get_session().create_client(
        "events", region_name=queue.server.region, endpoint_url=queue.server.endpoint or None
    )
    rule = f"semel-{uuid4().hex}"
    source = f"semel.test.{rule}"
    bus.put_rule(Name=rule, EventPattern=json.dumps({"source": [source]}))
    bus.put_targets(Rule=rule, Targets=[{"Id": "queue", "Arn": arn_of(queue, queue.url)}])
    event = json.loads(genesys(0))
    entry = {"Source": source, "DetailType": event["detail-type"], "Detail": json.dumps(event["detail"])}
    assert bus.put_events(Entries=[entry, entry])["FailedEntryCount"] == 0  # a producer that did not hear the first
    bus.close()
    noting = Noting()
    mapping = Mapping(queue, noting.app.lambda_handler())
    mapping.run()
    assert sum(received for received, _ in mapping.batches) == 2  # each with an id of its own
    assert len(noting.acted) == 1
