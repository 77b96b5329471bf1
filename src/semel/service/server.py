"""One server process: uvicorn with our limits, our drain and our way to end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn

from semel.service.application import Service
from semel.service.connection import Limits, connection_class, sweep
from semel.service.ending import AT_ONCE_S, HURRY, LATE_S, NOT_IN_TIME, end_after, ending_signals
from semel.settings.schema import Server as ServerSettings
from semel.values.log import log

BACKLOG = 2_048
FILES_RESERVE = 100  # open files for the ledger and its connections, brokers, the log and shared counters
CONNECTIONS_MIN = 16  # a service that accepts nobody is of no use
SWEEP_TICKS = 10  # of 0.1 s
SWITCH_S = 0.0005  # the ledger's thread and the event loop take turns: the default of 5 ms lets one wait for the other


class Server(uvicorn.Server):
    """Stops accepting on the first SIGTERM or SIGINT and lets what is under way end; the second cuts that off.

    Under a supervisor it is the one that knows a second signal, and says so in its own way: what arrives here may be
    the same one twice, from it and from whoever tells all processes of a service."""

    def __init__(self, config: uvicorn.Config, service: Service, drain_s: float, *, supervised: bool) -> None:
        super().__init__(config)
        self._service = service
        self._drain_s = drain_s
        self._supervised = supervised
        self._told = threading.Event()
        self.code = 0  # of its end: not 0 when it was cut off
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Unlike `asyncio.run`, it does not wait afterwards for tasks and threads: the drain was their time."""
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
            yield  # after a drain the process ends with 0: it did as it was told
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
        self._told.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.begin_to_drain)

    def _end_at_once(self, code: int) -> None:
        """What is under way is cut off: what can be given back is, and what was being sent is told. A third signal ends
        as a crash does: nothing that was answered is lost by it."""
        if self.code or self._loop is None:
            os._exit(code)
        self.code = code
        end_after(AT_ONCE_S, code, NOT_IN_TIME)
        self._loop.call_soon_threadsafe(self._service.hurry, lambda: end_after(0.0, code))

    def _end_in_time(self) -> None:
        """A handler that blocks the event loop, or does not let itself be cancelled, has a deadline all the same."""
        self._told.wait()
        end_after(self._drain_s + LATE_S, 1, NOT_IN_TIME)


def serve(
    service: Service,
    settings: ServerSettings,
    listening: socket.socket,
    *,
    outgoing: int = 0,
    supervised: bool = False,
) -> int:
    """Serve until a signal says to end; returns the exit code. Tasks and threads may be left: the process must end now,
    and not wait. `outgoing`: connections that the service itself may open at a time."""
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
        timeout_keep_alive=3600,  # our sweep closes idle connections
        timeout_graceful_shutdown=max(1, round(settings.drain)),
    )
    _collect_rarely()
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


def _collect_rarely() -> None:
    """What was loaded so far stays to the end, so no collection need look at it; and of a delivery hardly anything is
    part of a cycle: collections after every 700 objects would find nothing, for a tenth of our time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


def connections_allowed(wanted: int, files: int, reserve: int) -> int:
    """How many connections may be open, so that `reserve` of the open files are left. -1 files: no limit is known."""
    return wanted if files < 0 else min(wanted, max(CONNECTIONS_MIN, files - reserve))


def _allow_many_files() -> int:
    """Raise the limit of open files as far as allowed, and return it: thousands of idle connections are normal, and the
    usual limit is 1,024. -1: there is none, or nobody knows."""
    try:
        import resource
    except ImportError:
        return -1
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft
