"""A bus of EventBridge whose letters arrive in a queue, where a test can read them."""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import botocore.session
from tests.support.servers.emulator import Emulator

SOON_S = 60.0


class AwsServer(Emulator):
    """The ledger's table, the bus and the queue behind it, in one emulator."""

    kind = "EVENTBRIDGE"
    services = "sqs,events,dynamodb"

    @cached_property
    def clients(self) -> dict[str, Any]:
        """Of the bus and the queue; they do not wait for any event loop."""
        session = botocore.session.get_session()
        names = ("events", "sqs")
        return {
            name: session.create_client(name, region_name=self.region, endpoint_url=self.endpoint) for name in names
        }

    def stop(self) -> None:
        for client in self.clients.values():
            client.close()
        super().stop()

    def ledger_url(self) -> str:
        endpoint = {} if self.endpoint is None else {"endpoint": self.endpoint}
        return f"dynamodb://ledger-{uuid4().hex}?{urlencode({'region': self.region, **endpoint})}"


class Bus:
    """One bus, with a rule that takes everything of one source to a queue of its own."""

    def __init__(self, server: AwsServer, source: str = "semel") -> None:
        self._server, self._events, self._sqs = server, server.clients["events"], server.clients["sqs"]
        self.name = f"letters-{uuid4().hex}"
        self._events.create_event_bus(Name=self.name)
        self._queue: str = self._sqs.create_queue(QueueName=self.name)["QueueUrl"]
        wanted = ["QueueArn"]
        arn = self._sqs.get_queue_attributes(QueueUrl=self._queue, AttributeNames=wanted)["Attributes"]["QueueArn"]
        pattern = json.dumps({"source": [source], "detail-type": ["semel.dead-letter"]})
        self._events.put_rule(Name="to-queue", EventBusName=self.name, EventPattern=pattern)
        self._events.put_targets(Rule="to-queue", EventBusName=self.name, Targets=[{"Id": "queue", "Arn": arn}])

    def url(self, endpoint: str = "", **options: str) -> str:
        """`endpoint`: of somebody in front of the service."""
        place = endpoint or self._server.endpoint
        options = {"region": self._server.region, **({"endpoint": place} if place else {}), **options}
        return f"eventbridge://{self.name}?{urlencode(options)}"

    @classmethod
    def bare_url(cls, server: AwsServer) -> str:
        """A bus that nobody listens to, for those who do not either: every account has it."""
        endpoint = {"endpoint": server.endpoint} if server.endpoint else {}
        return f"eventbridge://default?{urlencode({'region': server.region, **endpoint})}"

    def disable_rules(self) -> None:
        self._events.disable_rule(Name="to-queue", EventBusName=self.name)

    def arrived(self, count: int) -> list[dict[str, Any]]:
        """The details of so many letters, as they come out of the queue; and no more are there."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + SOON_S
        while len(found) < count and time.monotonic() < deadline:
            found += self._received(wait_s=1)
        assert len(found) == count, f"{len(found)} letters have arrived, {count} were put"
        assert self._received(wait_s=0) == [], "more have arrived than were put"
        return [event["detail"] for event in found]

    def _received(self, wait_s: int) -> list[dict[str, Any]]:
        answer = self._sqs.receive_message(QueueUrl=self._queue, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s)
        messages = answer.get("Messages", [])
        for message in messages:
            self._sqs.delete_message(QueueUrl=self._queue, ReceiptHandle=message["ReceiptHandle"])
        return [json.loads(message["Body"]) for message in messages]

    def close(self) -> None:
        self._events.remove_targets(Rule="to-queue", EventBusName=self.name, Ids=["queue"])
        self._events.delete_rule(Name="to-queue", EventBusName=self.name)
        self._events.delete_event_bus(Name=self.name)
        self._sqs.delete_queue(QueueUrl=self._queue)
