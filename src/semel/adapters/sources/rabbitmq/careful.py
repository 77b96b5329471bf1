"""A connection that survives messages which the driver cannot read.

A header in Latin-1 or a time in microseconds makes the driver drop the connection, the broker delivers the message
again, and so on for ever: everything behind it would wait. When a connection was lost that way, the next one is opened
here: what the driver cannot read of a message is replaced before it sees it, by a note that says so. The body, the
queue and the routing key are as they were. It costs a second reading of each header, so it is not the usual way.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import aio_pika
import pamqp.frame
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from pamqp.commands import Basic
from pamqp.header import ContentHeader

UNREADABLE = "semel.unreadable"  # the header of the note
HEADER_FRAME = 2
FRAME_START = 7  # bytes: type, channel, size
SIZES = 12  # bytes of a content header before its properties: class, weight, body size


class CarefulConnection(aio_pika.Connection):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kwargs["transport_factory"] = _CarefulTransport()


class _CarefulTransport(TransportFactory):
    async def create(self, url: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        inner = TLSTransportFactory() if url.scheme == "amqps" else TCPTransportFactory()
        reader, writer = await inner.create(url, **options)
        return CarefulReader(reader), writer  # type: ignore[return-value] # all of it that the driver uses


class CarefulReader:
    """Frame by frame, and whole ones only."""

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
            self._frame = readable(start + await self._reader.readexactly(size + 1))
        some, self._frame = self._frame[:count], self._frame[count:]
        return some


def readable(frame: bytes) -> bytes:
    """The frame as it is, or what the driver can read of it."""
    if frame[0] != HEADER_FRAME:
        return frame
    try:
        pamqp.frame.unmarshal(frame)
    except Exception as error:
        _, channel, _ = struct.unpack(">BHI", frame[:FRAME_START])
        _, _, size = struct.unpack(">HHQ", frame[FRAME_START : FRAME_START + SIZES])
        why = f"its properties cannot be read: {error}"[:300].encode("ascii", "replace").decode()
        note = Basic.Properties(headers={UNREADABLE: why})
        return pamqp.frame.marshal(ContentHeader(body_size=size, properties=note), channel)
    return frame
