"""One server process: uvicorn with our limits, our drain and our way to end."""

from __future__ import annotations

import asyncio
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
from semel.settings.schema import Server as ServerSettings

BACKLOG = 2_048
SWEEP_TICKS = 10  # of 0.1 s
SWITCH_S = 0.0005  # the ledger's thread and the event loop take turns: the default of 5 ms lets one wait for the other


class Server(uvicorn.Server):
    """Stops accepting on the first SIGTERM or SIGINT and lets what is under way end; the second ends at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None

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
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield  # after a drain the process ends with 0: it did as it was told
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            os._exit(128 + sig)  # as a crash: nothing that was answered is lost by it
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.begin_to_drain)


def serve(service: Service, settings: ServerSettings, listening: socket.socket) -> None:
    """Serve until a signal says to end."""
    _allow_many_files()
    sys.setswitchinterval(SWITCH_S)
    limits = Limits(
        header_max=settings.header_max,
        header_count_max=settings.header_count_max,
        read_timeout_s=settings.read_timeout,
        idle_timeout_s=settings.idle_timeout,
        connections_max=settings.connections_max,
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
    Server(config, service).run(sockets=[listening])


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


def _allow_many_files() -> None:
    """Thousands of idle connections are normal; the usual soft limit is 1,024."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
