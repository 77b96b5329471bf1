"""Sources for the laws: a folder, and queues of the emulator, each with a ledger of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.sources.consumer_process import Plan, happened
from tests.sources.forking import starting
from tests.support.servers.sqs import SqsServer

from semel import Semel
from semel.core.crash_points import Boundary
from semel.sources.sqs_queue import SqsSource
from semel.sources.sqs_queue.answers import SqsStep
from semel.testing.folder_source import FolderSource
from semel.testing.source_laws import LEASE_S, TOPIC, SourceDeadLetter, SourceHarness

# One for each gap between two steps; tests/proof tries every boundary of the flow.
FLOW_STEPS = (Boundary.BEFORE_CLAIM, Boundary.AFTER_CLAIM, Boundary.HANDLER_END, Boundary.AFTER_SETTLE)
SQS_STEPS = (*SqsStep, Boundary.AFTER_CLAIM, Boundary.HANDLER_END, Boundary.AFTER_SETTLE)
FIFO_STEPS = (
    SqsStep.AFTER_RECEIVE,
    Boundary.AFTER_SETTLE,
    SqsStep.AFTER_DELETE,
    SqsStep.AFTER_RETURN,
    SqsStep.AFTER_DEAD_LETTER,
)
HOLD_S = 30  # seconds: the default visibility


def make_app(home: Path) -> Callable[..., Semel]:
    def make(handle: Callable[..., Any], *, max_attempts: int = 8) -> Semel:
        app = Semel(f"sqlite:///{home}/semel.db", lease=LEASE_S, random=lambda: 0.0)
        app.on(TOPIC, max_attempts=max_attempts, name="handle")(handle)
        return app

    return make


def folder_harness(home: Path) -> SourceHarness:
    folder = home / "source"
    place = FolderSource(folder)
    numbers = iter(range(1_000_000))

    def send(bodies: Sequence[bytes], group: str) -> None:
        for body in bodies:
            place.put(f"{next(numbers):06}", body)

    def dead_letters() -> list[SourceDeadLetter]:
        return [
            SourceDeadLetter((folder / "rejected" / f"{name}.json").read_bytes(), reason)
            for name, reason in place.rejected().items()
            if (folder / "rejected" / f"{name}.json").exists()
        ]

    return SourceHarness(
        send=send,
        open=lambda: FolderSource(folder, patience_s=0.5),
        app=make_app(home),
        left=lambda: len(place.left()),
        dead_letters=dead_letters,
        consumer=starting(Plan(home=str(home), folder=str(folder))),
        steps=(*FLOW_STEPS, Boundary.AFTER_ACK),
        happened=lambda: happened(home / "ledger.db"),
        hold_s=0,
        ends=True,
    )


class Queue:
    """One queue and its dead letters, seen by a client of their own."""

    def __init__(self, server: SqsServer, aws: Any, *, fifo: bool = False, **attributes: str) -> None:
        self.server = server
        self.aws = aws
        self.fifo = fifo
        self.url = self.make(fifo, **attributes)
        self.dead_url = self.make(fifo)

    def make(self, fifo: bool, **attributes: str) -> str:
        name = f"semel-{uuid4().hex}" + (".fifo" if fifo else "")
        wanted = {"FifoQueue": "true", **attributes} if fifo else attributes
        url: str = self.aws.create_queue(QueueName=name, Attributes=wanted)["QueueUrl"]
        return url

    def source(self, **options: Any) -> SqsSource:
        return SqsSource(
            options.pop("queue", self.url),
            **{
                "dead_letters": self.dead_url,
                "endpoint": self.server.endpoint,
                "region": self.server.region,
                "visibility": HOLD_S,
                "wait": 1,
                "pollers": 2,
                **options,
            },
        )

    def send(self, bodies: Sequence[bytes], group: str = "") -> None:
        for at in range(0, len(bodies), 10):
            entries: list[dict[str, Any]] = []
            for number, body in enumerate(bodies[at : at + 10]):
                entry: dict[str, Any] = {"Id": str(number), "MessageBody": body.decode()}
                if self.fifo:
                    entry |= {"MessageGroupId": group or uuid4().hex, "MessageDeduplicationId": uuid4().hex}
                entries.append(entry)
            answer = self.aws.send_message_batch(QueueUrl=self.url, Entries=entries)
            assert not answer.get("Failed"), answer

    def attributes(self, url: str = "") -> dict[str, int]:
        told = self.aws.get_queue_attributes(QueueUrl=url or self.url, AttributeNames=["All"])["Attributes"]
        return {name: int(value) for name, value in told.items() if name.startswith("Approximate")}

    def left(self) -> int:
        return sum(self.attributes().values())

    def visible(self) -> int:
        return self.visible_of(self.url)

    def visible_of(self, url: str) -> int:
        return self.attributes(url)["ApproximateNumberOfMessages"]

    def dead_letters(self) -> list[dict[str, Any]]:
        """The messages among the dead letters. They are not hidden from the next look."""
        found: list[dict[str, Any]] = []
        while True:
            answer = self.aws.receive_message(
                QueueUrl=self.dead_url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], VisibilityTimeout=HOLD_S
            )
            if not (some := answer.get("Messages", [])):
                break
            found += some
        for message in found:
            self.aws.change_message_visibility(
                QueueUrl=self.dead_url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        return found

    def plan(self, home: Path, **changes: Any) -> Plan:
        return Plan(
            home=str(home),
            queue=self.url,
            dead_letters=self.dead_url,
            endpoint=self.server.endpoint,
            region=self.server.region,
            **changes,
        )

    def harness(self, home: Path) -> SourceHarness:
        return SourceHarness(
            send=self.send,
            open=self.source,
            app=make_app(home),
            left=self.left,
            dead_letters=lambda: [
                SourceDeadLetter(message["Body"].encode(), reason_of(message)) for message in self.dead_letters()
            ],
            consumer=starting(self.plan(home)),
            steps=FIFO_STEPS if self.fifo else SQS_STEPS,
            happened=lambda: happened(home / "ledger.db"),
            hold_s=HOLD_S,
        )


def reason_of(message: dict[str, Any]) -> str:
    reason: str = message.get("MessageAttributes", {}).get("semel.reason", {}).get("StringValue", "")
    return reason


os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # no credentials are looked for on the network
