"""How many at a time, and how long the others may wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque

WAIT_S = 0.25  # a burst passes in less; whoever waits longer is better told to come again
WAITING = 4  # so many times as many may wait: each holds a connection, and at most 64 KB of its body


class Turns:
    """First come, first served. Refusing at once would be cheaper for one sender, and dearer for all: whoever is
    refused comes again, and a service that is kept busy with refusals gets nothing done."""

    def __init__(self, most: int, wait_s: float = WAIT_S) -> None:
        self.taken = 0
        self._most = most
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def take(self) -> bool:
        """False: it did not come to be our turn."""
        if self.taken < self._most:
            self.taken += 1
            return True
        if len(self._waiting) >= WAITING * self._most:
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(self._wait_s, _too_late, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give_back()  # it came at the same moment, and nobody is there to use it
            raise
        finally:
            timer.cancel()

    def give_back(self) -> None:
        """The next one takes it over."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self.taken -= 1


def _too_late(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)
