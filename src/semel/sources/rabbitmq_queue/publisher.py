"""Publishes messages to RabbitMQ, each confirmed by the broker: forwarded events, retry copies and dead letters.

A message counts as published when the broker has confirmed it: a quorum queue does so when most of its nodes have it on
disk. In every other case (no queue accepts it, a refusal, a lost connection, a timeout) it counts as not published: its
sender delivers it again, and the consumer detects the duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aio_pika
import aiormq.abc
from aio_pika.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic

from semel.ports import Fact
from semel.sources.rabbitmq_queue.messages import PERSISTENT, QUORUM, queue_arguments
from semel.sources.rabbitmq_queue.options import NAME_MAX_BYTES, check_name, check_url, display_url
from semel.sources.rabbitmq_queue.session import (
    ASK_S,
    CONNECTION_LOST,
    RabbitError,
    close_connection,
    connect,
    doctor_fact,
    open_channel,
    rabbit_error,
    reraise_own_cancellation,
)
from semel.values.errors import ConfigError
from semel.values.forwarded import METADATA_KEY, METADATA_MAX_BYTES, TOO_LARGE, ForwardedEvent, encode_metadata
from semel.values.retry import backoff_s

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0

# The broker persists a new quorum queue half a second after creating it. A broker that is killed before that (seen with
# 3.10) loses the queue and its confirmed messages. So a new queue is used only after this time.
NEW_S = 2.0


class ConfirmedSender:
    """Publishes messages with confirmation on its own connection, opened by the first message and after a loss.

    A broker that is short of memory stops reading from connections that publish. Acknowledgements must not wait behind
    that, so they use another connection. A message that no queue accepts comes back before its confirmation
    (mandatory), and does not count as published. Several messages can be unconfirmed at a time.
    """

    def __init__(self, url: str, name: str, random: Callable[[], float]) -> None:
        self._url = url
        self._name = name
        self._random = random
        self._connection: aio_pika.Connection | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None
        self._opening: asyncio.Task[aiormq.abc.AbstractChannel] | None = None
        self._failures = 0
        self._last_error = RabbitError("not connected yet")
        self._retry_at = 0.0  # no new connection before this time
        self._ids_in_flight: dict[str, asyncio.Event] = {}  # message ids that are not confirmed
        self._declared: set[str] = set()  # queues that are declared on this connection
        self._declaring: dict[str, asyncio.Lock] = {}

    async def send(
        self, exchange: str, routing_key: str, body: bytes, properties: Basic.Properties, timeout_s: float
    ) -> str:
        """Publish one message. Returns an empty text, or why it is not confirmed. Never exceeds the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                channel = await self._open_channel()
                return await self._publish(channel, exchange, routing_key, body, properties)
        except TimeoutError:
            return f"{display_url(self._url)}: not confirmed within {timeout_s:g} s"
        except RabbitError as failure:
            return str(failure)

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Declare a queue once per connection and wait until it is safe to use.

        Raises RabbitError, also if the queue exists with other arguments.
        """
        if queue in self._declared:
            return
        async with self._declaring.setdefault(queue, asyncio.Lock()):  # concurrent retries share one declaration
            if queue in self._declared:
                return
            await self._open_channel()
            connection, where = self._connection, display_url(self._url)
            if connection is None:
                raise self._last_error
            is_new = await is_missing(connection, queue, where)
            await declare(connection, queue, arguments, where)
            if is_new:
                await asyncio.sleep(NEW_S)
            self._declared.add(queue)

    def forget(self, queue: str) -> None:
        """Declare a queue again with its next use: it may have been deleted."""
        self._declared.discard(queue)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await close_connection(connection)

    # ---------------------------------------------------------------------------------------------------- publishing

    async def _publish(
        self,
        channel: aiormq.abc.AbstractChannel,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Basic.Properties,
    ) -> str:
        id = properties.message_id or ""
        while (other := self._ids_in_flight.get(id)) is not None:
            await other.wait()  # the driver matches returned messages by id: an id is sent once at a time
        if id:
            self._ids_in_flight[id] = asyncio.Event()
        try:
            await channel.basic_publish(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True
            )
        except PublishError:
            return f"{display_url(self._url)}: no queue is bound to {routing_key!r} of exchange {exchange!r}"
        except DeliveryError:
            return f"{display_url(self._url)}: the broker refused the message (nack)"
        except TimeoutError:
            raise
        except (*CONNECTION_LOST, asyncio.CancelledError) as error:
            reraise_own_cancellation()
            return str(rabbit_error(error, display_url(self._url)))
        except (TypeError, ValueError, OverflowError) as error:
            return f"the message cannot be encoded as AMQP: {error}"
        finally:
            if id:
                self._ids_in_flight.pop(id).set()
        return ""

    # ----------------------------------------------------------------------------------------------------- connecting

    async def _open_channel(self) -> aiormq.abc.AbstractChannel:
        """Return the open channel. Raises RabbitError, immediately while it is too early to reconnect."""
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        if self._opening is None:
            if time.monotonic() < self._retry_at:
                raise self._last_error
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._opening_done)
        opening = self._opening
        await asyncio.wait([opening])  # shared: the timeout of one caller does not cancel it for the others
        if opening.cancelled():
            raise RabbitError(f"{display_url(self._url)}: closed")
        return opening.result()

    def _opening_done(self, opening: asyncio.Task[aiormq.abc.AbstractChannel]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # mark it as retrieved: the callers raise it, if any still wait

    async def _open(self) -> aiormq.abc.AbstractChannel:
        old, self._connection, self._channel = self._connection, None, None
        self._declared.clear()
        if old is not None:
            await close_connection(old)
        connection = None
        try:
            connection = await connect(self._url, self._name)
            channel = await (await open_channel(connection, confirms=True)).get_underlay_channel()
        except (Exception, asyncio.CancelledError) as error:
            if connection is not None:
                await close_connection(connection)
            reraise_own_cancellation()
            self._failures += 1
            pause_s = backoff_s(self._failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            self._retry_at = time.monotonic() + pause_s
            self._last_error = rabbit_error(error, display_url(self._url))
            raise self._last_error from None
        self._failures = 0
        self._connection, self._channel = connection, channel
        return channel


async def declare(
    connection: aio_pika.Connection, queue: str, arguments: Mapping[str, Any] | None, where: str
) -> tuple[int, int]:
    """Declare a queue, or check that it exists without `arguments`. Returns its numbers of messages and consumers.

    Raises RabbitError.
    """
    try:
        channel = await open_channel(connection, confirms=False)
        try:
            inner = await channel.get_underlay_channel()
            answer = await inner.queue_declare(
                queue,
                durable=True,
                passive=arguments is None,
                arguments=None if arguments is None else dict(arguments),
                timeout=ASK_S,
            )
            return answer.message_count or 0, answer.consumer_count or 0
        finally:
            if not channel.is_closed:
                await channel.close()
    except (*CONNECTION_LOST, asyncio.CancelledError) as error:
        reraise_own_cancellation()
        raise rabbit_error(error, where) from None


async def is_missing(connection: aio_pika.Connection, queue: str, where: str) -> bool:
    """True if the queue does not exist. Raises RabbitError."""
    try:
        await declare(connection, queue, None, where)
    except RabbitError as failure:
        if not failure.missing:
            raise
        return True
    return False


TIMEOUT_S = 5.0
TIMEOUT_MAX_S = 60.0
MESSAGE_MAX_BYTES = 16 * 1024 * 1024  # the broker's default limit (older brokers: 128 MiB)


class RabbitPublisher:
    """Publishes events to one queue. The first `publish` opens it on its event loop.

    queue: the name of a queue; with an exchange, the routing key.
    timeout: seconds after which an unconfirmed event is reported as not published.
    declare: create the queue and `dead_letters` if they are missing, as a source with the same options does.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        exchange: str = "",
        timeout: float = TIMEOUT_S,
        declare: bool = False,
        dead_letters: str = "",
        random: Callable[[], float] = _random.random,
    ) -> None:
        check_url(url)
        check_name("queue", queue)
        if len(exchange.encode()) > NAME_MAX_BYTES:
            raise ConfigError(f"exchange={exchange!r}: at most {NAME_MAX_BYTES} bytes")
        if not 0 < timeout <= TIMEOUT_MAX_S:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, above 0 and at most {TIMEOUT_MAX_S:g}")
        if declare and (exchange or not dead_letters):
            raise ConfigError(
                "declare: set dead_letters to the queue that the source uses, and no exchange: the queues behind an "
                "exchange are unknown"
            )
        if dead_letters:
            check_name("dead_letters", dead_letters)
        self.queue = queue
        self.dead_letters = dead_letters
        self._declare = declare
        self.exchange = exchange
        self.timeout = timeout
        self._url = url
        self._sender = ConfirmedSender(url, f"semel-to-{queue}", random)
        self._publishing: set[asyncio.Task[list[str]]] = set()

    def __repr__(self) -> str:
        return f"RabbitPublisher({display_url(self._url)!r}, {self.queue!r})"

    async def publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        """Return one answer per event: empty when the broker has it, else the reason. Never exceeds the timeout."""
        publishing = asyncio.ensure_future(self._publish(events))
        self._publishing.add(publishing)
        publishing.add_done_callback(self._publishing.discard)
        return await publishing

    async def diagnose(self) -> list[Fact]:
        """Facts about the target for `semel doctor`. The publisher need not be open."""
        facts = [
            Fact("broker", display_url(self._url)),
            Fact("exchange", self.exchange or "the default one"),
            Fact("queue", self.queue),
        ]
        try:
            connection = await connect(self._url, "semel-doctor")
        except RabbitError as failure:
            return [*facts, doctor_fact("connection", failure)]
        try:
            if self.exchange:
                return facts
            waiting, consumers = await declare(connection, self.queue, None, display_url(self._url))
        except RabbitError as failure:
            if failure.missing and self._declare:
                return [*facts, Fact("waiting", "the queue does not exist yet: the first event creates it")]
            return [*facts, Fact("queue", str(failure), "error")]
        finally:
            await close_connection(connection)
        return [*facts, Fact("waiting", f"{waiting:,}"), Fact("consumers", f"{consumers:,}")]

    async def close(self) -> None:
        """Wait for running calls, then disconnect."""
        while self._publishing:
            await asyncio.wait(self._publishing)
        await self._sender.close()

    async def _publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        """Send all events at once: one channel keeps their order, and one confirmation often covers many."""
        return list(await asyncio.gather(*[self._send(event) for event in events]))

    async def _send(self, event: ForwardedEvent) -> str:
        metadata = encode_metadata(event.metadata)
        if len(metadata) > METADATA_MAX_BYTES:
            return f"{TOO_LARGE}its metadata has more than {METADATA_MAX_BYTES:,} bytes"
        if len(event.body) > MESSAGE_MAX_BYTES:
            return f"{TOO_LARGE}{len(event.body):,} bytes; the broker accepts {MESSAGE_MAX_BYTES:,}"
        if self._declare and (reason := await self._declare_queues()):
            return reason
        content_type = event.content_type or None
        properties = Basic.Properties(
            content_type=content_type, headers={METADATA_KEY: metadata}, delivery_mode=PERSISTENT
        )
        return await self._sender.send(self.exchange, self.queue, event.body, properties, self.timeout)

    async def _declare_queues(self) -> str:
        """Declare both queues, once per connection. Returns an empty text, or why it failed."""
        try:
            async with asyncio.timeout(self.timeout):
                await self._sender.declare(self.dead_letters, QUORUM)
                await self._sender.declare(self.queue, queue_arguments(self.dead_letters))
        except TimeoutError:
            return f"{display_url(self._url)}: the queues could not be declared within {self.timeout:g} s"
        except RabbitError as failure:
            return str(failure)
        return ""
