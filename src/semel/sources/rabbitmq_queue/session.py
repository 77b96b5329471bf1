"""Connections to RabbitMQ: error classification, and one session of consuming with its acknowledgements.

Semel reconnects itself instead of using the driver's robust connection. That one restores a consumer at a fixed
interval without telling the caller, although delivery tags are valid only on their own channel. Here every connection
is a separate session, and its unanswered deliveries end with it.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any

import aio_pika
import pamqp.frame
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from aiormq.abc import AbstractChannel as RawChannel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from semel.ports import Fact
from semel.sources.lifecycle import Observer
from semel.sources.rabbitmq_queue.options import display_url, driver_url

UNREADABLE = "semel.unreadable"  # header that replaces unreadable properties, with the reason
HEADER_FRAME = 2
FRAME_START = 7  # bytes: type, channel, size
SIZES = 12  # bytes of a content header before its properties: class, weight, body size


class ExplicitConnection(aio_pika.Connection):
    """Connection that only `close_connection` closes.

    The driver closes a garbage-collected connection, for example one that never connected. In a thread without an event
    loop that leaves a coroutine that is never awaited. Nothing needs closing then: the transport is gone.
    """

    def __del__(self) -> None: ...


class TolerantConnection(ExplicitConnection):
    """Connection that survives messages whose properties the driver cannot read.

    A header in Latin-1 or a time in microseconds makes the driver drop the connection. The broker then redelivers the
    message, and so on forever: every message behind it would wait. After a connection was lost that way, the next one
    is tolerant: it replaces unreadable properties with a header that gives the reason. The body, the queue and the
    routing key stay. It parses each header twice, so it is not the default.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kwargs["transport_factory"] = _TolerantTransport()


class _TolerantTransport(TransportFactory):
    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inner = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await inner.create(url, **options)
        return TolerantReader(reader), writer  # type: ignore[return-value] # has every method that the driver uses


class TolerantReader:
    """Stream reader that passes on complete frames, one at a time."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._frame = b""

    def at_eof(self) -> bool:
        return not self._frame and self._reader.at_eof()

    async def read(self, count: int = -1) -> bytes:
        return await self._reader.read(count)

    async def readexactly(self, count: int) -> bytes:
        if not self._frame:
            start = await self._reader.readexactly(FRAME_START)
            _, _, size = struct.unpack(">BHI", start)
            self._frame = readable_frame(start + await self._reader.readexactly(size + 1))
        chunk, self._frame = self._frame[:count], self._frame[count:]
        return chunk


def readable_frame(frame: bytes) -> bytes:
    """Return the frame, with its properties replaced if the driver cannot read them."""
    if frame[0] != HEADER_FRAME:
        return frame
    try:
        pamqp.frame.unmarshal(frame)
    except Exception as error:
        _, channel, _ = struct.unpack(">BHI", frame[:FRAME_START])
        _, _, size = struct.unpack(">HHQ", frame[FRAME_START : FRAME_START + SIZES])
        reason = f"its properties cannot be read: {error}"[:300].encode("ascii", "replace").decode()
        properties = Basic.Properties(headers={UNREADABLE: reason})
        return pamqp.frame.marshal(ContentHeader(body_size=size, properties=properties), channel)
    return frame


CONNECT_S = 15.0
ASK_S = 15.0  # for one request such as a declaration; a leader election in the broker takes some seconds
CLOSE_S = 5.0

CONNECTION_LOST = (*CONNECTION_EXCEPTIONS, TimeoutError)
"""Errors of the driver for a connection or a channel that is not usable."""


def doctor_fact(name: str, failure: RabbitError) -> Fact:
    """Fact for `semel doctor`. "out of reach" marks a failure that can be over soon; Semel starts despite it."""
    return Fact(name, str(failure) if failure.definite else f"out of reach: {failure}", "error")


class RabbitError(Exception):
    """A request that failed. `definite`: only an operator can fix it. `missing`: the queue does not exist."""

    def __init__(self, text: str, *, definite: bool = False, missing: bool = False) -> None:
        super().__init__(text)
        self.definite = definite
        self.missing = missing


async def connect(url: str, name: str, *, tolerant: bool = False) -> aio_pika.Connection:
    """Open a connection. Raises RabbitError."""
    connection_class = TolerantConnection if tolerant else ExplicitConnection
    try:
        return await aio_pika.connect(driver_url(url, name), timeout=CONNECT_S, connection_class=connection_class)
    except CONNECTION_LOST as error:
        raise rabbit_error(error, display_url(url)) from None
    except ValueError as error:  # an invalid option or certificate
        raise RabbitError(f"{display_url(url)}: {error}", definite=True) from None


async def open_channel(connection: aio_pika.Connection, *, confirms: bool) -> AbstractChannel:
    """Open a channel. Raises an error of CONNECTION_LOST."""
    channel = connection.channel(publisher_confirms=confirms, on_return_raises=confirms)
    async with asyncio.timeout(ASK_S):
        await channel.initialize()
    return channel


async def close_connection(connection: Any) -> None:
    """Close a connection in any state."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await connection.close()
    except (*CONNECTION_LOST, asyncio.CancelledError):
        reraise_own_cancellation()


