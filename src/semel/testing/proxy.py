"""A TCP proxy on loopback that injects network faults into running connections.

    with FaultProxy("127.0.0.1", 5432) as proxy:
        app = Semel(proxy.url("postgresql://me@127.0.0.1:5432/db"))
        with proxy.fault(Fault(latency_ms=200, slice_bytes=7)):
            ...                             # a slow link
        proxy.lose("reply")                 # the store executes the next request, but its reply is lost
        assert proxy.seen.lost_replies      # a fault that did not land proves nothing

The proxy parses no protocol. A request is everything that a client sends until the server sends data. A reply is
everything that the server sends until the client sends data again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")
Way: TypeAlias = Literal["request", "reply"]
Passing: TypeAlias = Literal["pass", "hold", "swallow"]
Then: TypeAlias = Literal["reset", "silence"]

CHUNK = 64 * 1024
BACKLOG = 128
CALL_S = 30.0  # the limit for a call to the proxy's thread
RST_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for 0 s: close discards unsent data and sends a RST


@dataclass(frozen=True)
class Fault:
    """The behaviour of the network. Held data is forwarded when the fault ends, as after a partition. Swallowed data is
    lost, and that direction of its connection stays dead, because TCP has no gaps."""

    latency_ms: int = 0  # before each chunk, in both directions
    slice_bytes: int = 0  # splits each chunk into pieces of this size; 0: no splitting
    requests: Passing = "pass"
    replies: Passing = "pass"
    refuse: bool = False  # connections are refused
    reset_new: bool = False  # new connections are accepted and then reset

    def passing(self, way: Way) -> Passing:
        return self.requests if way == "request" else self.replies


HEALTHY = Fault()
BLACK_HOLE = Fault(requests="swallow", replies="swallow")  # connections open and stay silent
PARTITION = Fault(requests="hold", replies="hold")  # the same, until the fault ends
DEAF = Fault(replies="swallow")  # half-open: requests arrive, replies are lost


@dataclass
class Seen:
    """Counters of the traffic and of the faults that landed."""

    connections: int = 0
    unreachable: int = 0  # connections that the server refused
    resets: int = 0  # client connections that the proxy reset
    request_bytes: int = 0  # forwarded to the server
    reply_bytes: int = 0
    pieces: int = 0  # written as slices
    delayed: int = 0  # chunks
    held: int = 0
    swallowed: int = 0
    lost_requests: int = 0
    lost_replies: int = 0


@dataclass
class _Loss:
    """One message that the proxy drops."""

    what: Way
    left: int  # messages until the one to drop
    then: Then


@dataclass(eq=False)
class _Link:
    """The connection of a client, and its connection to the server."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    turn: Way = "reply"  # the direction of the last data
    dead: set[Way] = field(default_factory=set)  # directions in which data was swallowed

    def towards(self, way: Way) -> asyncio.StreamWriter:
        return self.server if way == "request" else self.client

    def reset(self) -> None:
        """Send a RST to both ends and discard data in transit."""
        for end in (self.client, self.server):
            _reset(end)


