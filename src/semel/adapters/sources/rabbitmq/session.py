"""One connection to the broker, and what is consumed on it. What was delivered dies with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aio_pika
from aio_pika.exceptions import InvalidFrameError
from aiormq.abc import AbstractChannel

from semel.adapters.sources.rabbitmq.acking import Acks
from semel.adapters.sources.rabbitmq.connecting import (
    ASK_S,
    LOST,
    Failed,
    failure_of,
    hang_up,
    only_if_lost,
    open_channel,
)
from semel.adapters.sources.rabbitmq.steps import Observer


class Session:
    """Deliveries come by `deliver` until `ended` is set."""

    def __init__(
        self, connection: aio_pika.Connection, channel: AbstractChannel, where: str, acks: Acks, ended: asyncio.Event
    ) -> None:
        self.acks = acks
        self.ended = ended  # the channel is closed, or the broker has cancelled us
        self.why: BaseException | None = None
        self._connection = connection
        self._channel = channel
        self._where = where
        self._consumer = ""

    @property
    def lives(self) -> bool:
        return not self._channel.is_closed

    @property
    def was_unreadable(self) -> bool:
        """It ended because the driver could not read what the broker sent."""
        return isinstance(self.why, InvalidFrameError | RecursionError | UnicodeError)

    async def consume(self, queue: str, prefetch: int, deliver: Callable[[Session, Any], None]) -> None:
        """Raises Failed."""

        async def delivered(message: Any) -> None:
            deliver(self, message)

        try:
            await self._channel.basic_qos(prefetch_count=prefetch, timeout=ASK_S)
            told = await self._channel.basic_consume(queue, delivered, timeout=ASK_S)
        except LOST as error:
            raise failure_of(error, self._where) from None
        self._consumer = told.consumer_tag or ""

    async def cancel(self) -> None:
        """Nothing more is delivered when it returns; what was delivered can be answered."""
        with suppress(*LOST):  # then it delivers nothing more either
            await self._channel.basic_cancel(self._consumer, timeout=ASK_S)

    async def close(self) -> None:
        """The broker has heard every answer when it returns, and gives the rest to others."""
        try:
            async with asyncio.timeout(ASK_S):
                await self.acks.drained()
                await self._channel.close()
        except (*LOST, asyncio.CancelledError):
            only_if_lost()
        await hang_up(self._connection)


async def open_session(
    connection: aio_pika.Connection, where: str, observe: Observer, told: Callable[[int, int], None]
) -> Session:
    """Raises Failed, and leaves the connection open."""
    try:
        channel = await open_channel(connection, confirms=False)
        inner = await channel.get_underlay_channel()
    except LOST as error:
        raise failure_of(error, where) from None
    ended = asyncio.Event()
    session = Session(connection, inner, where, Acks(inner, observe, told), ended)

    def closed(_: Any, error: BaseException | None) -> None:
        session.why = session.why or error
        ended.set()

    def cancelled(_: Any) -> None:
        session.why = session.why or Failed(f"{where}: the broker has cancelled the consumer")
        ended.set()

    channel.close_callbacks.add(closed)
    connection.close_callbacks.add(closed)
    inner.on_consumer_cancel_callbacks.add(cancelled)
    return session


async def first_of(*tasks: asyncio.Future[Any], within_s: float | None = None) -> None:
    """Until one of them is done, or the time is over. The others are cancelled."""
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
