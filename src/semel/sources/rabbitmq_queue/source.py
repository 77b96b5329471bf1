"""A RabbitMQ queue as a source of deliveries.

    broker → session → in flight → receive → (the worker) → ack, retry, reject → answers → broker

The broker pushes up to `prefetch` messages, and the worker takes from them. A message is acknowledged only after it is
settled. Answers do not wait for the network. The broker redelivers every unacknowledged message, also after a crash or
a lost connection; a message that was settled by then is a duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.ports import Delivery, Fact
from semel.sources.lifecycle import Observer, QueueSource, is_logged
from semel.sources.rabbitmq_queue.answers import RabbitAnswers, RabbitCounts
from semel.sources.rabbitmq_queue.doctor import check_options, check_queues, diagnose
from semel.sources.rabbitmq_queue.in_flight import RabbitInFlight, RabbitMessage
from semel.sources.rabbitmq_queue.messages import remaining_wait_s, retry_count
from semel.sources.rabbitmq_queue.publisher import ConfirmedSender
from semel.sources.rabbitmq_queue.session import (
    UNREADABLE,
    RabbitError,
    RabbitSession,
    RabbitStep,
    close_connection,
    connect,
    display_url,
    open_session,
    rabbit_error,
    reraise_own_cancellation,
    wait_first,
)
from semel.values.cloudevents import from_message
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.event import DecodeOptions
from semel.values.forwarded import METADATA_KEY, ForwardMetadata, read_metadata
from semel.values.log import log
from semel.values.retry import backoff_s

PREFETCH = 250
CONSUMER_TIMEOUT_S = 1800.0  # the broker's default: after 30 minutes without an answer it closes the channel
KEEP = 0.8  # share of that time after which one message goes back, before a closed channel returns all of them
CHECKS = 20  # for such messages, during that time
DRAIN_S = 20.0  # for the answers that are not sent at close
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 20.0  # the source resumes at most this long after an outage ends


class RabbitDelivery(Delivery):
    """One delivery of a message. An answer is queued for sending when its call returns."""

    __slots__ = ("_message", "_source", "body", "decode_options", "headers", "receives", "tenant")

    def __init__(self, source: RabbitSource, message: RabbitMessage, metadata: ForwardMetadata | None = None) -> None:
        """Metadata marks an event that an endpoint of Semel forwarded: the source's own tenant and decode options do
        not apply."""
        self.body = (_structured(message) if metadata is None else None) or message.body
        self.tenant = source.tenant if metadata is None else metadata.tenant
        self.decode_options: DecodeOptions | None = (
            source.decode_options if metadata is None else metadata.decode_options
        )
        self.headers: Mapping[str, str] | None = None if metadata is None else metadata.headers
        self.receives = retry_count(message) + 1
        self._source = source
        self._message = message

    async def ack(self) -> None:
        if not self._message.answered:
            self._source._answers.ack(self._message)

    async def retry(self, after_s: float) -> None:
        if not self._message.answered:
            self._source._answers.retry(self._message, after_s)

    async def reject(self, reason: str) -> None:
        if not self._message.answered:
            self._source._answers.dead_letter_message(self._message, reason)


class RabbitSource(QueueSource):
    """Receives from one queue. The first `receive` opens it on its event loop; several workers can share it.

    url: amqp://user:password@host/vhost, or amqps:// with `cafile`, `certfile`, `keyfile` as options.
    dead_letters: the name of another queue, for rejected messages.
    prefetch: messages that are delivered and not answered.
    declare: create missing queues as quorum queues; otherwise both must exist.
    consumer_timeout: the broker's setting, in seconds; a delivery that takes 0.8 of it goes back.
    reading: decode options of this queue, if they differ from the app's.
    forwarded: endpoints of Semel fill this queue. The metadata of a message sets its tenant and decode options, so
        every sender with access to the queue is trusted. Messages without metadata are processed as usual.
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
        decode_options: DecodeOptions | None = None,
        forwarded: bool = False,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
    ) -> None:
        super().__init__()
        check_options(url, queue, dead_letters, prefetch, consumer_timeout)
        self.queue = queue
        self.dead_letters = dead_letters
        self.prefetch = prefetch
        self.consumer_timeout = consumer_timeout
        self.tenant = tenant
        self.decode_options = decode_options
        self.forwarded = forwarded
        self._url = url
        self._declare = declare
        self._random = random
        self._observe: Observer = observe or (lambda _: None)
        self._where = f"{display_url(url)} {queue}"
        self._counts = RabbitCounts()
        self._in_flight: RabbitInFlight
        self._answers: RabbitAnswers
        self._sender: ConfirmedSender
        self._session: RabbitSession | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = asyncio.Event()

    def __repr__(self) -> str:
        return f"RabbitSource({display_url(self._url)!r}, {self.queue!r})"

    @property
    def counts(self) -> RabbitCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the queue for `semel doctor`. The source need not be open."""
        return await diagnose(
            self._url, self.queue, self.dead_letters, forwarded=self.forwarded, may_declare=self._declare
        )

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[RabbitDelivery]:
        """Return up to `limit` deliveries, after waiting for the first; empty when the source is stopped.

        Raises ConfigError at opening if a queue or a permission is missing.
        """
        await self._open()
        while not self._stopping:
            while taken := self._in_flight.take(
                limit
            ):  # all of them may be dead letters, and more may be ready behind them
                if deliveries := self._deliveries(taken):
                    self._observe(RabbitStep.AFTER_RECEIVE)
                    return deliveries
            for task in self._tasks:
                if task.done():
                    task.result()  # raises an unexpected error
            await self._in_flight.changed()
        return []

    def _deliveries(self, taken: Sequence[RabbitMessage]) -> list[RabbitDelivery]:
        """Build deliveries. A message with unreadable metadata becomes a dead letter: its tenant is unknown."""
        deliveries = []
        for message in taken:
            try:
                deliveries.append(RabbitDelivery(self, message, self._metadata(message)))
            except MalformedEvent as error:
                self._answers.dead_letter_message(message, str(error))
        return deliveries

    def _metadata(self, message: RabbitMessage) -> ForwardMetadata | None:
        if isinstance(reason := message.header(UNREADABLE), str):
            raise MalformedEvent(reason)
        text = message.header(METADATA_KEY)
        if text is not None and not isinstance(text, str | bytes):
            raise MalformedEvent(f"its forwarding metadata {METADATA_KEY!r} was not written by Semel")
        return read_metadata(text, self.forwarded)

    def _deliver(self, session: RabbitSession, received: Any) -> None:
        """Called by the driver, once for each message."""
        message = RabbitMessage(session, received, time.monotonic())
        self._counts.received += 1
        if message.properties.headers and (left_s := remaining_wait_s(message)):
            self._answers.retry(message, left_s)
        else:
            self._in_flight.put(message)

    # --------------------------------------------------------------------------------------------------- consuming

    async def _open_once(self) -> None:
        self._in_flight = RabbitInFlight()
        self._sender = ConfirmedSender(self._url, f"semel-{self.queue}-copies", self._random)
        self._answers = RabbitAnswers(
            self._sender,
            self._in_flight,
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
            task.add_done_callback(lambda _: self._in_flight.wake())

    async def _first_session(self) -> RabbitSession:
        """Wait while the broker is unreachable. Raises ConfigError for a problem that needs a change by an operator."""
        failures = 0
        while True:
            try:
                return await self._connect(first=True)
            except RabbitError as failure:
                if failure.definite:
                    raise ConfigError(f"{failure}{self._hint(failure)}") from None
                failures += 1
                self._log_disconnect(failures, failure)
            await self._pause(failures)

    def _hint(self, failure: RabbitError) -> str:
        if failure.missing and not self._declare:
            return "; create it as a quorum queue, or set declare"
        is_different = self._declare and "inequivalent" in str(failure)
        return "; unset declare to use the queue with its own arguments" if is_different else ""

    async def _connect(self, *, first: bool = False, tolerant: bool = False) -> RabbitSession:
        """Open a session that consumes. Raises only RabbitError: any other error would end the consumption."""
        connection = None
        try:
            connection = await connect(self._url, f"semel-{self.queue}", tolerant=tolerant)
            await check_queues(
                connection, self.queue, self.dead_letters, self._where, may_declare=self._declare, first=first
            )
            session = await open_session(connection, self._where, self._observe, self._count_answers)
            await session.consume(self.queue, self.prefetch, self._deliver)
        except (Exception, asyncio.CancelledError) as error:
            if connection is not None:
                await close_connection(connection)
            reraise_own_cancellation()
            raise rabbit_error(error, self._where) from None
        self._session = session
        return session

    async def _consume(self, session: RabbitSession | None) -> None:
        """Run one session after the other until the source is stopped.

        The consumer is cancelled before undelivered messages go back. Otherwise the broker would redeliver them to this
        consumer.
        """
        failures = 0
        while session is not None:
            began_at = time.monotonic()
            await wait_first(asyncio.ensure_future(session.ended.wait()), asyncio.ensure_future(self._stopped.wait()))
            if self._stopping:
                break
            failures = 0 if time.monotonic() - began_at > BACKOFF_CAP_S else failures
            lost = self._in_flight.lose_session(session)
            self._counts.lost += lost
            await session.close()
            session, failures = await self._next_session(session, failures, lost)
        if session is not None:
            await session.cancel()
        for message in self._in_flight.take_waiting():
            self._answers.return_message(message)

    async def _next_session(self, old: RabbitSession, failures: int, lost: int) -> tuple[RabbitSession | None, int]:
        """Reconnect. Returns the session and the number of failures in a row; no session if the source was stopped."""
        error: BaseException = old.error or RabbitError("closed")
        while not self._stopping:
            failures += 1
            self._log_disconnect(failures, error, lost)
            await self._pause(failures)
            connecting = asyncio.get_running_loop().create_task(self._connect(tolerant=old.was_unreadable))
            await wait_first(connecting, asyncio.ensure_future(self._stopped.wait()))
            try:
                session = await connecting
            except RabbitError as failure:
                error, lost = failure, 0
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
            else:
                log.info("rabbitmq_recovered", source=self._where)
                return session, failures
        return None, failures

    async def _watch(self) -> None:
        """Return messages before the broker's consumer timeout closes the channel."""
        while True:
            await asyncio.sleep(self.consumer_timeout / CHECKS)
            for message in self._in_flight.older_than(time.monotonic() - self.consumer_timeout * (KEEP - 1 / CHECKS)):
                self._counts.overdue += 1
                held_s = round(time.monotonic() - message.received_at, 1)
                fields = {"held_s": held_s, "consumer_timeout_s": self.consumer_timeout}
                log.warning("message_returned", source=self._where, message_id=message.id, **fields)
                self._in_flight.withdraw(message)
                self._answers.return_message(message)

    def _count_answers(self, acked: int, returned: int) -> None:
        self._counts.acked += acked
        self._counts.returned += returned

    async def _pause(self, failures: int) -> None:
        """Wait with full jitter, so that a thousand consumers do not reconnect at the same moment."""
        delay_s = backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
        try:
            async with asyncio.timeout(delay_s):
                await self._stopped.wait()
        except TimeoutError:
            pass

    def _log_disconnect(self, failures: int, error: BaseException, lost: int = 0) -> None:
        self._counts.failures += 1
        if is_logged(failures):
            redelivered = f"; {lost} messages in flight are redelivered" if lost else ""
            text = f"{str(error) or type(error).__name__}{redelivered}"
            log.warning("rabbitmq_disconnected", source=self._where, failures=failures, error=text)

    # ---------------------------------------------------------------------------------------------------- stopping

    def stop(self) -> None:
        """Stop delivering. Waiting receives return empty, and undelivered messages go back to the queue at once.

        Call it on the source's loop.
        """
        if self._stopping:
            return
        self._stopping = True
        self._stopped.set()
        if self._opened:
            self._in_flight.wake()
        elif self._opening is not None:
            self._opening.cancel()

    async def _close_once(self) -> None:
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if not self._opened:
            return
        self._opened = False
        consuming, watching = self._tasks
        watching.cancel()
        await asyncio.wait([consuming, watching])
        for message in self._in_flight.unanswered():
            self._answers.return_message(message)
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._answers.drained()
        except TimeoutError:
            log.warning("messages_unanswered", source=self._where, messages=len(self._in_flight))
            self._answers.cancel()
        if self._session is not None:
            await self._session.close()
        await self._sender.close()


def _structured(message: RabbitMessage) -> bytes | None:
    """Structured form of a binary-mode CloudEvent. None: another message. Raises MalformedEvent."""
    properties = message.properties
    if not properties.headers:
        return None
    return from_message(message.body, properties.headers.items(), properties.content_type or "")
