"""An SQS queue as a source of deliveries.

    pollers → in flight → receive → (the worker) → ack, retry, reject → answers

Several long polls run in parallel and fill the bounded set of messages in flight. The worker takes from it. Answers do
not wait for the network: they are sent in batches while the worker continues. A message is deleted only after it is
settled. A message that is not deleted becomes visible again when its visibility ends, also after a crash.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import uuid4

import msgspec

from semel.ports import Delivery, Fact
from semel.sources.lifecycle import Observer, QueueSource, is_logged
from semel.sources.sqs_queue.answers import CONCURRENT_REQUESTS, ENTRIES_MAX, SqsAnswers, SqsCounts, SqsStep
from semel.sources.sqs_queue.client import POLL_MORE_S, Connect, SqsClient, SqsError, client_factory
from semel.sources.sqs_queue.doctor import check_options, check_queues, diagnose
from semel.sources.sqs_queue.in_flight import SqsInFlight, SqsMessage
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.event import DecodeOptions
from semel.values.forwarded import METADATA_KEY, ForwardMetadata, read_metadata
from semel.values.log import log
from semel.values.retry import backoff_s
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


VISIBILITY_S = 30  # above the lease of 25 s
WAIT_S = 20  # the longest poll there is: the fewest empty ones
POLLERS = 4
IN_FLIGHT = 256
POLL_GRACE_S = 2.0  # for running polls at close: their messages go back now instead of staying invisible
EMPTY_S = 0.05  # pause after an empty response: a proxy can cut long polls short
DRAIN_S = 10.0  # for the answers that are not sent at close
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 20.0  # the source resumes at most this long after an outage ends


class SqsDelivery(Delivery):
    """One receipt of a message. An answer is queued for sending when its call returns."""

    __slots__ = ("_message", "_source", "body", "decode_options", "headers", "receives", "tenant")

    def __init__(self, source: SqsSource, message: SqsMessage, metadata: ForwardMetadata | None = None) -> None:
        """Metadata marks an event that an endpoint of Semel forwarded: it has no wrapping, and the source's own tenant
        and decode options do not apply."""
        body = message.text.encode("utf-8", "surrogatepass")
        self.body = body if metadata is not None else _structured(body, message) or unwrap(body)
        self.tenant = source.tenant if metadata is None else metadata.tenant
        self.decode_options = source.decode_options if metadata is None else metadata.decode_options
        self.headers = None if metadata is None else metadata.headers
        self.receives = message.receives
        self._source = source
        self._message = message

    async def ack(self) -> None:
        if self._first_answer():
            self._source._answers.delete(self._message)

    async def retry(self, after_s: float) -> None:
        if self._first_answer():
            self._source._answers.return_message(self._message, after_s)

    async def reject(self, reason: str) -> None:
        if self._first_answer():
            self._source._answers.dead_letter_message(self._message, reason)

    def _first_answer(self) -> bool:
        """False after the first answer, and when the source was closed: the message has gone back already."""
        if self._message not in self._source._handed_out:
            return False
        del self._source._handed_out[self._message]
        return True


class SqsSource(QueueSource):
    """Receives from one queue. The first `receive` opens it on its event loop; several workers can share it.

    queue, dead_letters: URLs of queues. Without dead_letters, rejected messages are left to the queue's redrive policy.
    region, endpoint: used where the URL or the usual AWS chain does not define them.
    pollers: concurrent long polls. max_in_flight: messages that are received and not answered.
    visibility: seconds for which a message is invisible, extended while it is in flight; more than the handlers' lease.
    reading: decode options of this queue, if they differ from the app's.
    forwarded: endpoints of Semel fill this queue. The metadata of a message sets its tenant and decode options, so
        every sender with access to the queue is trusted. Messages without metadata are processed as usual.
    """

    def __init__(
        self,
        queue: str,
        *,
        dead_letters: str = "",
        region: str = "",
        endpoint: str = "",
        pollers: int = POLLERS,
        max_in_flight: int = IN_FLIGHT,
        visibility: int = VISIBILITY_S,
        wait: int = WAIT_S,
        tenant: str = "",
        decode_options: DecodeOptions | None = None,
        forwarded: bool = False,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
        connect: Connect | None = None,
    ) -> None:
        super().__init__()
        check_options(queue, dead_letters, pollers, max_in_flight, visibility, wait)
        self.queue = queue
        self.dead_letters = dead_letters
        self.tenant = tenant
        self.decode_options = decode_options
        self.forwarded = forwarded
        self._pollers = pollers
        self._max_in_flight = max_in_flight
        self.visibility = visibility
        self._wait_s = wait
        self._clock = clock
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._fifo = queue.endswith(".fifo")
        self._connect = connect or client_factory(queue, region, endpoint, pollers + 3 * CONCURRENT_REQUESTS, wait)
        self._client = SqsClient(self._connect)
        self._in_flight: SqsInFlight
        self._answers: SqsAnswers
        self._handed_out: dict[SqsMessage, None] = {}  # delivered to a worker and not answered
        self._counts = SqsCounts()
        self._polls: list[asyncio.Task[None]] = []
        self._extending: asyncio.Task[None] | None = None

    @property
    def counts(self) -> SqsCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the queue for `semel doctor`. The source need not be open."""
        client = SqsClient(self._connect)
        await client.open()
        try:
            return await diagnose(client, self.queue, self.dead_letters, self.forwarded)
        finally:
            await client.close()

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[SqsDelivery]:
        """Return up to `limit` deliveries, after waiting for the first; empty when the source is stopped.

        Raises ConfigError at opening if the queue or a permission is missing.
        """
        await self._open()
        while not self._stopping:
            while taken := self._in_flight.take(
                limit
            ):  # all of them may be dead letters, and more may be ready behind them
                if deliveries := self._deliveries(taken):
                    return deliveries
            for task in (*self._polls, self._extending):
                if task is not None and task.done():
                    task.result()  # raises an unexpected error
            await self._in_flight.changed()
        return []

    def _deliveries(self, taken: Sequence[SqsMessage]) -> list[SqsDelivery]:
        """Build deliveries. A message with unreadable metadata becomes a dead letter: its tenant is unknown."""
        deliveries = []
        for message in taken:
            try:
                text = message.attribute(METADATA_KEY) if METADATA_KEY in message.attributes else None
                delivery = SqsDelivery(self, message, read_metadata(text, self.forwarded))
            except MalformedEvent as error:
                self._answers.dead_letter_message(message, str(error))
                continue
            self._handed_out[message] = None
            deliveries.append(delivery)
        return deliveries

    async def _open_once(self) -> None:
        await self._client.open()
        try:
            dead_letter_max = await check_queues(self._client, self.queue, self.dead_letters, self._pause)
        except BaseException:
            await self._client.close()
            raise
        self._in_flight = SqsInFlight(self._max_in_flight, fifo=self._fifo)
        self._answers = SqsAnswers(
            self._client,
            self._in_flight,
            self.queue,
            self.dead_letters,
            visibility_s=self.visibility,
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
        self._polls = [loop.create_task(self._poll()) for _ in range(self._pollers)]
        self._extending = loop.create_task(self._extend())
        for task in (*self._polls, self._extending):
            task.add_done_callback(lambda _: self._in_flight.wake())

    async def _poll(self) -> None:
        failures = 0
        attempt = ""
        while not self._stopping:
            reserved = await self._in_flight.reserve(ENTRIES_MAX)
            received: list[SqsMessage] = []
            try:
                if not self._stopping:
                    attempt = attempt or (uuid4().hex if self._fifo else "")
                    received = await self._receive(reserved, attempt)
                failures, attempt = 0, ""
            except SqsError as failure:
                failures += 1
                attempt = "" if failure.definite else attempt  # the same id repeats a lost response of a FIFO queue
                self._counts.failures += 1
                if is_logged(failures):
                    log.warning("source_receive_failed", source=self.queue, failures=failures, error=str(failure))
            finally:
                self._in_flight.put(received, reserved)
            if self._stopping:
                self._answers.return_unused(self._in_flight.take_waiting())
            elif failures:
                await self._pause(failures)
            elif not received:
                await asyncio.sleep(EMPTY_S)

    async def _receive(self, count: int, attempt: str) -> list[SqsMessage]:
        request: dict[str, Any] = {"ReceiveRequestAttemptId": attempt} if self._fifo else {}
        requested_at = self._clock()
        self._observe(SqsStep.BEFORE_RECEIVE)
        answer: Mapping[str, Any] = await self._client.ask(
            "receive_message",
            self._wait_s + POLL_MORE_S,
            QueueUrl=self.queue,
            MaxNumberOfMessages=count,
            VisibilityTimeout=self.visibility,
            WaitTimeSeconds=self._wait_s,
            MessageSystemAttributeNames=["ApproximateReceiveCount", "MessageGroupId"],
            MessageAttributeNames=["All"],
            **request,
        )
        # The visibility starts when the queue sends its response, and the response can take long to arrive.
        visible_at = max(requested_at, self._clock() - POLL_MORE_S) + self.visibility
        received = [SqsMessage(message, requested_at, visible_at) for message in answer.get("Messages", ())]
        self._counts.received += len(received)
        if received:
            self._observe(SqsStep.AFTER_RECEIVE)
        return received

    async def _extend(self) -> None:
        """Extend messages in flight. Six rounds per visibility: one failed round does no harm."""
        while True:
            await asyncio.sleep(self.visibility / 6)
            await self._answers.extend()

    async def _pause(self, failures: int) -> None:
        """Wait with full jitter, so that a thousand consumers do not resume at the same moment."""
        await asyncio.sleep(backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """Stop delivering. Waiting receives return empty, and undelivered messages go back to the queue at once.

        Call it on the source's loop.
        """
        if self._stopping:
            return
        self._stopping = True
        if self._opened:
            self._answers.return_unused(self._in_flight.take_waiting())
            self._in_flight.wake()
        elif self._opening is not None:
            self._opening.cancel()

    async def _close_once(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if not self._opened:
            return
        if self._polls:
            _, late = await asyncio.wait(self._polls, timeout=POLL_GRACE_S)
            await _cancel(late)
        unanswered = list(self._handed_out)
        self._handed_out.clear()
        self._answers.return_unused(unanswered)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._answers.drained()
        except TimeoutError:
            log.warning("messages_unanswered", source=self.queue, messages=len(self._in_flight))
            self._answers.cancel()
        if self._extending is not None:
            await _cancel({self._extending})
        await self._client.close()
        self._opened = False


async def _cancel(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _structured(body: bytes, message: SqsMessage) -> bytes | None:
    """Structured form of a binary-mode CloudEvent, whose attributes are message attributes. None: another message.

    Raises MalformedEvent.
    """
    if not message.attributes:
        return None
    return from_message(body, ((name, message.attribute(name)) for name in message.attributes))
