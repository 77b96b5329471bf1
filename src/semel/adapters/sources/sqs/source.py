"""A queue of SQS as a source of deliveries.

    pollers → hand → receive → (the worker) → ack, retry, reject → answers

Several long polls run in parallel and fill the hand, which is bounded; the worker takes from it. Answers do not wait
for the network: they travel in batches while the worker goes on. Whatever happens to this process or to a request, a
message that was not deleted is seen again when its visibility ends, and nothing is deleted before it is settled.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from semel.adapters.sources.sqs.answering import LANES, Answers, Counts
from semel.adapters.sources.sqs.checking import check_options, check_queues, diagnose
from semel.adapters.sources.sqs.client import POLL_MORE_S, Client, Connect, Failed, connecting
from semel.adapters.sources.sqs.grouping import ENTRIES_MAX
from semel.adapters.sources.sqs.holding import Hand, Held
from semel.adapters.sources.sqs.steps import Observer, Step
from semel.adapters.sources.sqs.unwrapping import unwrap
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.log import log
from semel.values.parcel import NOTE, Note, note_beside
from semel.values.reading import Reading
from semel.values.retry import backoff_s

VISIBILITY_S = 30  # above the lease of 25 s
WAIT_S = 20  # the longest poll there is: the fewest empty ones
POLLERS = 4
IN_FLIGHT = 256
POLL_GRACE_S = 2.0  # a poll under way at the end may bring something: better given back than hidden for its visibility
EMPTY_S = 0.05  # after an empty answer: something between us and the queue may cut long polls short
DRAIN_S = 10.0  # for the answers that are still to be told at the end
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 20.0  # an outage of the service is over for us soon after it is over


class SqsDelivery:
    """One receipt of a message. Its answer is on its way when the call returns."""

    __slots__ = ("_held", "_source", "body", "headers", "reading", "receives", "tenant")

    def __init__(self, source: SqsSource, held: Held, note: Note | None = None) -> None:
        """With a note, it is what a door of Semel has let in: nothing is around it, and nothing is assumed of it."""
        body = held.text.encode("utf-8", "surrogatepass")
        self.body = body if note is not None else _structured(body, held) or unwrap(body)
        self.tenant = source.tenant if note is None else note.tenant
        self.reading = source.reading if note is None else note.reading
        self.headers = None if note is None else note.headers
        self.receives = held.receives
        self._source = source
        self._held = held

    async def ack(self) -> None:
        if self._first_answer():
            self._source._answers.delete(self._held)

    async def retry(self, after_s: float) -> None:
        if self._first_answer():
            self._source._answers.give_back(self._held, after_s)

    async def reject(self, reason: str) -> None:
        if self._first_answer():
            self._source._answers.bury(self._held, reason)

    def _first_answer(self) -> bool:
        """Not when the source was closed meanwhile: then it has gone back already."""
        if self._held not in self._source._handed:
            return False
        del self._source._handed[self._held]
        return True


class SqsSource:
    """Takes from one queue. Opened by the first `receive`, on whose loop it lives; several workers may share it.

    queue, dead_letters: URLs of queues. Without dead letters what is rejected is left to the queue's redrive policy.
    region, endpoint: where the URL or the usual AWS chain does not say.
    pollers: long polls at a time. max_in_flight: messages that are received and not answered.
    visibility: seconds that a message is hidden for, extended while it is in hand; more than the handlers' lease.
    reading: how bodies are read, where the app's own way is not right for this queue.
    handed_on: doors of Semel fill this queue: the note beside a message says whose event it is, and how it is read.
        Whoever may send to the queue is believed then. Messages without a note are taken as usual.
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
        reading: Reading | None = None,
        handed_on: bool = False,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
        connect: Connect | None = None,
    ) -> None:
        check_options(queue, dead_letters, pollers, max_in_flight, visibility, wait)
        self.queue = queue
        self.dead_letters = dead_letters
        self.tenant = tenant
        self.reading = reading
        self.handed_on = handed_on
        self._pollers = pollers
        self._max_in_flight = max_in_flight
        self.visibility = visibility
        self._wait_s = wait
        self._clock = clock
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._fifo = queue.endswith(".fifo")
        self._connect = connect or connecting(queue, region, endpoint, pollers + 3 * LANES, wait)
        self._client = Client(self._connect)
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._opened = False
        self._hand: Hand
        self._answers: Answers
        self._handed: dict[Held, None] = {}
        self._counts = Counts()
        self._polls: list[asyncio.Task[None]] = []
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        return self._counts

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the queue, for `semel doctor`, also of a source that was never opened."""
        client = Client(self._connect)
        await client.open()
        try:
            return await diagnose(client, self.queue, self.dead_letters, self.handed_on)
        finally:
            await client.close()

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[SqsDelivery]:
        """At most `limit` deliveries; waits for one if there is none; empty when the source was stopped.

        Raises ConfigError when it is opened, where the queue or a permission is missing."""
        await self._open()
        while not self._stopping:
            while taken := self._hand.take(limit):  # all of them may be dead letters, and more may be ready behind them
                if deliveries := self._deliveries(taken):
                    return deliveries
            for task in (*self._polls, self._keeping):
                if task is not None and task.done():
                    task.result()  # raises what nobody expected
            await self._hand.changed()
        return []

    def _deliveries(self, taken: Sequence[Held]) -> list[SqsDelivery]:
        """What has a note that nobody can read is a dead letter: whose event it is cannot be guessed."""
        found = []
        for held in taken:
            try:
                note = note_beside(held.attribute(NOTE) if NOTE in held.attributes else None, self.handed_on)
                delivery = SqsDelivery(self, held, note)
            except MalformedEvent as error:
                self._answers.bury(held, str(error))
                continue
            self._handed[held] = None
            found.append(delivery)
        return found

    async def _open(self) -> None:
        if self._opened or self._stopping:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_once())
        opening = self._opening
        await asyncio.wait([opening])
        if opening.done() and not opening.cancelled() and opening.exception() is not None:
            if self._opening is opening:
                self._opening = None  # another receive may try again
            opening.result()

    async def _open_once(self) -> None:
        await self._client.open()
        try:
            letter_max = await check_queues(self._client, self.queue, self.dead_letters, self._pause)
        except BaseException:
            await self._client.close()
            raise
        self._hand = Hand(self._max_in_flight, fifo=self._fifo)
        self._answers = Answers(
            self._client,
            self._hand,
            self.queue,
            self.dead_letters,
            visibility_s=self.visibility,
            clock=self._clock,
            random=self._random,
            observe=self._observe,
            counts=self._counts,
            letter_max=letter_max,
        )
        self._opened = True
        if self._stopping:
            return
        loop = asyncio.get_running_loop()
        self._polls = [loop.create_task(self._poll()) for _ in range(self._pollers)]
        self._keeping = loop.create_task(self._keep())
        for task in (*self._polls, self._keeping):
            task.add_done_callback(lambda _: self._hand.wake())

    async def _poll(self) -> None:
        failures = 0
        attempt = ""
        while not self._stopping:
            room = await self._hand.reserve(ENTRIES_MAX)
            received: list[Held] = []
            try:
                if not self._stopping:
                    attempt = attempt or (uuid4().hex if self._fifo else "")
                    received = await self._receive(room, attempt)
                failures, attempt = 0, ""
            except Failed as failure:
                failures += 1
                attempt = "" if failure.definite else attempt  # a lost answer of a FIFO queue is asked for once more
                self._complain(failures, failure)
            finally:
                self._hand.put(received, room)
            if self._stopping:
                self._answers.give_all_back(self._hand.waiting())
            elif failures:
                await self._pause(failures)
            elif not received:
                await asyncio.sleep(EMPTY_S)

    async def _receive(self, count: int, attempt: str) -> list[Held]:
        request: dict[str, Any] = {"ReceiveRequestAttemptId": attempt} if self._fifo else {}
        asked_at = self._clock()
        self._observe(Step.BEFORE_RECEIVE)
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
        # The queue hides a message from the moment when it hands it out, and its answer may have taken long to arrive.
        visible_at = max(asked_at, self._clock() - POLL_MORE_S) + self.visibility
        received = [Held(message, asked_at, visible_at) for message in answer.get("Messages", ())]
        self._counts.received += len(received)
        if received:
            self._observe(Step.AFTER_RECEIVE)
        return received

    async def _keep(self) -> None:
        """Extends what is in hand, six times in each visibility, so that one failed round does no harm."""
        while True:
            await asyncio.sleep(self.visibility / 6)
            await self._answers.extend()

    async def _pause(self, failures: int) -> None:
        """Full jitter: a thousand consumers do not come back in the same moment."""
        await asyncio.sleep(backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))

    def _complain(self, failures: int, failure: Failed) -> None:
        self._counts.failures += 1
        if failures & (failures - 1) == 0:  # the first, second, fourth, …: an outage does not fill the disk
            log.warning("source_receive_failed", source=self.queue, failures=failures, error=str(failure))

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """From now on nothing is handed over, and whoever waits for a delivery comes back empty. What waited in hand
        goes back to the queue at once. Call it on the source's loop."""
        if self._stopping:
            return
        self._stopping = True
        if self._opened:
            self._answers.give_all_back(self._hand.waiting())
            self._hand.wake()
        elif self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Stop; give back what was handed out and not answered; tell the queue all answers; let go of it. It goes on
        when whoever waits for it is cancelled: what is left in hand is hidden from others."""
        self.stop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_once())
        await asyncio.shield(self._closing)

    async def _close_once(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if not self._opened:
            return
        if self._polls:
            _, late = await asyncio.wait(self._polls, timeout=POLL_GRACE_S)
            await _cancelled(late)
        unanswered = list(self._handed)
        self._handed.clear()
        self._answers.give_all_back(unanswered)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._answers.drained()
        except TimeoutError:
            log.warning("messages_unanswered", source=self.queue, messages=len(self._hand))
            self._answers.cancel()
        if self._keeping is not None:
            await _cancelled({self._keeping})
        await self._client.close()
        self._opened = False


async def _cancelled(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _structured(body: bytes, held: Held) -> bytes | None:
    """The document of a CloudEvent in binary mode, with its attributes in message attributes; None for any other
    message. Raises MalformedEvent."""
    if not held.attributes:
        return None
    return from_message(body, ((name, held.attribute(name)) for name in held.attributes))
