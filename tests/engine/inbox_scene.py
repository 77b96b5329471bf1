"""An inbox on a real file, for the tests of what is taken from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
from tests.engine.apps import run

from semel import Outcome, Semel
from semel.app import IncomingMessage, to_bytes
from semel.core.inbox_flow import Acceptor, InboxWorker
from semel.ports import Inbox
from semel.values.inbox import Depth


class Scene:
    """An app on a real file, its inbox, and a pump that is run by hand."""

    def __init__(self, folder: Path, tenant: str = "") -> None:
        self.file = str(folder / "semel.db")
        self.app = Semel(f"sqlite:///{self.file}", lease=5, tenant=tenant)
        assert isinstance(self.app.ledger, Inbox)
        self.inbox: Inbox = self.app.ledger

    async def accept(self, body: dict[str, Any]) -> str:
        return (await self.accepted(body)).status

    async def accepted(self, body: dict[str, Any]) -> Outcome:
        return await Acceptor(self.inbox, self.app.planner, lambda: None).accept(IncomingMessage(to_bytes(body)))

    def pump(self, concurrency: int = 8, **options: Any) -> InboxWorker:
        engine = self.app.new_engine(self.app.ledger)
        return InboxWorker(self.inbox, engine.process, self.app.handlers, concurrency, **options)

    async def let_it_be_due(self, lane: str) -> None:
        """As if the time for which it was put off had passed."""
        with apsw.Connection(self.file) as connection:
            connection.execute("update semel_inbox set due_ms = 0 where lane = ?", (lane,))
        connection.close()

    async def reasons(self) -> list[str]:
        """Why items were postponed."""
        return [entry.reason for entry in await self.app.entries("accepted")]

    async def handle(self, **options: Any) -> None:
        """Take once, and handle what was taken."""
        pump = self.pump(**options)
        await pump.run_once()
        await pump.stop(10)

    async def depth(self) -> dict[str, Depth]:
        return {depth.lane: depth for depth in await self.inbox.depths() if depth.waiting or depth.taken}


def story(folder: Path, tell: Callable[[Scene], Awaitable[None]]) -> None:
    async def story() -> None:
        scene = Scene(folder)
        async with scene.app:
            await tell(scene)

    run(story())


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(3_000):
        if await holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to hold")


async def until_empty(scene: Scene, pump: InboxWorker) -> None:
    async def empty() -> bool:
        await pump.run_once()
        return await scene.depth() == {}

    await until(empty)
