"""The ASGI application of `semel run`: which part answers which path, and how it all begins and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from semel.app import Semel
from semel.service import answers
from semel.service.answers import Answer, refused
from semel.service.background import Background
from semel.service.ingest import Ingest, Receive, Scope, Send, reply
from semel.service.trouble import Trouble
from semel.values.errors import SemelError

log = logging.getLogger("semel")

READY_S = 1.0  # how long a look at the ledger may take, and how long it is remembered


class Asgi(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Service:
    """Webhooks first: everything else can wait a dictionary look-up longer."""

    def __init__(
        self,
        app: Semel,
        start: Callable[[], tuple[Ingest, Background]],
        *,
        api: Asgi,
        metrics: Callable[[Scope], Awaitable[Answer]],
        drain_s: float,
        on_stop: Callable[[], Awaitable[None]],
    ) -> None:
        """`start` makes what belongs to the running loop; `on_stop` lets go of what it used."""
        self._app = app
        self._start = start
        self._api = api
        self._metrics = metrics
        self._drain_s = drain_s
        self._on_stop = on_stop
        self._ingest: Ingest | None = None
        self._background: Background | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._stop_at: float | None = None  # loop time: when the drain is over
        self._looked: tuple[float, Answer] = (-READY_S, READY)
        self._unready = Trouble("not ready, the ledger cannot be written", "ready again")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert self._ingest is not None
            if (door := self._ingest.doors.get(scope["path"])) is not None:
                await self._ingest.deliver(door, scope, receive, send)
            else:
                await self._other(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/healthz":
                await reply(HEALTHY, send)
            case "/readyz":
                await reply(await self._ready(), send)
            case "/metrics":
                await reply(await self._metrics(scope), send)
            case "/openapi.json":
                await self._api(scope, receive, send)
            case path if path.startswith("/v1/"):
                await self._api(scope, receive, send)
            case _:
                await reply(answers.NOT_HERE, send)

    # ---------------------------------------------------------------------------------------- beginning and end

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._ingest, self._background = self._start()
                self._background.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def begin_to_drain(self) -> None:
        """No new letters and deliveries are taken; requests that are here are answered."""
        if self._stop_at is None:
            log.info("draining: what is under way has %g s", self._drain_s)
            self._stop_at = asyncio.get_running_loop().time() + self._drain_s
            if self._background is not None:
                self._background.begin_to_stop()

    def hurry(self, then: Callable[[], None]) -> None:
        """The drain is over now: what has not ended goes back, or is told. `then` the process may end."""
        if self._background is None:
            then()
            return
        self._cutting = asyncio.create_task(self._background.stop(0.0))
        self._cutting.add_done_callback(lambda _: then())

    async def _stop(self) -> None:
        self.begin_to_drain()
        assert self._stop_at is not None
        if self._background is not None:
            await self._background.stop(max(0.0, self._stop_at - asyncio.get_running_loop().time()))
        await self._on_stop()
        await self._app.close()

    async def _ready(self) -> Answer:
        """Ready while the ledger can be written and no drain has begun."""
        if self._stop_at is not None:
            return refused(503, "Draining")
        now = asyncio.get_running_loop().time()
        if now - self._looked[0] >= READY_S:
            self._looked = now, await self._look()
        return self._looked[1]

    async def _look(self) -> Answer:
        """Which store it is and what ails it is for the log: anybody may ask whether we are ready."""
        try:
            async with asyncio.timeout(READY_S):
                await self._app.ledger.claim([])  # takes the write lock, reads, and writes nothing
        except (SemelError, TimeoutError) as error:
            self._unready.is_there(str(error) or f"no answer within {READY_S:g} s")
            return NOT_READY
        self._unready.is_over()
        consuming = self._background.consuming if self._background is not None else None
        trouble = consuming.trouble if consuming is not None else ""
        return _said(status="ready", sources=trouble) if trouble else READY  # webhooks are taken all the same


def _said(**words: str) -> Answer:
    body = msgspec.json.encode(words)
    return Answer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)


HEALTHY = _said(status="alive")
READY = _said(status="ready")
NOT_READY = refused(503, "The ledger cannot be reached now", after_s=READY_S)
