"""An SQS queue as a source of deliveries.

    pollers → in flight → receive → (the worker) → ack, retry, reject → answers

Several long polls run in parallel and fill the bounded set of messages in flight. The worker takes from it. Answers do
not wait for the network: they are sent in batches while the worker continues. A message is deleted only after it is
settled. A message that is not deleted becomes visible again when its visibility ends, also after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal
from uuid import uuid4

import msgspec

from semel.aws import AwsError, Connect
from semel.ports import Fact
from semel.sources.lifecycle import Observer, QueueDelivery, QueueSource, return_and_drain
from semel.sources.sqs_queue.answers import CONCURRENT_REQUESTS, ENTRIES_MAX, SqsAnswers, SqsCounts, SqsStep
from semel.sources.sqs_queue.client import POLL_MORE_S, client_factory, sqs_client
from semel.sources.sqs_queue.in_flight import SqsInFlight, SqsMessage
from semel.sources.sqs_queue.options import SqsOptions, check_queues, diagnose
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.forwarded import METADATA_KEY, read_metadata
from semel.values.log import IncidentLog
from semel.values.strict_json import parse


class _Notification(msgspec.Struct):
    """Fields that SNS writes into every message, unless the subscription uses raw delivery."""

    Type: Literal["Notification"]
    MessageId: str
    TopicArn: str
    Message: str
    Timestamp: str


_read = msgspec.json.Decoder(_Notification).decode


def unwrap(body: bytes) -> bytes:
    """Return the event's bytes: the content of an SNS notification, or the body unchanged.

    Only a body with every field that SNS always writes is unwrapped. The decoder judges everything else: an EventBridge
    event and raw delivery of SNS are in the body unchanged.
    """
    if b"TopicArn" not in body:
        return body  # most messages: skip the parsing
    try:
        notification = _read(body)
        parse(body)  # a body with a duplicate name is ambiguous
    except (msgspec.MsgspecError, MalformedEvent, UnicodeError, RecursionError):
        return body
    return notification.Message.encode() if notification.TopicArn.startswith("arn:") else body


POLL_GRACE_S = 2.0  # for running polls at close: their messages go back now instead of staying invisible
EMPTY_S = 0.05  # pause after an empty response: a proxy can cut long polls short
DRAIN_S = 10.0  # for the answers that are not sent at close


class SqsSource(QueueSource[SqsMessage]):
    """Receives from one queue. The first `receive` opens it on its event loop; several workers can share it.

    `options` are those of SqsOptions. Raises ConfigError.
    """

    _in_flight: SqsInFlight
    _answers: SqsAnswers

    def __init__(
        self,
        queue: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] | None = None,
        observe: Observer | None = None,
        connect: Connect | None = None,
        **options: Any,
    ) -> None:
        super().__init__(random, observe)
        self.options = SqsOptions(queue=queue, **options)
        self.queue = queue
        self.visibility = self.options.visibility
        self._clock = clock
        self._connect = connect or client_factory(
            queue,
            self.options.region,
            self.options.endpoint,
            self.options.pollers + 3 * CONCURRENT_REQUESTS,
            self.options.wait,
        )
        self._client = sqs_client(self._connect)
        self._counts = SqsCounts()
        self._incident = IncidentLog("source_receive_failed", level=logging.WARNING, source=queue)
        self._polls: list[asyncio.Task[None]] = []
        self._extending: asyncio.Task[None] | None = None

    @property
    def counts(self) -> SqsCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the queue for `semel doctor`. The source need not be open."""
        client = sqs_client(self._connect)
        await client.open()
        try:
            return await diagnose(client, self.options)
        finally:
            await client.close()

    # -------------------------------------------------------------------------------------------------- receiving

    def _delivery(self, message: SqsMessage) -> QueueDelivery[SqsMessage]:
        text = message.attribute(METADATA_KEY) if METADATA_KEY in message.attributes else None
        metadata = read_metadata(text, self.options.forwarded)
        body = message.text.encode("utf-8", "surrogatepass")
        if metadata is None:  # a forwarded event has no wrapping
            attributes = ((name, message.attribute(name)) for name in message.attributes)
            structured = from_message(body, attributes) if message.attributes else None  # a binary-mode CloudEvent
            body = structured or unwrap(body)
        return QueueDelivery(self._answers, message, body, self.options, metadata, message.receives)

    async def _open_once(self) -> None:
        await self._client.open()
        try:
            dead_letter_max = await check_queues(self._client, self.options, self._incident, self._pause)
        except BaseException:
            await self._client.close()
            raise
        self._in_flight = SqsInFlight(self.options.max_in_flight, fifo=self.options.fifo)
        self._answers = SqsAnswers(
            self._client,
            self._in_flight,
            self.options,
            clock=self._clock,
            random=self._random,
            observe=self._observe,
            counts=self._counts,
            dead_letter_max=dead_letter_max,
        )
        self._opened = True
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        self._polls = [loop.create_task(self._poll()) for _ in range(self.options.pollers)]
        self._extending = loop.create_task(self._extend())
        self._tasks = [*self._polls, self._extending]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._in_flight.wake())

    async def _poll(self) -> None:
        failures = 0
        attempt = ""
        while not self._stopping:
            reserved = await self._in_flight.reserve(ENTRIES_MAX)
            received: list[SqsMessage] = []
            try:
                if not self._stopping:
                    attempt = attempt or (uuid4().hex if self.options.fifo else "")
                    received = await self._receive(reserved, attempt)
                    self._incident.resolve()
                failures, attempt = 0, ""
            except AwsError as failure:
                failures += 1
                attempt = "" if failure.definite else attempt  # the same id repeats a lost response of a FIFO queue
                self._counts.failures += 1
                self._incident.report(str(failure))
            finally:
                self._in_flight.put(received, reserved)
            if self._stopping:
                self._return_waiting()
            elif failures:
                await self._pause(failures)
            elif not received:
                await asyncio.sleep(EMPTY_S)

    async def _receive(self, count: int, attempt: str) -> list[SqsMessage]:
        request: dict[str, Any] = {"ReceiveRequestAttemptId": attempt} if self.options.fifo else {}
        requested_at = self._clock()
        self._observe(SqsStep.BEFORE_RECEIVE)
        answer: Mapping[str, Any] = await self._client.ask(
            "receive_message",
            self.options.wait + POLL_MORE_S,
            QueueUrl=self.options.queue,
            MaxNumberOfMessages=count,
            VisibilityTimeout=self.options.visibility,
            WaitTimeSeconds=self.options.wait,
            MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageGroupId"],
            MessageAttributeNames=["All"],
            **request,
        )
        # The visibility starts when the queue sends its response, and the response can take long to arrive.
        visible_at = max(requested_at, self._clock() - POLL_MORE_S) + self.options.visibility
        received = [SqsMessage(message, requested_at, visible_at) for message in answer.get("Messages", ())]
        self._counts.received += len(received)
        if received:
            self._observe(SqsStep.AFTER_RECEIVE)
        return received

    async def _extend(self) -> None:
        """Extend messages in flight. Six rounds per visibility: one failed round does no harm."""
        while True:
            await asyncio.sleep(self.options.visibility / 6)
            await self._answers.extend()

    # ---------------------------------------------------------------------------------------------------- stopping

    def _return_waiting(self) -> None:
        self._answers.return_unused(self._in_flight.take_waiting())

    async def _close_once(self) -> None:
        if self._polls:
            _, late = await asyncio.wait(self._polls, timeout=POLL_GRACE_S)
            await _cancel(late)
        await return_and_drain(self._in_flight, self._answers, DRAIN_S, self.options.queue)
        if self._extending is not None:
            await _cancel({self._extending})
        await self._client.close()


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
