"""A source in memory that does what a test wants, and an app for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from semel import Context, Event, Semel
from semel.ports import Delivery

WITHIN_S = 60.0  # the machine may be busy


def body(number: int | str, kind: str = "ok") -> bytes:
    return json.dumps({"id": f"e-{number}", "type": kind, "data": {}}).encode()


class ShelfItem(Delivery):
    """A delivery that writes down what it is told."""

    def __init__(self, source: Shelf, raw: bytes) -> None:
        self.body = raw
        self.tenant = ""
        self._source = source

    async def ack(self) -> None:
        if self._source.deaf > 0:
            self._source.deaf -= 1
            raise ConnectionError("the source is gone")
        self._source.told.append(("ack", self.body))

    async def retry(self, after_s: float) -> None:
        self._source.told.append(("retry", self.body))
        if self._source.brings_again:
            self._source.put(self.body)

    async def reject(self, reason: str) -> None:
        self._source.told.append((f"reject: {reason}", self.body))


class Shelf:
    """A source that waits until it is stopped."""

    def __init__(self, *bodies: bytes, fails: Sequence[Exception] = (), ends: bool = False) -> None:
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._fails = list(fails)
        self._ends = ends
        self.told: list[tuple[str, bytes]] = []
        self.deaf = 0  # so many answers are not heard
        self.brings_again = False
        self.closed = self.stopped = False
        self.receives = 0
        for one in bodies:
            self.put(one)

    def put(self, one: bytes) -> None:
        self._waiting.put_nowait(one)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        self.receives += 1
        if self._fails:
            raise self._fails.pop(0)
        if self.stopped or (self._ends and self._waiting.empty()):
            return []
        first = await self._waiting.get()
        return [] if first is None else [ShelfItem(self, first)]

    def stop(self) -> None:
        self.stopped = True
        for _ in range(100):
            self._waiting.put_nowait(None)

    async def close(self) -> None:
        self.stop()
        self.closed = True

    def answers(self) -> list[str]:
        return [how for how, _ in self.told]


def app_with(handle: Callable[..., Any] | None = None) -> Semel:
    app = Semel("memory://", random=lambda: 0.0)

    async def ok(event: Event, ctx: Context) -> None: ...

    app.on("ok", name="ok")(handle or ok)
    return app


def run(story: Coroutine[Any, Any, None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(WITHIN_S):
            await story

    asyncio.run(timed())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what holds is another's to say
        await asyncio.sleep(0.005)
