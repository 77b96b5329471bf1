"""One server process: uvicorn with limits per connection, a drain, and an exit within a deadline."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

import httptools
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from semel.service.app import Service
from semel.settings.schema import ServerSettings
from semel.values.log import log

# `Connection` adds the limits that uvicorn does not have: headers, pipelining, time. Deadlines are numbers that a sweep
# compares once a second; a timer for each request would cost more than parsing it.

NEVER = float("inf")
URL_MAX_BYTES = 8 * 1024
SLICE_BYTES = 16 * 1024  # fed to the parser at once: it keeps incomplete elements in memory
PIPELINE_MAX = 8  # requests behind the one being answered; few clients pipeline at all


class Limits(Struct, frozen=True):
    """Limits of a connection, from [server] in the settings."""

    header_max: int
    header_count_max: int
    read_timeout_s: float
    idle_timeout_s: float
    connections_max: int


class TooLarge(Exception):
    """Raised in a callback of the parser to stop it: the request is answered 431."""


class WrongHost(Exception):
    """Raised in a callback of the parser to stop it: the request is answered 400."""


class Connection(HttpToolsProtocol):
    """Refuses requests that are too large. It has a deadline whenever it waits for the client."""

    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.idle_timeout_s
        self._write_deadline = NEVER
        self._in_headers = True
        self._unparsed_bytes = self._header_bytes = self._hosts = 0
        self._too_large = False
        if len(self.connections) > self.limits.connections_max:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        for at in range(0, len(data), SLICE_BYTES):
            if not self._feed(data[at : at + SLICE_BYTES]):
                return

    def _feed(self, data: bytes) -> bool:
        """Returns False if the data was refused and the connection is closing."""
        self._unparsed_bytes += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return False
        if self._unparsed_bytes > self.limits.header_max:  # one endless header, trailer or chunk extension
            self._too_large = True
            self.send_400_response("")
        return not self.transport.is_closing()

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The same request without `Upgrade`, to parse again, because the parser left its body unread. Java's client
        offers h2c with every request, and a server may ignore the offer. CONNECT cannot be ignored and is refused."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("Invalid HTTP request received.")
            return b""
        head = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return b"\r\n".join(head) + b"\r\n\r\n" + rest

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = self._hosts = 0
        self.deadline = self.loop.time() + self.limits.read_timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._unparsed_bytes = 0
        self._check(len(self.url) <= URL_MAX_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unparsed_bytes = 0
        self._header_bytes += len(name) + len(value)
        self._check(self._header_bytes <= self.limits.header_max)
        if not self._in_headers:
            return  # trailers are ignored
        self._check(len(self.headers) < self.limits.header_count_max)
        if len(name) == 4 and name.lower() == b"host":
            self._hosts += 1
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        if self.parser.should_upgrade():
            return
        self._in_headers = False
        # RFC 9112, 3.2: with two Host headers, a proxy may have used the other one. HTTP/1.0 has none.
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() != "1.0"):
            raise WrongHost
        if len(self.pipeline) >= PIPELINE_MAX:
            self.transport.abort()
            raise TooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.deadline = NEVER  # the application limits the time until its response

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.deadline == NEVER and self.cycle.response_complete:  # else another request is being read or answered
            self.deadline = self.loop.time() + self.limits.idle_timeout_s

    def pause_writing(self) -> None:
        """The client does not read its responses: it gets a deadline."""
        super().pause_writing()
        self._write_deadline = self.loop.time() + self.limits.idle_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_deadline = NEVER

    def close_if_late(self, now: float) -> None:
        """Abort the connection after its deadline, also while it is closing and waits for the client to read."""
        if now > min(self.deadline, self._write_deadline):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Called for refusals of the parser too: bad syntax, both Content-Length and Transfer-Encoding."""
        if self.transport.is_closing():
            return
        if not self._too_large:
            super().send_400_response(msg)
            return
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        self.transport.close()

    def _check(self, fits: bool) -> None:
        if not fits:
            self._too_large = True
            raise TooLarge


