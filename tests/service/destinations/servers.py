"""Real servers on loopback, and destinations that lead to them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from aiohttp import web
from msgspec import Struct

from semel.core.breaker import Breaker, RetryBudget
from semel.destinations import Destination, Forward
from semel.values.event import Event
from semel.values.outcome import NotNow, Reject, Retry

T = TypeVar("T")
PATIENCE_S = 30.0  # a noisy machine; no test waits for it when all is well

_numbers = itertools.count()


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


class Ctx(Struct, frozen=True):
    """What a forward needs of a handler's context."""

    key: str = "00112233445566778899aabbccddeeff"
    attempt: int = 1

    def check(self) -> None:
        """The lease lasts."""


class Clock:
    """Seconds that only tests move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


EVENT = Event(raw=b'{"id":"a","data":{"n": 1, "text":"h\xc3\xa9"}}', type="interaction.created")


def destination(url: str, **options: Any) -> Destination:
    """One that may call loopback, with a breaker that a few failures do not open."""
    clock = options.get("clock", time.monotonic)
    failures, open_s = options.pop("breaker_failures", 1_000), options.pop("breaker_open_s", 60.0)
    breaker = Breaker(failures, open_s, clock=clock, random=lambda: 0.0, probe_s=options.pop("probe_s", 30.0))
    budget = RetryBudget(options.pop("retry_budget", 0.2), clock=clock, reserve=options.pop("reserve", 10.0))
    made = {"allow": ["127.0.0.1"], "random": lambda: 0.5, "timeout_s": PATIENCE_S, **options}
    return Destination(made.pop("name", "crm"), url, breaker=breaker, budget=budget, **made)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Destination]:
    made = destination(url, **options)
    try:
        yield made
    finally:
        await made.close()


async def outcome_of(forward: Forward, event: Event = EVENT, ctx: Ctx | None = None) -> Any:
    """What a run came to, as a value."""
    try:
        return await forward(event, ctx or Ctx())
    except (Retry, Reject, NotNow) as said:
        return said


class Request(Struct):
    """What a sink was sent."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    hang_up: Callable[[], None]  # without an answer


Answer = Callable[[Request], Awaitable[web.StreamResponse]]


class Sink:
    """A server that keeps what it was sent, and answers as it is told."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.port = 0
        self.at_work = self.at_work_most = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in?token=url-secret"

    async def serve(self, asked: web.BaseRequest) -> web.StreamResponse:
        assert asked.transport is not None
        request = Request(asked.raw_path, asked.headers.copy(), await asked.read(), asked.transport.abort)
        self.requests.append(request)
        self.at_work += 1
        self.at_work_most = max(self.at_work_most, self.at_work)
        try:
            return await self.answer(request)
        finally:
            self.at_work -= 1


def answering(status: int = 200, text: str = "", **headers: str) -> Answer:
    async def answer(_: Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, text=text, headers=named)

    return answer


@asynccontextmanager
async def sink(answer: Answer | None = None, port: int = 0) -> AsyncIterator[Sink]:
    made = Sink(answer or answering())
    runner = web.ServerRunner(web.Server(made.serve), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        made.port = runner.addresses[0][1]
        yield made
    finally:
        await runner.cleanup()


class Raw:
    """A server that speaks in bytes. `connections` counts who came, `requests` what was read of each."""

    def __init__(self, speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
        self._speak = speak
        self.connections = 0
        self.requests: list[bytes] = []
        self.ended = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                await self._speak(reader, writer)
            finally:
                self.ended += 1
                writer.close()


@asynccontextmanager
async def raw(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], **options: Any
) -> AsyncIterator[Raw]:
    """On 127.0.0.1 and, where the machine has it, on the same port of ::1."""
    made = Raw(speak)
    servers = [await asyncio.start_server(made, "127.0.0.1", 0, **options)]
    made.port = servers[0].sockets[0].getsockname()[1]
    with suppress(OSError):
        servers.append(await asyncio.start_server(made, "::1", made.port, **options))
    try:
        yield made
    finally:
        for server in servers:
            server.close()


def saying(
    *pieces: bytes, hold: bool = False
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Speaks these bytes and closes, or holds the connection until the other side does."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if hold:
            while await reader.read(65_536):
                pass

    return speak


async def until(met: Callable[[], bool]) -> None:
    """Wait for something that another task does."""
    async with asyncio.timeout(PATIENCE_S):
        while not met():  # noqa: ASYNC110 - it looks at what servers and clients of any kind count
            await asyncio.sleep(0.005)


async def closed_port() -> int:
    """A port where nobody listens: it was free a moment ago."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


def fresh_key() -> str:
    return f"{next(_numbers):032x}"
