"""Messages to the broker, each confirmed: it is there, and will not be lost, or the reason why not.

On a connection of its own: a broker that is short of memory stops reading from connections that publish, and our
acknowledgements must not wait behind that. What cannot be routed to any queue comes back before it is confirmed
(mandatory), and is not taken for kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import aio_pika
import aiormq.abc
from aio_pika.exceptions import DeliveryError, PublishError
from pamqp.commands import Basic

from semel.adapters.sources.rabbitmq.address import shown
from semel.adapters.sources.rabbitmq.connecting import (
    ASK_S,
    LOST,
    Failed,
    connect,
    failure_of,
    hang_up,
    only_if_lost,
    open_channel,
)
from semel.values.retry import backoff_s

BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0

# A broker writes down that there is a quorum queue half a second after it has made it. One that is killed before that
# (seen with 3.10) forgets the queue, and what it has confirmed in it. So a new queue is used when it is old enough.
NEW_S = 2.0


class Sending:
    """Opened by the first message, and again after a loss. Several may be under way at a time."""

    def __init__(self, url: str, name: str, random: Callable[[], float]) -> None:
        self._url = url
        self._name = name
        self._random = random
        self._connection: aio_pika.Connection | None = None
        self._channel: aiormq.abc.AbstractChannel | None = None
        self._opening: asyncio.Task[aiormq.abc.AbstractChannel] | None = None
        self._failures = 0
        self._failed = Failed("not tried yet")
        self._not_before = 0.0  # nobody knocks again before this time
        self._flying: dict[str, asyncio.Event] = {}  # ids under way
        self._known: set[str] = set()  # queues that were declared on this connection
        self._declaring: dict[str, asyncio.Lock] = {}

    async def send(
        self, exchange: str, routing_key: str, body: bytes, properties: Basic.Properties, timeout_s: float
    ) -> str:
        """Empty when the broker has it, else why that is not known. Never waits longer than the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                channel = await self._opened()
                return await self._publish(channel, exchange, routing_key, body, properties)
        except TimeoutError:
            return f"{shown(self._url)}: not confirmed within {timeout_s:g} s"
        except Failed as failure:
            return str(failure)

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Once for each connection; returns when it can be relied on. Raises Failed, also where it is another one."""
        if queue in self._known:
            return
        async with self._declaring.setdefault(queue, asyncio.Lock()):  # a hundred retries need one declaration
            if queue in self._known:
                return
            await self._opened()
            connection, where = self._connection, shown(self._url)
            if connection is None:
                raise self._failed
            is_new = await is_missing(connection, queue, where)
            await declare(connection, queue, arguments, where)
            if is_new:
                await asyncio.sleep(NEW_S)
            self._known.add(queue)

    def forget(self, queue: str) -> None:
        """It seems to be gone: declare it again."""
        self._known.discard(queue)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            await hang_up(connection)

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
        while (other := self._flying.get(id)) is not None:
            await other.wait()  # the driver tells by the id which one came back: no two with the same at a time
        if id:
            self._flying[id] = asyncio.Event()
        try:
            await channel.basic_publish(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True
            )
        except PublishError:
            return f"{shown(self._url)}: no queue takes {routing_key!r} of exchange {exchange!r}"
        except DeliveryError:
            return f"{shown(self._url)}: the broker refused it (nack)"
        except TimeoutError:
            raise
        except (*LOST, asyncio.CancelledError) as error:
            only_if_lost()
            return str(failure_of(error, shown(self._url)))
        except (TypeError, ValueError, OverflowError) as error:
            return f"it cannot be written as AMQP: {error}"
        finally:
            if id:
                self._flying.pop(id).set()
        return ""

    # ----------------------------------------------------------------------------------------------------- connecting

    async def _opened(self) -> aiormq.abc.AbstractChannel:
        """Raises Failed: at once, while it is too early to knock again."""
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        if self._opening is None:
            if time.monotonic() < self._not_before:
                raise self._failed
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._is_open)
        opening = self._opening
        await asyncio.wait([opening])  # for all who wait: the end of one's patience is not the end of the others'
        if opening.cancelled():
            raise Failed(f"{shown(self._url)}: closed")
        return opening.result()

    def _is_open(self, opening: asyncio.Task[aiormq.abc.AbstractChannel]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # it is told to whoever waits, if anybody still does

    async def _open(self) -> aiormq.abc.AbstractChannel:
        old, self._connection, self._channel = self._connection, None, None
        self._known.clear()
        if old is not None:
            await hang_up(old)
        connection = None
        try:
            connection = await connect(self._url, self._name)
            channel = await (await open_channel(connection, confirms=True)).get_underlay_channel()
        except (Exception, asyncio.CancelledError) as error:
            if connection is not None:
                await hang_up(connection)
            only_if_lost()
            self._failures += 1
            pause_s = backoff_s(self._failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            self._not_before = time.monotonic() + pause_s
            self._failed = failure_of(error, shown(self._url))
            raise self._failed from None
        self._failures = 0
        self._connection, self._channel = connection, channel
        return channel


async def declare(
    connection: aio_pika.Connection, queue: str, arguments: Mapping[str, Any] | None, where: str
) -> tuple[int, int]:
    """How many messages are to be had, and how many consumers there are. None: it has to be there already. Raises
    Failed."""
    try:
        channel = await open_channel(connection, confirms=False)
        try:
            inner = await channel.get_underlay_channel()
            told = await inner.queue_declare(
                queue,
                durable=True,
                passive=arguments is None,
                arguments=None if arguments is None else dict(arguments),
                timeout=ASK_S,
            )
            return told.message_count or 0, told.consumer_count or 0
        finally:
            if not channel.is_closed:
                await channel.close()
    except (*LOST, asyncio.CancelledError) as error:
        only_if_lost()
        raise failure_of(error, where) from None


async def is_missing(connection: aio_pika.Connection, queue: str, where: str) -> bool:
    """Raises Failed."""
    try:
        await declare(connection, queue, None, where)
    except Failed as failure:
        if not failure.missing:
            raise
        return True
    return False
