"""A bad network on purpose: a TCP proxy on loopback whose faults are switched while connections run through it.

    with FaultProxy("127.0.0.1", 5432) as proxy:
        app = Semel(proxy.url("postgresql://me@127.0.0.1:5432/db"))
        with proxy.fault(Fault(latency_ms=200, slice_bytes=7)):
            ...                             # a slow link
        proxy.lose("reply")                 # the store acts on the next request, and nobody hears of it
        assert proxy.seen.lost_replies      # a fault that did not land has proven nothing

The proxy knows no protocol. What a client says until the server speaks is a request; what the server says until the
client speaks again is its reply.
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
CALL_S = 30.0  # no call to the proxy's own thread takes longer
RST_ON_CLOSE = struct.pack("ii", 1, 0)  # linger for 0 s: close throws away what is unsent, and resets


@dataclass(frozen=True)
class Fault:
    """The behaviour of the network. What is held travels on when the fault is over, as after a partition; what is
    swallowed
    is gone, and that way of its connection stays dead, because TCP has no gaps."""

    latency_ms: int = 0  # before each chunk, both ways
    slice_bytes: int = 0  # each chunk in pieces of this size; 0: as it comes
    requests: Passing = "pass"
    replies: Passing = "pass"
    refuse: bool = False  # nobody listens
    reset_new: bool = False  # somebody accepts, and hangs up rudely

    def passing(self, way: Way) -> Passing:
        return self.requests if way == "request" else self.replies


HEALTHY = Fault()
BLACK_HOLE = Fault(requests="swallow", replies="swallow")  # connections open, and are silent for ever
PARTITION = Fault(requests="hold", replies="hold")  # the same, until it ends
DEAF = Fault(replies="swallow")  # half-open: the server hears and acts, its answers go nowhere


@dataclass
class Seen:
    """Counters of the faults so far. Each number only grows."""

    connections: int = 0
    unreachable: int = 0  # connections that the server did not take
    resets: int = 0  # connections of clients that were reset on purpose
    request_bytes: int = 0  # that reached the server
    reply_bytes: int = 0
    pieces: int = 0  # written as slices
    delayed: int = 0  # chunks
    held: int = 0
    swallowed: int = 0
    lost_requests: int = 0
    lost_replies: int = 0


@dataclass
class _Loss:
    """One message that is not to arrive."""

    what: Way
    left: int  # messages until it is the one
    then: Then


@dataclass(eq=False)
class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    turn: Way = "reply"  # who spoke last
    dead: set[Way] = field(default_factory=set)  # ways on which something was swallowed

    def towards(self, way: Way) -> asyncio.StreamWriter:
        return self.server if way == "request" else self.client

    def reset(self) -> None:
        """Both ends get a RST, also for what is still on its way."""
        for end in (self.client, self.server):
            _reset(end)


class FaultProxy:
    """Stands before one server, on a port of its own that stays the same through all faults."""

    def __init__(self, host: str, port: int) -> None:
        self.seen = Seen()
        self._server_at = (host, port)
        self._fault = HEALTHY
        self._loss: _Loss | None = None
        self._reset_at: int | None = None  # bytes until a connection is reset
        self._links: set[_Link] = set()
        # It never listens: it keeps the port while nobody may connect to it.
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
        """The same URL, by way of the proxy."""
        parts = urlsplit(original)
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}").geturl()

    # -------------------------------------------------------------------------------------------------- switching

    def set(self, fault: Fault) -> None:
        """From now on, for connections that there are and for new ones."""
        self._call(self._set(fault))

    def heal(self) -> None:
        """A good network again. Lost bytes stay lost."""
        self.set(HEALTHY)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[Seen]:
        """For the length of a block. Gives what had been seen before."""
        before = Seen(**vars(self.seen))
        self.set(fault)
        try:
            yield before
        finally:
            self.heal()

    def leads_to(self, host: str, port: int) -> None:
        """New connections go to another server from now on, as after a failover. Old ones stay where they are."""
        self._do(lambda: setattr(self, "_server_at", (host, port)))

    def reset(self) -> int:
        """Reset every connection now. Returns how many there were."""
        return self._call(self._reset_all())

    def reset_after(self, count: int) -> None:
        """Reset the connection that carries the `count`-th byte from now, either way, in the middle of a message."""
        assert count > 0
        self._do(lambda: setattr(self, "_reset_at", count))

    def lose(self, what: Way, nth: int = 1, then: Then = "reset") -> None:
        """Lose one message: the `nth` request or reply from now, on whichever connection. A lost request does not reach
        the server; a lost reply was sent by a server that has acted. Its connection is reset, or silent for ever."""
        assert nth > 0
        self._do(lambda: setattr(self, "_loss", _Loss(what, nth, then)))

    def disarm(self) -> bool:
        """Cancel the planned losses. True: it has not been lost yet."""
        armed = self._loss is not None or self._reset_at is not None
        self._do(self._forget)
        return armed

    @property
    def open(self) -> int:
        """Connections there are now."""
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
        """Accept all waiting connections. Not asyncio's server: closed in the wrong moment, it leaves some hanging."""
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
            self._accept(self._listener)  # whoever was let in before is in
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
        """One way of one connection, until either end closes it."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self._carry(link, way, data)
        await self._wait_while(lambda: self._fault.passing(way) != "pass")  # a goodbye does not get through either
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
        """Whether this is the message that must not arrive. Called once for each chunk."""
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
    """A socket that may share its port with others of ours that do not listen."""
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
