"""A queue of RabbitMQ as a source of deliveries.

    broker → session → hand → receive → (the worker) → ack, retry, reject → answers → broker

The broker pushes up to `prefetch` messages, the worker takes from them, and nothing is acknowledged before it is
settled. Answers do not wait for the network. Whatever happens to this process or to its connection, what was not
acknowledged is delivered again; what was settled by then is answered as a duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.adapters.sources.rabbitmq.address import shown
from semel.adapters.sources.rabbitmq.answering import Answers, Counts
from semel.adapters.sources.rabbitmq.careful import UNREADABLE
from semel.adapters.sources.rabbitmq.checking import check_options, check_queues, diagnose
from semel.adapters.sources.rabbitmq.connecting import Failed, connect, failure_of, hang_up, only_if_lost
from semel.adapters.sources.rabbitmq.copying import retries_of, still_waits_s
from semel.adapters.sources.rabbitmq.holding import Hand, Held
from semel.adapters.sources.rabbitmq.sending import Sending
from semel.adapters.sources.rabbitmq.session import Session, first_of, open_session
from semel.adapters.sources.rabbitmq.steps import Observer, Step
from semel.values.cloudevents import from_message
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.log import log
from semel.values.parcel import NOTE, Note, note_beside
from semel.values.reading import Reading
from semel.values.retry import backoff_s

PREFETCH = 250
CONSUMER_TIMEOUT_S = 1800.0  # the broker's own default: 30 minutes without an answer, and it closes the channel
KEEP = 0.8  # of that time: what takes longer goes back, before everything else goes back with it
LOOKS = 20  # for such deliveries, in that time
DRAIN_S = 20.0  # for the answers that are still to be told at the end
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 20.0  # an outage of the broker is over for us soon after it is over


class RabbitDelivery:
    """One delivery of a message. Its answer is on its way when the call returns."""

    __slots__ = ("_held", "_source", "body", "headers", "reading", "receives", "tenant")

    def __init__(self, source: RabbitSource, held: Held, note: Note | None = None) -> None:
        """With a note, it is what a door of Semel has let in, and nothing is assumed of it."""
        self.body = (_structured(held) if note is None else None) or held.body
        self.tenant = source.tenant if note is None else note.tenant
        self.reading: Reading | None = source.reading if note is None else note.reading
        self.headers: Mapping[str, str] | None = None if note is None else note.headers
        self.receives = retries_of(held) + 1
        self._source = source
        self._held = held

    async def ack(self) -> None:
        if not self._held.answered:
            self._source._answers.ack(self._held)

    async def retry(self, after_s: float) -> None:
        if not self._held.answered:
            self._source._answers.retry(self._held, after_s)

    async def reject(self, reason: str) -> None:
        if not self._held.answered:
            self._source._answers.bury(self._held, reason)


class RabbitSource:
    """Takes from one queue. Opened by the first `receive`, on whose loop it lives; several workers may share it.

    url: amqp://user:password@host/vhost, or amqps:// with `cafile`, `certfile`, `keyfile` as options.
    dead_letters: the name of another queue, for what nobody can act on.
    prefetch: messages that are delivered and not answered.
    declare: make both queues where they are missing, as quorum queues; else they have to be there.
    consumer_timeout: the broker's, in seconds; a delivery that takes 0.8 of it goes back.
    reading: how bodies are read, where the app's own way is not right for this queue.
    handed_on: doors of Semel fill this queue: the note beside a message says whose event it is, and how it is read.
        Whoever may send to the queue is believed then. Messages without a note are taken as usual.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        dead_letters: str = "",
        prefetch: int = PREFETCH,
        declare: bool = False,
        consumer_timeout: float = CONSUMER_TIMEOUT_S,
        tenant: str = "",
        reading: Reading | None = None,
        handed_on: bool = False,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
    ) -> None:
        check_options(url, queue, dead_letters, prefetch, consumer_timeout)
        self.queue = queue
        self.dead_letters = dead_letters
        self.prefetch = prefetch
        self.consumer_timeout = consumer_timeout
        self.tenant = tenant
        self.reading = reading
        self.handed_on = handed_on
        self._url = url
        self._declare = declare
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._where = f"{shown(url)} {queue}"
        self._counts = Counts()
        self._hand: Hand
        self._answers: Answers
        self._sending: Sending
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._opened = False
        self._stopping = False
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"RabbitSource({shown(self._url)!r}, {self.queue!r})"

    @property
    def counts(self) -> Counts:
        """What has happened so far."""
        return self._counts

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the queue, for `semel doctor`, also of a source that was never opened."""
        return await diagnose(
            self._url, self.queue, self.dead_letters, handed_on=self.handed_on, may_declare=self._declare
        )

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[RabbitDelivery]:
        """At most `limit` deliveries; waits for one if there is none; empty when the source was stopped.

        Raises ConfigError when it is opened, where a queue or a permission is missing."""
        await self._open()
        while not self._stopping:
            while taken := self._hand.take(limit):  # all of them may be dead letters, and more may be ready behind them
                if deliveries := self._deliveries(taken):
                    self._observe(Step.AFTER_RECEIVE)
                    return deliveries
            for task in self._tasks:
                if task.done():
                    task.result()  # raises what nobody expected
            await self._hand.changed()
        return []

    def _deliveries(self, taken: Sequence[Held]) -> list[RabbitDelivery]:
        """What has a note that nobody can read is a dead letter: whose event it is cannot be guessed."""
        found = []
        for held in taken:
            try:
                found.append(RabbitDelivery(self, held, self._note(held)))
            except MalformedEvent as error:
                self._answers.bury(held, str(error))
        return found

    def _note(self, held: Held) -> Note | None:
        if isinstance(why := held.header(UNREADABLE), str):
            raise MalformedEvent(why)
        text = held.header(NOTE)
        if text is not None and not isinstance(text, str | bytes):
            raise MalformedEvent(f"its note {NOTE!r} was not written by Semel")
        return note_beside(text, self.handed_on)

    def _deliver(self, session: Session, message: Any) -> None:
        """Called by the driver, once for each message."""
        held = Held(session, message, time.monotonic())
        self._counts.received += 1
        if held.properties.headers and (left_s := still_waits_s(held)):
            self._answers.retry(held, left_s)
        else:
            self._hand.put(held)

    # --------------------------------------------------------------------------------------------------- consuming

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
        self._hand = Hand()
        self._sending = Sending(self._url, f"semel-{self.queue}-copies", self._random)
        self._answers = Answers(
            self._sending,
            self._hand,
            self.queue,
            self.dead_letters,
            keep_s=self.consumer_timeout * KEEP,
            random=self._random,
            observe=self._observe,
            counts=self._counts,
        )
        session = await self._first_session()
        self._opened = True
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._consume(session)), loop.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._hand.wake())

    async def _first_session(self) -> Session:
        """Waits while the broker is out of reach; raises ConfigError for what only a person can change."""
        failures = 0
        while True:
            try:
                return await self._connected(first=True)
            except Failed as failure:
                if failure.definite:
                    raise ConfigError(f"{failure}{self._hint(failure)}") from None
                failures += 1
                self._complain(failures, failure)
            await self._pause(failures)

    def _hint(self, failure: Failed) -> str:
        if failure.missing and not self._declare:
            return "; make it, as a quorum queue, or set declare"
        return "; without declare it is taken as it is" if self._declare and "inequivalent" in str(failure) else ""

    async def _connected(self, *, first: bool = False, careful: bool = False) -> Session:
        """Raises Failed, whatever the driver comes up with: nobody would start the consumption again."""
        connection = None
        try:
            connection = await connect(self._url, f"semel-{self.queue}", careful=careful)
            await check_queues(
                connection, self.queue, self.dead_letters, self._where, may_declare=self._declare, first=first
            )
            session = await open_session(connection, self._where, self._observe, self._told)
            await session.consume(self.queue, self.prefetch, self._deliver)
        except (Exception, asyncio.CancelledError) as error:
            if connection is not None:
                await hang_up(connection)
            only_if_lost()
            raise failure_of(error, self._where) from None
        self._session = session
        return session

    async def _consume(self, session: Session | None) -> None:
        """One session after the other, until we are stopped. Then nothing more is delivered, and what waits in hand
        goes back: not before, or the broker would deliver the same again, to us."""
        failures = 0
        while session is not None:
            began_at = time.monotonic()
            await first_of(asyncio.ensure_future(session.ended.wait()), asyncio.ensure_future(self._stopped.wait()))
            if self._stopping:
                break
            failures = 0 if time.monotonic() - began_at > BACKOFF_CAP_S else failures
            lost = self._hand.lose(session)
            self._counts.lost += lost
            await session.close()
            session, failures = await self._next_session(session, failures, lost)
        if session is not None:
            await session.cancel()
        for held in self._hand.waiting():
            self._answers.give_back(held)

    async def _next_session(self, old: Session, failures: int, lost: int) -> tuple[Session | None, int]:
        """And how often it has failed in a row. None: we were stopped first."""
        why: BaseException = old.why or Failed("closed")
        while not self._stopping:
            failures += 1
            self._complain(failures, why, lost)
            await self._pause(failures)
            connecting = asyncio.get_running_loop().create_task(self._connected(careful=old.was_unreadable))
            await first_of(connecting, asyncio.ensure_future(self._stopped.wait()))
            try:
                session = await connecting
            except Failed as failure:
                why, lost = failure, 0
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
            else:
                log.info("rabbitmq_recovered", source=self._where)
                return session, failures
        return None, failures

    async def _watch(self) -> None:
        """Gives back what the broker would not wait for much longer."""
        while True:
            await asyncio.sleep(self.consumer_timeout / LOOKS)
            for held in self._hand.older_than(time.monotonic() - self.consumer_timeout * (KEEP - 1 / LOOKS)):
                self._counts.overdue += 1
                held_s = round(time.monotonic() - held.received_at, 1)
                fields = {"held_s": held_s, "consumer_timeout_s": self.consumer_timeout}
                log.warning("message_returned", source=self._where, message_id=held.id, **fields)
                self._hand.drop(held)
                self._answers.give_back(held)

    def _told(self, acked: int, returned: int) -> None:
        self._counts.acked += acked
        self._counts.returned += returned

    async def _pause(self, failures: int) -> None:
        """Full jitter: a thousand consumers do not come back in the same moment."""
        delay_s = backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
        try:
            async with asyncio.timeout(delay_s):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _complain(self, failures: int, why: BaseException, lost: int = 0) -> None:
        self._counts.failures += 1
        if failures & (failures - 1) == 0:  # the first, second, fourth, …: an outage does not fill the disk
            again = f"; {lost} messages in hand come again" if lost else ""
            said = f"{str(why) or type(why).__name__}{again}"
            log.warning("rabbitmq_disconnected", source=self._where, failures=failures, error=said)

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """From now on nothing is handed over, and whoever waits for a delivery comes back empty. What waited in hand
        goes back to the queue at once. Call it on the source's loop."""
        if self._stopping:
            return
        self._stopping = True
        self._stopped.set()
        if self._opened:
            self._hand.wake()
        elif self._opening is not None:
            self._opening.cancel()

    async def close(self) -> None:
        """Stop; tell the broker all answers; give back what was handed out and not answered; let go of it. It goes on
        when whoever waits for it is cancelled: a connection that is left open keeps its messages."""
        self.stop()
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close_once())
        await asyncio.shield(self._closing)

    async def _close_once(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if not self._opened:
            return
        self._opened = False
        consuming, watching = self._tasks
        watching.cancel()
        await asyncio.wait([consuming, watching])
        for held in self._hand.unanswered():
            self._answers.give_back(held)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._answers.drained()
        except TimeoutError:
            log.warning("messages_unanswered", source=self._where, messages=len(self._hand))
            self._answers.cancel()
        if self._session is not None:
            await self._session.close()
        await self._sending.close()


def _structured(held: Held) -> bytes | None:
    """The document of a CloudEvent in binary mode; None for any other message. Raises MalformedEvent."""
    properties = held.properties
    if not properties.headers:
        return None
    return from_message(held.body, properties.headers.items(), properties.content_type or "")