def connection_class(limits: Limits) -> type[Connection]:
    """uvicorn creates connections from a class, so the limits are part of the class."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


def sweep(connections: set[Any], now: float) -> None:
    """Close connections that are past their deadline."""
    for connection in list(connections):
        connection.close_if_late(now)


BACKLOG = 2_048
FILES_RESERVE = 100  # open files for the ledger and its connections, brokers, the log and shared counters
CONNECTIONS_MIN = 16  # even if the limit of open files is too low
SWEEP_TICKS = 10  # of 0.1 s
SWITCH_S = 0.0005  # thread switch interval: with the default of 5 ms the event loop waits for the ledger's thread


class Server(uvicorn.Server):
    """Stops accepting on the first SIGTERM or SIGINT, and drains. The second signal ends the drain.

    A supervised worker may get the first signal twice: from the supervisor, and from a service manager that signals all
    processes. So only the supervisor recognises a second signal, and forwards it as HURRY."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float, *, supervised: bool) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._supervised = supervised
        self._stop_requested = threading.Event()
        self.code = 0  # exit code; not 0 if the drain was cut off
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Unlike `asyncio.run`, this does not wait for tasks and threads afterwards: they had the drain."""
        threading.Thread(target=self._end_in_time, daemon=True, name="semel-deadline").start()
        factory = self.config.get_loop_factory()
        loop = factory() if factory is not None else asyncio.new_event_loop()
        loop.run_until_complete(self.serve(sockets))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % SWEEP_TICKS == 0:
            sweep(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = [*ending_signals(), *([HURRY] if self._supervised and HURRY is not None else [])]
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        try:
            yield  # after a drain the exit code is 0
        finally:
            if not self._supervised:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == HURRY:
            self._end_at_once(128 + signal.SIGTERM)
        elif self.should_exit and not self._supervised:
            self._end_at_once(128 + sig)
        if self.should_exit:
            return
        self.should_exit = True
        self._stop_requested.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.begin_to_drain)

    def _end_at_once(self, code: int) -> None:
        """End the drain: return unfinished work and record unfinished sends. A third signal exits like a crash, which
        loses nothing that was answered."""
        if self.code or self._loop is None:
            os._exit(code)
        self.code = code
        end_after(AT_ONCE_S, code, NOT_IN_TIME)
        self._loop.call_soon_threadsafe(self._service.stop_now, lambda: end_after(0.0, code))

    def _end_in_time(self) -> None:
        """Enforce the deadline even if a handler blocks the event loop or ignores its cancellation."""
        self._stop_requested.wait()
        end_after(self._drain_s + LATE_S, 1, NOT_IN_TIME)


def serve(
    service: Service,
    settings: ServerSettings,
    listening: socket.socket,
    *,
    outgoing: int = 0,
    supervised: bool = False,
) -> int:
    """Serve until a signal, and return the exit code. Tasks and threads may be left: the process must exit without
    waiting for them. `outgoing`: the number of connections that the service itself may open."""
    files = _allow_many_files()
    connections_max = connections_allowed(settings.connections_max, files, FILES_RESERVE + outgoing)
    if connections_max < settings.connections_max:
        log.warning(
            "connections_limited",
            connections_max=connections_max,
            configured=settings.connections_max,
            open_files=files,
            detail="raise the limit of open files (ulimit -n, LimitNOFILE=), or set a lower connections_max",
        )
    sys.setswitchinterval(SWITCH_S)
    limits = Limits(
        header_max=settings.header_max,
        header_count_max=settings.header_count_max,
        read_timeout_s=settings.read_timeout,
        idle_timeout_s=settings.idle_timeout,
        connections_max=connections_max,
    )
    config = uvicorn.Config(
        service,
        http=connection_class(limits),
        ws="none",
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        lifespan="on",
        backlog=BACKLOG,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=3600,  # `sweep` closes idle connections
        timeout_graceful_shutdown=max(1, round(settings.drain)),
    )
    # Loaded modules are excluded from garbage collection. A delivery creates hardly any cycles, and collections after
    # every 700 objects would cost a tenth of the time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    server = Server(config, service, settings.drain, supervised=supervised)
    server.run(sockets=[listening])
    return server.code


def listen(host: str, port: int) -> socket.socket:
    """The socket that all workers share. Raises OSError."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, proto)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.set_inheritable(True)
    except OSError:
        listening.close()
        raise
    return listening


def connections_allowed(wanted: int, files: int, reserve: int) -> int:
    """The number of connections that leaves `reserve` open files. `files` is -1 if there is no known limit."""
    return wanted if files < 0 else min(wanted, max(CONNECTIONS_MIN, files - reserve))


def _allow_many_files() -> int:
    """Raise the limit of open files as far as allowed, and return it: thousands of idle connections are normal, and the
    usual limit is 1,024. Returns -1 if there is no known limit."""
    try:
        import resource
    except ImportError:
        return -1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft


# The first signal starts a drain, and the second ends it. Each has a deadline, after which the process exits.

LATE_S = 5.0  # beyond the drain: then the process exits
LOG_S = 1.0  # for the log line about that: the reader of the log may be what hangs
NOT_IN_TIME = "drain_timed_out"
HURRY = getattr(signal, "SIGUSR1", None)  # from a supervisor to its workers: end the drain (not on Windows)
AT_ONCE_S = 3.0  # to return and record unfinished work after a second signal


def ending_signals() -> list[signal.Signals]:
    """The signals that end this process. SIGHUP (a closed terminal) is one, unless the parent ignores it (nohup)."""
    signals = [signal.SIGTERM, signal.SIGINT]
    hang_up = getattr(signal, "SIGHUP", None)  # not on Windows
    if hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN:
        signals.append(hang_up)
    return signals


def end_after(seconds: float, code: int, event: str = "") -> None:
    """Exit after this time, even if the event loop is stuck. `event` is logged first."""

    def end() -> None:
        time.sleep(seconds)
        if event:
            logging = threading.Thread(target=log.error, args=(event,), daemon=True)
            logging.start()
            logging.join(LOG_S)
        os._exit(code)

    threading.Thread(target=end, daemon=True, name="semel-deadline").start()


class Ending:
    """Handles ending signals for a process without an HTTP server, on the running loop."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._gently = asyncio.Event()
        self._at_once = asyncio.Event()
        self.number = 0  # of the first signal; 0: none yet
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, partial(self._on_signal, number))

    @property
    def is_at_once(self) -> bool:
        return self._at_once.is_set()

    async def told(self) -> None:
        """Wait for the first signal."""
        await self._gently.wait()

    async def end(self, stop: Callable[[float], Awaitable[None]]) -> None:
        """Call `stop` with the time of the drain. After a second signal, call it again with 0."""
        ending, hurried = asyncio.ensure_future(stop(self._drain_s)), asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((ending, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not ending.done():
            ending.cancel()
            await asyncio.wait([ending])
            ending = asyncio.ensure_future(stop(0.0))
        await ending

    def _on_signal(self, number: int) -> None:
        if self._at_once.is_set():
            os._exit(128 + number)  # like a crash, which loses nothing that was answered
        if self._gently.is_set():
            end_after(AT_ONCE_S, 128 + number, NOT_IN_TIME)
            self._at_once.set()
            return
        log.info("drain_started", deadline_s=self._drain_s)
        self.number = number
        end_after(self._drain_s + LATE_S, 1, NOT_IN_TIME)
        self._gently.set()
