"""Our answers to the broker: acknowledged, copied to where retries wait, or put among the dead letters.

A copy is confirmed before its original is acknowledged. Who dies in between leaves both, and the ledger knows the
second; nobody ever leaves none. An answer on a channel that is closed is dropped: its message comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from semel.adapters.sources.rabbitmq.connecting import Failed
from semel.adapters.sources.rabbitmq.copying import letter_copy, retry_copy
from semel.adapters.sources.rabbitmq.holding import Hand, Held
from semel.adapters.sources.rabbitmq.sending import Sending
from semel.adapters.sources.rabbitmq.session import first_of
from semel.adapters.sources.rabbitmq.steps import Observer, Step
from semel.adapters.sources.rabbitmq.waiting import next_wait, wait_arguments, wait_queue
from semel.values.log import log
from semel.values.retry import backoff_s

CONFIRM_S = 15.0
TRIES = 4
LATER_S = 30.0  # for a letter that could not be kept
HELD_MIN_S = 1.0  # given back at once it would come again at once, and the broker counts; doubled for each return
HELD_DOUBLINGS_MAX = 16  # more than any broker waits
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 2.0


@dataclass
class Counts:
    """What has happened so far. Each number only grows."""

    received: int = 0
    acked: int = 0  # copies that are kept included
    returned: int = 0  # given back to the queue as they were
    waited: int = 0  # copied to where retries wait
    letters: int = 0
    held: int = 0  # retries that waited in our hands, because the broker did not take the copy
    overdue: int = 0  # given back because the broker would not have waited longer for an answer
    lost: int = 0  # in our hands when their channel was closed: they come again
    failures: int = 0  # connections that were lost or refused, copies that were not confirmed


class Answers:
    """Nothing here waits for the network, except `drained`."""

    def __init__(
        self,
        sending: Sending,
        hand: Hand,
        queue: str,
        dead_letters: str,
        *,
        keep_s: float,
        random: Callable[[], float],
        observe: Observer,
        counts: Counts,
    ) -> None:
        """`keep_s`: how long a delivery may stay in our hands."""
        self._sending = sending
        self._hand = hand
        self._queue = queue
        self._dead_letters = dead_letters
        self._keep_s = keep_s
        self._random = random
        self._observe = observe
        self._counts = counts
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    # ------------------------------------------------------------------------------------------------ what we answer

    def ack(self, held: Held) -> None:
        self._hand.forget(held)
        held.session.acks.ack(held.tag)

    def give_back(self, held: Held) -> None:
        """At once, to the front of the queue. The broker counts it as a delivery that failed (x-delivery-count)."""
        self._hand.forget(held)
        held.session.acks.give_back(held.tag)

    def retry(self, held: Held, after_s: float) -> None:
        """Not counted by the broker: what comes again is a copy."""
        held.answered = True
        self._begin(held, self._wait(held, after_s))

    def bury(self, held: Held, reason: str) -> None:
        held.answered = True
        self._begin(held, self._keep_letter(held, reason))

    async def drained(self) -> None:
        """Until every copy is confirmed or given up on. Whoever waits in our hands goes back now."""
        self._ending.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    # ---------------------------------------------------------------------------------------------------- retries

    async def _wait(self, held: Held, after_s: float) -> None:
        due_at = time.monotonic() + after_s
        if not held.session.lives:
            return  # it comes again as it is
        self._observe(Step.BEFORE_WAIT)
        why = await self._parked(held, after_s)
        if not why:
            self._observe(Step.AFTER_WAIT)
            self._counts.waited += 1
            self.ack(held)
            return
        log.warning("message_retry_in_memory", source=self._queue, message_id=held.id, reason=why)
        self._counts.held += 1
        await self._held_until(held, due_at)
        self.give_back(held)

    async def _parked(self, held: Held, after_s: float) -> str:
        """Empty when a copy of it waits at the broker; else why not."""
        delay_s, left_s = next_wait(after_s)
        properties = retry_copy(held, left_s)
        if not delay_s:
            return await self._sent(held, self._queue, properties)
        name = wait_queue(self._queue, delay_s)
        why = ""
        for _ in range(2):
            try:
                await self._sending.declare(name, wait_arguments(self._queue, delay_s))
            except Failed as failure:
                self._counts.failures += 1
                return str(failure)
            if not (why := await self._sent(held, name, properties)):
                return ""
            self._sending.forget(name)  # somebody may have deleted it
        return why

    async def _held_until(self, held: Held, due_at: float) -> None:
        """No longer than the broker waits for us, and not beyond our own end, or its session's."""
        now = time.monotonic()
        least_s = HELD_MIN_S * 2.0 ** min(held.returns, HELD_DOUBLINGS_MAX)
        ends = min(max(due_at, now + least_s), held.received_at + self._keep_s)
        waits = [asyncio.ensure_future(event.wait()) for event in (self._ending, held.session.ended)]
        await first_of(*waits, within_s=max(0.0, ends - now))

    # -------------------------------------------------------------------------------------------------- dead letters

    async def _keep_letter(self, held: Held, reason: str) -> None:
        self._observe(Step.BEFORE_LETTER)
        properties = letter_copy(held, self._queue, reason)
        why = ""
        for attempt in range(1, TRIES + 1):
            if not (why := await self._sent(held, self._dead_letters, properties)):
                self._observe(Step.AFTER_LETTER)
                self._counts.letters += 1
                log.warning("message_dead_lettered", source=self._queue, message_id=held.id)
                self.ack(held)
                return
            if self._ending.is_set() or not held.session.lives:
                break
            await asyncio.sleep(backoff_s(attempt, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        fields = {"message_id": held.id, "dead_letters": self._dead_letters}
        log.error("message_dead_letter_failed", source=self._queue, **fields, error=str(why))
        await self._wait(held, LATER_S)

    # ------------------------------------------------------------------------------------------------------- sending

    async def _sent(self, held: Held, queue: str, properties: Any) -> str:
        why = await self._sending.send("", queue, held.body, properties, CONFIRM_S)
        if why:
            self._counts.failures += 1
        return why

    def _begin(self, held: Held, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(held, task))

    def _ended(self, held: Held, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # a bug: it must not keep the message
            self.give_back(held)
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a message of RabbitMQ could not be answered", "exception": error, "task": task}
            )