class FaultProxy:
    """A proxy for one server. Its port stays the same through all faults."""

    def __init__(self, host: str, port: int) -> None:
        self.seen = Seen()
        self._server_at = (host, port)
        self._fault = HEALTHY
        self._loss: _Loss | None = None
        self._reset_at: int | None = None  # bytes until a connection is reset
        self._links: set[_Link] = set()
        # This socket never listens. It reserves the port while connections are refused.
        self._place = _bound(0)
        self.port = int(self._place.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()  # another one for each change

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._call(self._set(HEALTHY))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()
        self._place.close()

    def url(self, original: str) -> str:
        """The URL with the address of the proxy."""
        parts = urlsplit(original)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    # -------------------------------------------------------------------------------------------------- switching

    def set(self, fault: Fault) -> None:
        """Apply a fault to existing and new connections."""
        self._call(self._set(fault))

    def heal(self) -> None:
        """End the fault. Lost bytes stay lost."""
        self.set(HEALTHY)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[Seen]:
        """Apply a fault during a block. Yields the counters from before the block."""
        before = Seen(**vars(self.seen))
        self.set(fault)
        try:
            yield before
        finally:
            self.heal()

    def leads_to(self, host: str, port: int) -> None:
        """Send new connections to another server, as after a failover. Existing connections stay."""
        self._do(lambda: setattr(self, "_server_at", (host, port)))

    def reset(self) -> int:
        """Reset every connection. Returns their number."""
        return self._call(self._reset_all())

    def reset_after(self, count: int) -> None:
        """Reset a connection in the middle of a message: the one with the `count`-th byte from now, in either
        direction."""
        assert count > 0
        self._do(lambda: setattr(self, "_reset_at", count))

    def lose(self, what: Way, nth: int = 1, then: Then = "reset") -> None:
        """Lose one message: the `nth` request or reply from now, on any connection. A lost request does not reach the
        server. A lost reply belongs to a request that the server executed. The connection is reset or stays silent."""
        assert nth > 0
        self._do(lambda: setattr(self, "_loss", _Loss(what, nth, then)))

    def disarm(self) -> bool:
        """Cancel the planned loss and reset. Returns True if one of them was still pending."""
        armed = self._loss is not None or self._reset_at is not None
        self._do(self._forget)
        return armed

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._links)

    # ------------------------------------------------------------------------------------------------- its thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def _do(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        self._call(run())

    def _forget(self) -> None:
        self._loss = self._reset_at = None

    async def _set(self, fault: Fault) -> None:
        self._fault = fault
        self._changed.set()
        self._changed = asyncio.Event()
        if fault.refuse:
            self._stop_listening()
        elif self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(BACKLOG)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept all waiting connections. An asyncio server may leave some of them hanging when it is closed."""
        with suppress(BlockingIOError, ConnectionError):
            while True:
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                serving = self._loop.create_task(self._serve(accepted))
                self._serving.add(serving)
                serving.add_done_callback(self._serving.discard)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._accept(self._listener)  # connections that completed before stay open
            self._listener.close()
            self._listener = None

    async def _reset_all(self) -> int:
        links = list(self._links)
        for link in links:
            self._reset(link)
        return len(links)

    def _reset(self, link: _Link) -> None:
        link.reset()
        self.seen.resets += 1
        self._links.discard(link)

    async def _close(self) -> None:
        self._stop_listening()
        await asyncio.sleep(0)
        await self._reset_all()
        for serving in self._serving:
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    # ------------------------------------------------------------------------------------------------ the traffic

    async def _serve(self, accepted: socket.socket) -> None:
        self.seen.connections += 1
        from_client, client = await asyncio.open_connection(sock=accepted)
        try:
            if self._fault.reset_new:
                self.seen.resets += 1
                _reset(client)
            else:
                await self._connect(from_client, client)
        finally:
            _end(client)

    async def _connect(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_server, server = await asyncio.open_connection(*self._server_at)
        except OSError:
            self.seen.unreachable += 1
            _reset(client)
            return
        link = _Link(client, server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._pump(link, "request", from_client))
                ways.create_task(self._pump(link, "reply", from_server))
        finally:
            self._links.discard(link)
            _end(server)

    async def _pump(self, link: _Link, way: Way, reader: asyncio.StreamReader) -> None:
        """Forward one direction of a connection until either end closes it."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._carry(link, way, data)
        await self._wait_while(lambda: self._fault.passing(way) != "pass")  # the end of the stream is held back too
        _end(link.towards(way))

    async def _carry(self, link: _Link, way: Way, data: bytes) -> None:
        if self._is_lost(link, way):
            return
        if self._fault.latency_ms:
            self.seen.delayed += 1
            await asyncio.sleep(self._fault.latency_ms / 1000)
        if self._fault.passing(way) == "hold":
            self.seen.held += 1
            await self._wait_while(lambda: self._fault.passing(way) == "hold")
        if way in link.dead or self._fault.passing(way) == "swallow":
            link.dead.add(way)
            self.seen.swallowed += 1
            return
        for piece in self._pieces(data):
            await self._write(link, way, piece)

    async def _write(self, link: _Link, way: Way, data: bytes) -> None:
        cut = self._reset_at is not None and self._reset_at <= len(data)
        data = data[: self._reset_at] if cut else data
        if self._reset_at is not None:
            self._reset_at = None if cut else self._reset_at - len(data)
        end = link.towards(way)
        end.write(data)
        await end.drain()
        if way == "request":
            self.seen.request_bytes += len(data)
        else:
            self.seen.reply_bytes += len(data)
        if cut:
            self._reset(link)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        size = self._fault.slice_bytes
        if not size:
            yield data
            return
        for start in range(0, len(data), size):
            self.seen.pieces += 1
            yield data[start : start + size]

    def _is_lost(self, link: _Link, way: Way) -> bool:
        """Whether to drop this chunk, because it starts the message to lose. Called once for each chunk."""
        begins, link.turn = link.turn != way, way
        loss = self._loss
        if loss is None or loss.what != way or not begins:
            return False
        loss.left -= 1
        if loss.left:
            return False
        self._loss = None
        if way == "request":
            self.seen.lost_requests += 1
        else:
            self.seen.lost_replies += 1
        if loss.then == "reset":
            self._reset(link)
        else:
            link.dead |= {"request", "reply"}
        return True

    async def _wait_while(self, true: Callable[[], bool]) -> None:
        while true():
            await self._changed.wait()


def _bound(port: int) -> socket.socket:
    """A socket that can share its port with other sockets of the proxy that do not listen."""
    place = socket.socket()
    place.setblocking(False)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    place.bind(("127.0.0.1", port))
    return place


def _reset(end: asyncio.StreamWriter) -> None:
    raw: socket.socket | None = end.get_extra_info("socket")
    if raw is not None and raw.fileno() != -1:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
    end.transport.abort()


def _end(end: asyncio.StreamWriter) -> None:
    if not end.is_closing():
        end.close()
