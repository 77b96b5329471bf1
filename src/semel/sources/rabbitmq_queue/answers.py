"""Answers to RabbitMQ: acknowledge, copy to a retry queue, or copy to the dead letters.

A copy is confirmed before its original is acknowledged. A crash in between leaves both, and the ledger detects the
second; it never leaves neither. An answer on a closed channel is dropped: the broker redelivers the message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from semel.sources.lifecycle import Observer
from semel.sources.rabbitmq_queue.messages import (
    RabbitInFlight,
    RabbitMessage,
    dead_letter_copy,
    next_wait,
    retry_copy,
    wait_arguments,
    wait_queue,
)
from semel.sources.rabbitmq_queue.options import RabbitOptions
from semel.sources.rabbitmq_queue.publisher import ConfirmedSender
from semel.sources.rabbitmq_queue.session import RabbitError, RabbitStep, wait_first
from semel.values.log import log
from semel.values.retry import backoff_s

CONFIRM_S = 15.0
DEAD_LETTER_ATTEMPTS = 4
DEAD_LETTER_RETRY_S = 30.0  # after a dead letter could not be published
MEMORY_WAIT_MIN_S = 1.0  # the broker redelivers a returned message at once and counts it; doubled for each return
MEMORY_WAIT_DOUBLINGS_MAX = 16  # beyond the consumer timeout of any broker
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 2.0


@dataclass
class RabbitCounts:
    """Counters of one source. They only grow."""

    received: int = 0
    acked: int = 0  # including originals of confirmed copies
    returned: int = 0  # returned to the queue unchanged
    waited: int = 0  # copied to a retry queue
    dead_letters: int = 0
    waited_in_memory: int = 0  # retries in this process, because the broker did not accept the copy
    overdue: int = 0  # returned because the broker's consumer timeout was near
    lost: int = 0  # in flight when their channel was closed: redelivered
    failures: int = 0  # connections that were lost or refused, copies that were not confirmed


class RabbitAnswers:
    """Sends the answers for messages in flight. No method waits for the network, except `drained`."""

    def __init__(
        self,
        sender: ConfirmedSender,
        in_flight: RabbitInFlight,
        options: RabbitOptions,
        *,
        keep_s: float,
        random: Callable[[], float],
        observe: Observer,
        counts: RabbitCounts,
    ) -> None:
        """`keep_s`: how long a delivery can stay in flight."""
        self._sender = sender
        self._in_flight = in_flight
        self._queue = options.queue
        self._dead_letters = options.dead_letters
        self._keep_s = keep_s
        self._random = random
        self._observe = observe
        self._counts = counts
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    # ----------------------------------------------------------------------------------------------------- answering

    def ack(self, message: RabbitMessage) -> None:
        self._in_flight.forget(message)
        message.session.acks.ack(message.tag)

    def return_message(self, message: RabbitMessage) -> None:
        """Return to the front of the queue, at once. The broker counts it as a failed delivery (x-delivery-count)."""
        self._in_flight.forget(message)
        message.session.acks.return_message(message.tag)

    def return_unused(self, unused: Iterable[RabbitMessage]) -> None:
        for message in unused:
            self.return_message(message)

    def retry(self, message: RabbitMessage, after_s: float) -> None:
        """Deliver a copy after this time. The broker does not count it, because it is a new message."""
        message.answered = True
        self._begin(message, self._delay(message, after_s))

    def reject(self, message: RabbitMessage, reason: str) -> None:
        message.answered = True
        self._begin(message, self._publish_dead_letter(message, reason))

    async def drained(self) -> None:
        """Wait until every copy is confirmed or given up. Messages that wait in memory go back now."""
        self._ending.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    # ---------------------------------------------------------------------------------------------------- retries

    async def _delay(self, message: RabbitMessage, after_s: float) -> None:
        due_at = time.monotonic() + after_s
        if not message.session.is_open:
            return  # the broker redelivers it
        self._observe(RabbitStep.BEFORE_WAIT)
        failure = await self._publish_retry_copy(message, after_s)
        if not failure:
            self._observe(RabbitStep.AFTER_WAIT)
            self._counts.waited += 1
            self.ack(message)
            return
        log.warning("message_retry_in_memory", source=self._queue, message_id=message.id, reason=failure)
        self._counts.waited_in_memory += 1
        await self._wait_in_memory(message, due_at)
        self.return_message(message)

    async def _publish_retry_copy(self, message: RabbitMessage, after_s: float) -> str:
        """Publish a copy that waits at the broker. Returns an empty text, or why it is not confirmed."""
        delay_s, left_s = next_wait(after_s)
        properties = retry_copy(message, left_s)
        if not delay_s:
            return await self._publish_copy(message, self._queue, properties)
        name = wait_queue(self._queue, delay_s)
        failure = ""
        for _ in range(2):
            try:
                await self._sender.declare(name, wait_arguments(self._queue, delay_s))
            except RabbitError as error:
                self._counts.failures += 1
                return str(error)
            if not (failure := await self._publish_copy(message, name, properties)):
                return ""
            self._sender.forget(name)  # the queue may have been deleted
        return failure

    async def _wait_in_memory(self, message: RabbitMessage, due_at: float) -> None:
        """Wait until the retry is due, the consumer timeout is near, or the source or the session ends."""
        now = time.monotonic()
        least_s = MEMORY_WAIT_MIN_S * 2.0 ** min(message.returns, MEMORY_WAIT_DOUBLINGS_MAX)
        ends = min(max(due_at, now + least_s), message.received_at + self._keep_s)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ending, message.session.ended)]
        await wait_first(*waits, within_s=max(0.0, ends - now))

    # -------------------------------------------------------------------------------------------------- dead letters

    async def _publish_dead_letter(self, message: RabbitMessage, reason: str) -> None:
        self._observe(RabbitStep.BEFORE_DEAD_LETTER)
        properties = dead_letter_copy(message, self._queue, reason)
        failure = ""
        for attempt in range(1, DEAD_LETTER_ATTEMPTS + 1):
            if not (failure := await self._publish_copy(message, self._dead_letters, properties)):
                self._observe(RabbitStep.AFTER_DEAD_LETTER)
                self._counts.dead_letters += 1
                log.warning("message_dead_lettered", source=self._queue, message_id=message.id)
                self.ack(message)
                return
            if self._ending.is_set() or not message.session.is_open:
                break
            await asyncio.sleep(backoff_s(attempt, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        fields = {"message_id": message.id, "dead_letters": self._dead_letters}
        log.error("message_dead_letter_failed", source=self._queue, **fields, error=failure)
        await self._delay(message, DEAD_LETTER_RETRY_S)

    # ------------------------------------------------------------------------------------------------------- sending

    async def _publish_copy(self, message: RabbitMessage, queue: str, properties: Any) -> str:
        failure = await self._sender.send("", queue, message.body, properties, CONFIRM_S)
        if failure:
            self._counts.failures += 1
        return failure

    def _begin(self, message: RabbitMessage, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(message, task))

    def _ended(self, message: RabbitMessage, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # a bug: release the message
            self.return_message(message)
            asyncio.get_running_loop().call_exception_handler(
                {"message": "an answer to RabbitMQ crashed", "exception": error, "task": task}
            )