def reraise_own_cancellation() -> None:
    """Raise CancelledError again if this task itself was cancelled.

    The driver also raises CancelledError in every task that waits on a channel that it closes.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def rabbit_error(error: BaseException, where: str) -> RabbitError:
    """Classify an error of the driver. The text contains no secret."""
    match error:
        case ProbableAuthenticationError() | AuthenticationError():
            return RabbitError(f"{where}: the broker refused the user or the password", definite=True)
        case InvalidFrameError() if "Connection.Close" in str(error):  # the driver drops the broker's reason
            text = "the broker closed the connection: the vhost may not exist, or this user has no access to it"
            return RabbitError(f"{where}: {text}", definite=True)
        case ChannelNotFoundEntity():
            return RabbitError(f"{where}: {_error_text(error)}", definite=True, missing=True)
        case ChannelPreconditionFailed():
            return RabbitError(f"{where}: {_error_text(error)}", definite=True)
        case ChannelClosed() if "ACCESS_REFUSED" in str(error):
            return RabbitError(f"{where}: {_error_text(error)}", definite=True)
        case TimeoutError():
            return RabbitError(f"{where}: no answer in time")
        case RabbitError():
            return error
    if not isinstance(error, CONNECTION_LOST):  # a bug, or a cancellation without a reason from the driver
        return RabbitError(f"{where}: {type(error).__name__} in the driver")
    causes = [error, error.__cause__]
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return RabbitError(f"{where}: the certificate cannot be verified: {_error_text(error)}", definite=True)
    if any(isinstance(cause, FileNotFoundError | PermissionError) for cause in causes):
        return RabbitError(f"{where}: {_error_text(error)}", definite=True)  # about a file for TLS
    return RabbitError(f"{where}: {_error_text(error)}")


def _error_text(error: BaseException) -> str:
    text = " ".join(str(part) for part in error.args if part not in (None, "")) or type(error).__name__
    return text[:300]


class RabbitSession:
    """One connection with one channel. It calls `deliver` for each message until `ended` is set."""

    def __init__(
        self, connection: aio_pika.Connection, channel: RawChannel, where: str, acks: AckBatcher, ended: asyncio.Event
    ) -> None:
        self.acks = acks
        self.ended = ended  # the channel is closed, or the broker has cancelled the consumer
        self.error: BaseException | None = None
        self._connection = connection
        self._channel = channel
        self._where = where
        self._consumer = ""

    @property
    def is_open(self) -> bool:
        return not self._channel.is_closed

    @property
    def was_unreadable(self) -> bool:
        """True if the session ended because the driver could not parse a message."""
        return isinstance(self.error, InvalidFrameError | RecursionError | UnicodeError)

    async def consume(self, queue: str, prefetch: int, deliver: Callable[[RabbitSession, Any], None]) -> None:
        """Start consuming. Raises RabbitError."""

        async def delivered(received: Any) -> None:
            deliver(self, received)

        try:
            await self._channel.basic_qos(prefetch_count=prefetch, timeout=ASK_S)
            answer = await self._channel.basic_consume(queue, delivered, timeout=ASK_S)
        except CONNECTION_LOST as error:
            raise rabbit_error(error, self._where) from None
        self._consumer = answer.consumer_tag or ""

    async def cancel(self) -> None:
        """Stop the deliveries. Messages in flight can still be answered."""
        with suppress(*CONNECTION_LOST):  # a lost connection delivers nothing either
            await self._channel.basic_cancel(self._consumer, timeout=ASK_S)

    async def close(self) -> None:
        """Send every answer and disconnect. The broker redelivers unanswered messages to other consumers."""
        try:
            async with asyncio.timeout(ASK_S):
                await self.acks.drained()
                await self._channel.close()
        except (*CONNECTION_LOST, asyncio.CancelledError):
            reraise_own_cancellation()
        await close_connection(self._connection)


async def open_session(
    connection: aio_pika.Connection, where: str, observe: Observer, count_answers: Callable[[int, int], None]
) -> RabbitSession:
    """Open a session. Raises RabbitError, and leaves the connection open."""
    try:
        channel = await open_channel(connection, confirms=False)
        inner = await channel.get_underlay_channel()
    except CONNECTION_LOST as error:
        raise rabbit_error(error, where) from None
    ended = asyncio.Event()
    session = RabbitSession(connection, inner, where, AckBatcher(inner, observe, count_answers), ended)

    def closed(_: Any, error: BaseException | None) -> None:
        session.error = session.error or error
        ended.set()

    def cancelled(_: Any) -> None:
        session.error = session.error or RabbitError(f"{where}: the broker has cancelled the consumer")
        ended.set()

    channel.close_callbacks.add(closed)
    connection.close_callbacks.add(closed)
    inner.on_consumer_cancel_callbacks.add(cancelled)
    return session


async def wait_first(*tasks: asyncio.Future[Any], within_s: float | None = None) -> None:
    """Wait until one task is done or the time is over, and cancel the others."""
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class RabbitStep(StrEnum):
    """Steps between which a consumer can die, in the order of the flow. The engine runs after AFTER_RECEIVE."""

    AFTER_RECEIVE = "after_receive"
    BEFORE_WAIT = "before_wait"
    AFTER_WAIT = "after_wait"  # both the waiting copy and its original exist
    BEFORE_DEAD_LETTER = "before_letter"
    AFTER_DEAD_LETTER = "after_letter"  # and before its message is acknowledged
    BEFORE_BROKER_ACK = "before_broker_ack"
    AFTER_BROKER_ACK = "after_broker_ack"


class AckBatcher:
    """Sends the acknowledgements of one channel in as few frames as possible.

    Tags that are added while frames are being sent form the next batch. If every delivery up to a tag is answered, one
    frame acknowledges all of them; a tag that was answered out of order gets its own frame. `ack` and `return_message`
    do not wait. On a closed channel the answers are dropped: the broker redelivers the messages.
    """

    def __init__(self, channel: RawChannel, observe: Observer, count_answers: Callable[[int, int], None]) -> None:
        """`count_answers` gets the numbers of acknowledged and returned messages."""
        self._channel = channel
        self._observe = observe
        self._count_answers = count_answers
        self._acked: list[int] = []
        self._returned: list[int] = []
        self._floor = 0  # every delivery up to this tag is answered
        self._above: set[int] = set()  # answered tags beyond it
        self._sending_task: asyncio.Task[None] | None = None

    def ack(self, tag: int) -> None:
        self._acked.append(tag)
        self._send_soon()

    def return_message(self, tag: int) -> None:
        """Return a message to the front of its queue."""
        self._returned.append(tag)
        self._send_soon()

    async def drained(self) -> None:
        while self._sending_task is not None:
            await asyncio.wait([self._sending_task])

    def _send_soon(self) -> None:
        if self._sending_task is None:
            self._sending_task = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._acked or self._returned:
                acked, self._acked = self._acked, []
                returned, self._returned = self._returned, []
                with suppress(*CONNECTION_LOST):
                    await self._send(acked, returned)
        finally:
            self._sending_task = None

    async def _send(self, acked: list[int], returned: list[int]) -> None:
        for tag in returned:
            await self._channel.basic_nack(tag, requeue=True, wait=False)
        self._above.update(returned)
        if acked:
            self._observe(RabbitStep.BEFORE_BROKER_ACK)
        for tag, multiple in self._frames(acked):
            await self._channel.basic_ack(tag, multiple=multiple, wait=False)
        if acked:
            self._observe(RabbitStep.AFTER_BROKER_ACK)
        self._count_answers(len(acked), len(returned))

    def _frames(self, acked: list[int]) -> list[tuple[int, bool]]:
        """Return the tags to send, each with its `multiple` flag. The broker accepts only unanswered tags."""
        self._above.update(acked)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        below = [tag for tag in acked if tag <= self._floor]
        single = [(tag, False) for tag in acked if tag > self._floor]
        return [(max(below), True), *single] if below else single
