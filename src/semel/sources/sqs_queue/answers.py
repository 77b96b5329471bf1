"""Answers to SQS, ten in a request: delete, return to the queue, or send to the dead letters and then delete.

A lost answer loses no event: the message becomes visible again when its visibility ends, and the ledger has its result.
So each answer is retried until then, and never longer. A request may be repeated after a lost reply. Every
request except the sending of a dead letter is idempotent, and a dead letter that exists twice is better than none.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from semel.aws import AwsClient, AwsError, error_name
from semel.sources.lifecycle import Observer
from semel.sources.sqs_queue.client import EXPIRED
from semel.sources.sqs_queue.in_flight import SqsInFlight, SqsMessage
from semel.sources.sqs_queue.options import DEAD_LETTER_MAX_BYTES, VISIBILITY_MAX_S, SqsOptions
from semel.values.log import log
from semel.values.retry import backoff_s


class SqsStep(StrEnum):
    """Steps between which a consumer can die, in the order of the flow. The engine runs after AFTER_RECEIVE."""

    BEFORE_RECEIVE = "before_receive"
    AFTER_RECEIVE = "after_receive"
    BEFORE_DELETE = "before_delete"
    AFTER_DELETE = "after_delete"
    BEFORE_RETURN = "before_return"
    AFTER_RETURN = "after_return"
    BEFORE_DEAD_LETTER = "before_letter"
    AFTER_DEAD_LETTER = "after_letter"  # and before its message is deleted


E = TypeVar("E")

ENTRIES_MAX = 10  # of one batch request
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0  # well under a visibility of 30 s


class BatchSender(Generic[E]):
    """Sends entries ten at a time, the maximum of SQS. Entries added during a request form the next batch.

    `add` does not wait. `send` returns the entries that must be retried.
    """

    def __init__(
        self,
        send: Callable[[list[E]], Awaitable[list[E]]],
        concurrency: int,
        random: Callable[[], float],
        weight: Callable[[E], int] = lambda _: 0,
        weight_max: int = 0,
    ) -> None:
        self._send = send
        self._concurrency = concurrency  # requests at a time
        self._random = random
        self._weight = weight
        self._weight_max = weight_max
        self._waiting: deque[E] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._open = 0  # senders that will still check `_waiting`; one that has just ended does not

    def add(self, entry: E) -> None:
        self._waiting.append(entry)
        if self._open < self._concurrency and len(self._waiting) > ENTRIES_MAX * self._open:
            self._open += 1
            sender = asyncio.get_running_loop().create_task(self._send_batches())
            self._senders.add(sender)
            sender.add_done_callback(self._ended)

    async def drained(self) -> None:
        """Wait until every entry is sent."""
        while self._senders:
            await asyncio.wait(self._senders)

    def cancel(self) -> None:
        for sender in self._senders:
            sender.cancel()

    async def _send_batches(self) -> None:
        failures = 0
        try:
            while self._waiting:
                again = await self._send(self._batch())
                if not again:
                    failures = 0
                    continue
                failures += 1
                self._waiting.extendleft(reversed(again))
                await asyncio.sleep(backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        finally:
            self._open -= 1

    def _batch(self) -> list[E]:
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0])
        while self._waiting and len(batch) < ENTRIES_MAX:
            weight += self._weight(self._waiting[0])
            if weight > self._weight_max > 0:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _ended(self, sender: asyncio.Task[None]) -> None:
        self._senders.discard(sender)
        if not sender.cancelled() and (error := sender.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a batch request to SQS crashed", "exception": error, "task": sender}
            )


REASON_MAX_BYTES = 2_000
ATTRIBUTES_MAX = 10  # of one message
PREFIX = "semel."
TRUNCATED_BYTES = 120  # for the attribute that reports a truncation
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class SqsDeadLetter:
    """A rejected message on its way to the dead-letter queue: unchanged, with the reason in its attributes."""

    __slots__ = ("attempts", "entry", "message", "reason", "size")

    def __init__(
        self, message: SqsMessage, reason: str, queue: str, to_fifo: bool, size_max: int = DEAD_LETTER_MAX_BYTES
    ) -> None:
        self.message = message
        self.reason = reason
        self.attempts = 0
        reason_max = min(REASON_MAX_BYTES, size_max // 4)
        ours = {
            "reason": _FORBIDDEN.sub("\ufffd", reason).encode()[:reason_max].decode("utf-8", "ignore") or "rejected",
            "queue": queue,
            "message_id": message.id,
            "receives": str(message.receives),
        }
        body = message.text.encode("utf-8", "surrogatepass")
        attributes = {PREFIX + name: _text(value) for name, value in ours.items()}
        theirs = {name: value for name, value in message.attributes.items() if not name.startswith(PREFIX)}
        theirs = dict(list(theirs.items())[: ATTRIBUTES_MAX - len(ours) - 1])
        body_max = max(1, size_max - _size(attributes) - TRUNCATED_BYTES)
        if len(body) + _size(theirs) > body_max:
            theirs = {}
        if len(body) > body_max:
            attributes[PREFIX + "truncated"] = _text(f"the first {body_max:,} of {len(body):,} bytes")
            body = body[:body_max]
        elif len(theirs) < len(message.attributes):
            attributes[PREFIX + "truncated"] = _text("the body is complete, attributes of the sender are missing")
        text = body.decode("utf-8", "ignore")
        self.entry: dict[str, Any] = {"MessageBody": text or " ", "MessageAttributes": {**theirs, **attributes}}
        self.size = len(body) + _size(theirs) + _size(attributes)
        if to_fifo:  # SQS detects a repetition after a lost reply by this id
            self.entry |= {"MessageGroupId": message.group or message.id, "MessageDeduplicationId": message.id}


def _text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


def _size(attributes: Mapping[str, Any]) -> int:
    return sum(
        len(name.encode())
        + len(value["DataType"])
        + len(value.get("StringValue", "").encode("utf-8", "surrogatepass"))
        + len(value.get("BinaryValue", b""))
        for name, value in attributes.items()
    )


CONCURRENT_REQUESTS = 8  # requests of one kind at a time
DEAD_LETTER_ATTEMPTS = 5  # then the message goes back to the queue and is redelivered
DEAD_LETTER_RETRY_S = 30.0


@dataclass
class SqsCounts:
    """Counters of one source. They only grow."""

    received: int = 0
    deleted: int = 0
    returned: int = 0
    dead_letters: int = 0
    left: int = 0  # rejected, and left to the redrive policy of the queue
    extended: int = 0
    lost: int = 0  # not extended in time, or after 12 hours: redelivered to another consumer
    expired: int = 0  # answers that were too late: the message is redelivered
    failures: int = 0  # requests, or entries of a request, that were refused or lost


class SqsAnswers:
    """Sends the answers for messages in flight. No method waits for the network, except `drained` and `extend`."""

    def __init__(
        self,
        client: AwsClient,
        in_flight: SqsInFlight,
        options: SqsOptions,
        *,
        clock: Callable[[], float],
        random: Callable[[], float],
        observe: Observer,
        counts: SqsCounts,
        dead_letter_max: int,
    ) -> None:
        self.counts = counts
        self._dead_letter_max = dead_letter_max
        self._client = client
        self._in_flight = in_flight
        self._queue = options.queue
        self._dead_letters = options.dead_letters
        self._visibility_s = options.visibility
        self._clock = clock
        self._observe = observe
        self._deletes: BatchSender[SqsMessage] = BatchSender(self._delete, CONCURRENT_REQUESTS, random)
        self._returns: BatchSender[tuple[SqsMessage, int]] = BatchSender(self._return, CONCURRENT_REQUESTS, random)
        self._dead_letter_batches: BatchSender[SqsDeadLetter] = BatchSender(
            self._send, CONCURRENT_REQUESTS, random, lambda dead_letter: dead_letter.size, DEAD_LETTER_MAX_BYTES
        )
        self._not_extending = asyncio.Event()
        self._not_extending.set()

    # --------------------------------------------------------------------------------------------------- answering

    def ack(self, message: SqsMessage) -> None:
        """Delete a settled message. The next message of its group becomes ready."""
        message.answered = message.given_up = True
        self._deletes.add(message)
        self._in_flight.release_next(message)

    def retry(self, message: SqsMessage, after_s: float) -> None:
        """Return a message to the queue, visible after this time, and at the latest 12 hours after its receipt.

        The messages behind it in its group go back too: the first message that fails stops its group.
        """
        message.answered = message.given_up = True
        self._returns.add((message, self._visibility_after(message, after_s)))
        self.return_unused(self._in_flight.remove_group(message))

    def return_unused(self, unused: Iterable[SqsMessage]) -> None:
        """Return messages without an outcome, at once and in order."""
        for message in unused:
            message.answered = message.given_up = True
            self._returns.add((message, 0))

    def reject(self, message: SqsMessage, reason: str) -> None:
        """Send a message to the dead letters, then delete it. Its group waits for both.

        Without a dead-letter queue the message is left to the redrive policy of its queue.
        """
        message.answered = True
        if self._dead_letters:
            to_fifo = self._dead_letters.endswith(".fifo")
            self._dead_letter_batches.add(SqsDeadLetter(message, reason, self._queue, to_fifo, self._dead_letter_max))
            return
        log.warning("message_left_to_redrive", source=self._queue, message_id=message.id)
        self.counts.left += 1
        rest = self._in_flight.remove_group(message)
        self._in_flight.forget(message)
        self.return_unused(rest)

    async def drained(self) -> None:
        """Wait until every answer is sent or given up."""
        for _ in range(2):  # sent dead letters become deletions
            for outgoing in (self._dead_letter_batches, self._deletes, self._returns):
                await outgoing.drained()

    def cancel(self) -> None:
        for outgoing in (self._dead_letter_batches, self._deletes, self._returns):
            outgoing.cancel()

    # --------------------------------------------------------------------------------------------------- extending

    async def extend(self) -> None:
        """Extend the visibility of messages that have used a third of it, as the ledger's leases are renewed."""
        due_before = self._clock() + self._visibility_s * 2 / 3
        due = [message for message in self._in_flight.extendable if message.visible_at <= due_before]
        for message in due:
            if self._remaining(message) < 1:
                self._lose(message, "received 12 hours ago: SQS does not extend a visibility beyond that")
        due = [message for message in due if not message.given_up]
        chunks = [due[at : at + ENTRIES_MAX] for at in range(0, len(due), ENTRIES_MAX)]
        self._not_extending.clear()
        try:
            await asyncio.gather(*[self._extend(chunk) for chunk in chunks])
        finally:
            self._not_extending.set()

    async def _extend(self, messages: list[SqsMessage]) -> None:
        requested_at = self._clock()
        timeouts = [self._visibility_after(message, self._visibility_s) for message in messages]
        failed = await self._change_visibility(list(zip(messages, timeouts, strict=True)))
        for message, seconds in zip(messages, timeouts, strict=True):
            failure = failed.get(message)
            if failure is None:
                message.visible_at = requested_at + seconds
                self.counts.extended += 1
            elif failure.code in EXPIRED:
                self._lose(message, str(failure))

    def _lose(self, message: SqsMessage, reason: str) -> None:
        self.counts.lost += 1
        log.warning("message_redelivered", source=self._queue, message_id=message.id, reason=reason)
        self.return_unused(self._in_flight.mark_lost(message))

    # ---------------------------------------------------------------------------------------------------- sending

    async def _delete(self, messages: list[SqsMessage]) -> list[SqsMessage]:
        self._observe(SqsStep.BEFORE_DELETE)
        entries = [{"Id": str(at), "ReceiptHandle": message.receipt} for at, message in enumerate(messages)]
        failed = await self._request("delete_message_batch", self._queue, entries, messages)
        self._observe(SqsStep.AFTER_DELETE)
        self.counts.deleted += len(messages) - len(failed)
        return [message for message in messages if not self._finish(message, failed.get(message))]

    async def _return(self, returns: list[tuple[SqsMessage, int]]) -> list[tuple[SqsMessage, int]]:
        await self._not_extending.wait()  # a concurrent extension must not arrive after this request
        self._observe(SqsStep.BEFORE_RETURN)
        failed = await self._change_visibility(returns)
        self._observe(SqsStep.AFTER_RETURN)
        self.counts.returned += len(returns) - len(failed)
        return [(message, seconds) for message, seconds in returns if not self._finish(message, failed.get(message))]

    async def _send(self, dead_letters: list[SqsDeadLetter]) -> list[SqsDeadLetter]:
        self._observe(SqsStep.BEFORE_DEAD_LETTER)
        entries = [{"Id": str(at), **dead_letter.entry} for at, dead_letter in enumerate(dead_letters)]
        failed = await self._request("send_message_batch", self._dead_letters, entries, dead_letters)
        self._observe(SqsStep.AFTER_DEAD_LETTER)
        again = []
        for dead_letter in dead_letters:
            dead_letter.attempts += 1
            if dead_letter not in failed:
                self.counts.dead_letters += 1
                log.warning("message_dead_lettered", source=self._queue, message_id=dead_letter.message.id)
                self.ack(dead_letter.message)
            elif dead_letter.attempts < DEAD_LETTER_ATTEMPTS:
                again.append(dead_letter)
            else:
                fields = {"message_id": dead_letter.message.id, "dead_letters": self._dead_letters}
                log.error("message_dead_letter_failed", source=self._queue, **fields, error=str(failed[dead_letter]))
                self.retry(dead_letter.message, DEAD_LETTER_RETRY_S)
        return again

    async def _change_visibility(self, timeouts: Sequence[tuple[SqsMessage, int]]) -> dict[SqsMessage, AwsError]:
        entries = [
            {"Id": str(at), "ReceiptHandle": message.receipt, "VisibilityTimeout": seconds}
            for at, (message, seconds) in enumerate(timeouts)
        ]
        messages = [message for message, _ in timeouts]
        return await self._request("change_message_visibility_batch", self._queue, entries, messages)

    async def _request(
        self, operation: str, queue: str, entries: list[dict[str, Any]], items: list[E]
    ) -> dict[E, AwsError]:
        """Send one batch request. Returns the error of each item that failed; a failed request fails every item."""
        try:
            answer = await self._client.ask(operation, QueueUrl=queue, Entries=entries)
        except AwsError as failure:
            self.counts.failures += 1
            log.warning("queue_call_failed", source=queue, call=operation, messages=len(items), error=str(failure))
            return dict.fromkeys(items, failure)
        failed = {items[int(entry["Id"])]: entry_error(entry) for entry in answer.get("Failed", ())}
        done = {int(entry["Id"]) for entry in answer.get("Successful", ())}
        for at, item in enumerate(items):
            if at not in done and item not in failed:
                failed[item] = AwsError("no answer", f"the response to {operation} lacks this entry", False)
        self.counts.failures += len(failed)
        return failed

    def _finish(self, message: SqsMessage, failure: AwsError | None) -> bool:
        """Forget a message, unless its answer failed and can be sent again.

        After its receipt has expired, by the queue's answer or by our clock, the message is redelivered.
        """
        if failure is not None:
            if failure.code not in EXPIRED and self._clock() < message.visible_at:
                return False
            self.counts.expired += 1
            log.info("message_answered_late", source=self._queue, message_id=message.id, error=str(failure))
        self._in_flight.forget(message)
        return True

    def _visibility_after(self, message: SqsMessage, after_s: float) -> int:
        """Visibility timeout in whole seconds, rounded up: a message that is redelivered too early is only Busy."""
        return max(0, min(math.ceil(after_s), self._remaining(message)))

    def _remaining(self, message: SqsMessage) -> int:
        return math.floor(message.received_at + VISIBILITY_MAX_S - self._clock())


def entry_error(entry: Mapping[str, Any]) -> AwsError:
    """Error of one entry of a batch response."""
    return AwsError(error_name(entry.get("Code")), str(entry.get("Message", ""))[:300], bool(entry.get("SenderFault")))
