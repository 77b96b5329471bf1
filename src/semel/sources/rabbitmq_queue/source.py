"""A RabbitMQ queue as a source of deliveries.

    broker → session → in flight → receive → (the worker) → ack, retry, reject → answers → broker

The broker pushes up to `prefetch` messages, and the worker takes from them. A message is acknowledged only after it is
settled. Answers do not wait for the network. The broker redelivers every unacknowledged message, also after a crash or
a lost connection; a message that was settled by then is a duplicate.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from semel.ports import Fact
from semel.sources.lifecycle import BACKOFF_CAP_S, Observer, QueueDelivery, QueueSource, return_and_drain
from semel.sources.rabbitmq_queue.answers import RabbitAnswers, RabbitCounts
from semel.sources.rabbitmq_queue.doctor import check_queues, diagnose
from semel.sources.rabbitmq_queue.messages import RabbitInFlight, RabbitMessage, remaining_wait_s, retry_count
from semel.sources.rabbitmq_queue.options import RabbitOptions, display_url
from semel.sources.rabbitmq_queue.publisher import ConfirmedSender
from semel.sources.rabbitmq_queue.session import (
    UNREADABLE,
    RabbitError,
    RabbitSession,
    RabbitStep,
    close_connection,
    connect,
    open_session,
    rabbit_error,
    reraise_own_cancellation,
    wait_first,
)
from semel.values.cloudevents import from_message
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.forwarded import METADATA_KEY, read_metadata
from semel.values.log import IncidentLog, log

KEEP = 0.8  # share of the consumer timeout after which one message goes back, before a closed channel returns all
CHECKS = 20  # for such messages, during that time
DRAIN_S = 20.0  # for the answers that are not sent at close


class RabbitSource(QueueSource[RabbitMessage]):
    """Receives from one queue. The first `receive` opens it on its event loop; several workers can share it.

    `options` are those of RabbitOptions. Raises ConfigError.
    """

    _in_flight: RabbitInFlight
    _answers: RabbitAnswers

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        random: Callable[[], float] | None = None,
        observe: Observer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(random, observe)
        self.options = RabbitOptions(url=url, queue=queue, **options)
        self.queue = queue
        self._where = f"{display_url(url)} {queue}"
        self._counts = RabbitCounts()
        self._incident = IncidentLog(
            "rabbitmq_disconnected", "rabbitmq_recovered", level=logging.WARNING, source=self._where
        )
        self._sender: ConfirmedSender
        self._session: RabbitSession | None = None

    def __repr__(self) -> str:
        return f"RabbitSource({display_url(self.options.url)!r}, {self.queue!r})"

    @property
    def counts(self) -> RabbitCounts:
        """Counters since the start."""
        return self._counts

    async def diagnose(self) -> list[Fact]:
        """Facts about the queue for `semel doctor`. The source need not be open."""
        return await diagnose(self.options)

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[QueueDelivery[RabbitMessage]]:
        deliveries = await super().receive(limit)
        if deliveries:
            self._observe(RabbitStep.AFTER_RECEIVE)
        return deliveries

    def _delivery(self, message: RabbitMessage) -> QueueDelivery[RabbitMessage]:
        if isinstance(reason := message.header(UNREADABLE), str):
            raise MalformedEvent(reason)
        text = message.header(METADATA_KEY)
        if text is not None and not isinstance(text, str | bytes):
            raise MalformedEvent(f"its forwarding metadata {METADATA_KEY!r} was not written by Semel")
        metadata = read_metadata(text, self.options.forwarded)
        body, properties = message.body, message.properties
        if metadata is None and properties.headers:  # it may be a CloudEvent in binary mode
            body = from_message(body, properties.headers.items(), properties.content_type or "") or body
        return QueueDelivery(self._answers, message, body, self.options, metadata, retry_count(message) + 1)

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
        self._sender = ConfirmedSender(self.options.url, f"semel-{self.queue}-copies", self._random)
        self._answers = RabbitAnswers(
            self._sender,
            self._in_flight,
            self.options,
            keep_s=self.options.consumer_timeout * KEEP,
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
                    hint = ""
                    if failure.missing and not self.options.declare:
                        hint = "; create it as a quorum queue, or set declare"
                    elif self.options.declare and "inequivalent" in str(failure):
                        hint = "; unset declare to use the queue with its own arguments"
                    raise ConfigError(f"{failure}{hint}") from None
                failures += 1
                self._report_disconnect(failure)
            await self._pause(failures)

    async def _connect(self, *, first: bool = False, tolerant: bool = False) -> RabbitSession:
        """Open a session that consumes. Raises only RabbitError: any other error would end the consumption."""
        connection = None
        try:
            connection = await connect(self.options.url, f"semel-{self.queue}", tolerant=tolerant)
            await check_queues(connection, self.options, self._where, warn=first)
            session = await open_session(connection, self._where, self._observe, self._count_answers)
            await session.consume(self.queue, self.options.prefetch, self._deliver)
        except (Exception, asyncio.CancelledError) as error:
            if connection is not None:
                await close_connection(connection)
            reraise_own_cancellation()
            raise rabbit_error(error, self._where) from None
        self._incident.resolve()
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
        self._answers.return_unused(self._in_flight.take_waiting())

    async def _next_session(self, old: RabbitSession, failures: int, lost: int) -> tuple[RabbitSession | None, int]:
        """Reconnect. Returns the session and the number of failures in a row; no session if the source was stopped."""
        error: BaseException = old.error or RabbitError("closed")
        while not self._stopping:
            failures += 1
            self._report_disconnect(error, lost)
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
                return session, failures
        return None, failures

    async def _watch(self) -> None:
        """Return messages before the broker's consumer timeout closes the channel."""
        while True:
            await asyncio.sleep(self.options.consumer_timeout / CHECKS)
            overdue_before = time.monotonic() - self.options.consumer_timeout * (KEEP - 1 / CHECKS)
            for message in self._in_flight.unanswered:
                if message.received_at > overdue_before:
                    continue
                self._counts.overdue += 1
                held_s = round(time.monotonic() - message.received_at, 1)
                fields = {"held_s": held_s, "consumer_timeout_s": self.options.consumer_timeout}
                log.warning("message_returned", source=self._where, message_id=message.id, **fields)
                self._in_flight.withdraw(message)
                self._answers.return_message(message)

    def _count_answers(self, acked: int, returned: int) -> None:
        self._counts.acked += acked
        self._counts.returned += returned

    def _report_disconnect(self, error: BaseException, lost: int = 0) -> None:
        self._counts.failures += 1
        redelivered = f"; {lost} messages in flight are redelivered" if lost else ""
        self._incident.report(f"{str(error) or type(error).__name__}{redelivered}")

    # ---------------------------------------------------------------------------------------------------- stopping

    def _return_waiting(self) -> None:
        """Do nothing: `_consume` returns the messages after it has cancelled the consumer."""

    async def _close_once(self) -> None:
        consuming, watching = self._tasks
        watching.cancel()
        await asyncio.wait([consuming, watching])
        await return_and_drain(self._in_flight, self._answers, DRAIN_S, self._where)
        if self._session is not None:
            await self._session.close()
        await self._sender.close()
