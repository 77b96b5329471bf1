"""What is in our hands, seen by the event loop: ready, handed out, or waiting to be tried again."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from semel.adapters.sources.kafka.lanes import Held, Lane

NEVER = 1 << 62


class Hand:
    """Order is kept by key within a partition, where that is asked for: the next one of a key is ready when the one
    before it is settled. A message without key waits for nobody."""

    def __init__(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._ready: deque[Held] = deque()
        self._timers: dict[Held, asyncio.TimerHandle] = {}
        self._changed = asyncio.Event()
        self.came = 0  # messages, ever; written by the poller
        self.released = 0  # those that have left our hands, ever
        self._wanted = NEVER  # of the released: the poller waits for so many
        self._room = threading.Event()

    # ------------------------------------------------------------------------------------------------- coming in

    def put(self, arrived: Sequence[Held]) -> None:
        if self._in_order:
            for held in arrived:
                self._line_up(held)
        else:
            self._ready.extend(arrived)
        self.wake()

    def _line_up(self, held: Held) -> None:
        message = held.message
        key = held.key = None if message is None else message.key()
        if key is None:
            self._ready.append(held)
        elif (behind := held.lane.behind.get(key)) is not None:
            behind.append(held)
        else:
            held.lane.behind[key] = deque()
            self._ready.append(held)

    def room(self, most: int) -> int:
        """How many more may come in."""
        return most - (self.came - self.released)

    def wait_for_room(self, most: int, enough: int, within_s: float) -> None:
        """By the poller's thread, which sleeps until there is enough: when it wakes, the event loop stands still."""
        self._room.clear()
        self._wanted = self.came - most + enough
        if self.released < self._wanted:
            self._room.wait(within_s)
        self._wanted = NEVER

    def _release(self, count: int = 1) -> None:
        self.released += count
        if self.released >= self._wanted:
            self._wanted = NEVER
            self._room.set()

    # --------------------------------------------------------------------------------------------- going through

    def take(self, limit: int) -> list[Held]:
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def wait(self, held: Held, after_s: float) -> None:
        """It is ready again after this time. Its key waits with it, the rest of its partition does not."""
        if held.lane.gone:
            self.forget(held)
            return
        self._timers[held] = asyncio.get_running_loop().call_later(max(0.0, after_s), self._is_due, held)

    def _is_due(self, held: Held) -> None:
        del self._timers[held]
        if held.lane.gone:
            self.forget(held)
            return
        self._ready.append(held)  # at the end: many that fail again and again starve nobody
        self.wake()

    # ----------------------------------------------------------------------------------------------- going out

    def settle(self, held: Held) -> None:
        self._release()
        lane = held.lane
        lane.settle(held)
        if held.key is None or (behind := lane.behind.get(held.key)) is None:
            return
        if behind:
            self._ready.append(behind.popleft())
            self.wake()
        else:
            del lane.behind[held.key]

    def forget(self, held: Held) -> None:
        """It leaves our hands, and is not settled: its partition may still be about to be committed by us."""
        self._release()

    def drop(self, gone: Iterable[Lane]) -> None:
        """These partitions belong to somebody else. What was handed out leaves our hands when it is answered."""
        lanes = set(gone)
        ready = self._ready
        self._ready = deque(held for held in ready if held.lane not in lanes)
        self._release(len(ready) - len(self._ready))
        for held in [held for held in self._timers if held.lane in lanes]:
            self._timers.pop(held).cancel()
            self._release()
        for lane in lanes:
            self._release(sum(len(behind) for behind in lane.behind.values()))
            lane.behind.clear()
        self.wake()

    def clear(self) -> None:
        """Nothing is handed out any more."""
        self._release(len(self._ready) + len(self._timers))
        self._ready.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def changed(self) -> None:
        """Until something has come or gone."""
        await self._changed.wait()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
