"""Entries that travel ten at a time, as SQS takes them: what is added while requests are under way forms the next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from semel.values.retry import backoff_s

E = TypeVar("E")

ENTRIES_MAX = 10  # of one batch request
BACKOFF_BASE_S = 0.1
BACKOFF_CAP_S = 5.0  # well under a visibility of 30 s


class Grouped(Generic[E]):
    """Adding does not wait. `send` returns the entries that are worth another try."""

    def __init__(
        self,
        send: Callable[[list[E]], Awaitable[list[E]]],
        lanes: int,
        random: Callable[[], float],
        weight: Callable[[E], int] = lambda _: 0,
        weight_max: int = 0,
    ) -> None:
        self._send = send
        self._most = lanes  # requests at a time
        self._random = random
        self._weight = weight
        self._weight_max = weight_max
        self._waiting: deque[E] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._open = 0  # lanes that will look at what waits; one that has just ended does not

    def add(self, entry: E) -> None:
        self._waiting.append(entry)
        if self._open < self._most and len(self._waiting) > ENTRIES_MAX * self._open:
            self._open += 1
            lane = asyncio.get_running_loop().create_task(self._lane())
            self._lanes.add(lane)
            lane.add_done_callback(self._ended)

    async def drained(self) -> None:
        """Until nothing is under way."""
        while self._lanes:
            await asyncio.wait(self._lanes)

    def cancel(self) -> None:
        for lane in self._lanes:
            lane.cancel()

    async def _lane(self) -> None:
        failures = 0
        try:
            while self._waiting:
                again = await self._send(self._batch())
                if not again:
                    failures = 0
                    continue
                failures += 1
                self._waiting.extendleft(reversed(again))
                await asyncio.sleep(backoff_s(failures, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        finally:
            self._open -= 1

    def _batch(self) -> list[E]:
        batch = [self._waiting.popleft()]
        weight = self._weight(batch[0])
        while self._waiting and len(batch) < ENTRIES_MAX:
            weight += self._weight(self._waiting[0])
            if weight > self._weight_max > 0:
                break
            batch.append(self._waiting.popleft())
        return batch

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if not lane.cancelled() and (error := lane.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a request to SQS could not be made", "exception": error, "task": lane}
            )
