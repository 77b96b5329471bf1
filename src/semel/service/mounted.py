"""`app.asgi()`: the webhook source inside somebody else's application. It needs nothing but ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from semel.app import Semel
from semel.service import answers
from semel.service.doors import Door
from semel.service.front import Front
from semel.service.ingest import Ingest, Receive, Scope, Send, reply

DRAIN_S = 20.0


class Mounted:
    """Takes deliveries at one path, below wherever it is mounted."""

    def __init__(self, app: Semel, door: Door) -> None:
        self._app = app
        self._door = door
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ingest: Ingest | None = None
        self._not_here = answers.refused(404, "Nothing here", f"This application takes events at {door.path}, by POST")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http" if _path_below(scope) == self._door.path:
                await self._on_this_loop().deliver(self._door, scope, receive, send)
            case "http":
                await reply(self._not_here, send)
            case "lifespan":  # it stands alone; a mounted application is not told
                await self._live(receive, send)

    def _on_this_loop(self) -> Ingest:
        loop = asyncio.get_running_loop()
        if self._ingest is None or self._loop is not loop:
            self._loop = loop
            keeps = self._door.mode == "inbox" and self._door.publisher is None
            background = self._app.background() if keeps else None
            front = Front(self._app, accepted=background.wake if background else lambda: None)
            self._ingest = Ingest(front, [self._door], planner=self._app.planner)
        return self._ingest

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._on_this_loop()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._door.publisher is not None:
            await self._door.publisher.close()
        await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})


def _path_below(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


@asynccontextmanager
async def handling(app: Semel) -> AsyncIterator[None]:
    """Letters are handled while this is open, and those in hand end with it."""
    background = app.background()
    try:
        yield
    finally:
        await background.stop(DRAIN_S)
