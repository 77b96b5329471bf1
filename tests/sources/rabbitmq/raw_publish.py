"""A publisher that writes what no driver would: the bytes of properties, as they are given."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote, urlsplit

import pamqp.frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection
from pamqp.header import ProtocolHeader


async def publish_raw(url: str, queue: str, body: bytes, flags: int, properties: bytes) -> None:
    """Returns when the broker has confirmed it."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 5672)

    async def read() -> object:
        start = await reader.readexactly(7)
        return pamqp.frame.unmarshal(start + await reader.readexactly(int.from_bytes(start[3:]) + 1))[2]

    async def ask(frame: pamqp.frame.FrameTypes, channel: int = 0) -> object:
        writer.write(pamqp.frame.marshal(frame, channel))
        return await read()

    assert isinstance(await ask(ProtocolHeader()), Connection.Start)
    login = f"\0{unquote(parts.username or 'guest')}\0{unquote(parts.password or 'guest')}"
    tune = await ask(Connection.StartOk(mechanism="PLAIN", response=login))
    assert isinstance(tune, Connection.Tune), tune
    writer.write(pamqp.frame.marshal(Connection.TuneOk(tune.channel_max, tune.frame_max, 0), 0))
    vhost = unquote(parts.path.removeprefix("/")) or "/"
    assert isinstance(await ask(Connection.Open(virtual_host=vhost)), Connection.OpenOk)
    assert isinstance(await ask(Channel.Open(), 1), Channel.OpenOk)
    assert isinstance(await ask(Confirm.Select(), 1), Confirm.SelectOk)
    payload = (60).to_bytes(2) + bytes(2) + len(body).to_bytes(8) + flags.to_bytes(2) + properties
    writer.write(pamqp.frame.marshal(Basic.Publish(routing_key=queue), 1))
    writer.write(b"\x02" + (1).to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce")
    confirmed = await ask(ContentBody(body), 1)
    assert isinstance(confirmed, Basic.Ack), confirmed
    await ask(Connection.Close(reply_code=200, reply_text="", class_id=0, method_id=0))
    writer.close()
    await writer.wait_closed()
