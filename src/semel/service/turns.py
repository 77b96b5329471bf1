"""How many at a time, and how long the others may wait for their turn."""

from __future__ import annotations

import asyncio
from collections import deque

WAIT_S = 0.25  # a burst passes in less; whoever waits longer is better told to come again
WAITING = 4  # so many times as many may wait: each holds a connection and its body


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


class Room:
    """For bodies that come in pieces, until it is their turn. When it is full, the one that has been arriving for
    longest is given up: a sender who means it is soon done, and one who only fills the room stays in it."""

    def __init__(self, most_bytes: int) -> None:
        self.held = 0
        self._most = most_bytes
        self._arriving: dict[Place, None] = {}  # the oldest first

    def place(self) -> Place:
        """Room for one body, given back when its context ends."""
        return Place(self)

    def make(self) -> None:
        """Give up as many as it takes."""
        while self.held > self._most and self._arriving:
            next(iter(self._arriving)).give_up()


class Place:
    """What one body holds of the room."""

    def __init__(self, room: Room) -> None:
        self.given_up = False
        self._room = room
        self._held = 0
        self._patience: asyncio.Timeout | None = None

    def arriving(self, patience: asyncio.Timeout) -> None:
        """Its pieces are waited for, inside of this."""
        self._patience = patience
        self._room._arriving[self] = None

    def grow(self, by: int) -> None:
        """It has so many bytes more."""
        if not self.given_up:
            self._held += by
            self._room.held += by
            self._room.make()

    def arrived(self) -> None:
        """It is not waited for any more, but still there."""
        self._room._arriving.pop(self, None)

    def give_up(self) -> None:
        """Who waits for it is sent a TimeoutError, and drops what came."""
        self.given_up = True
        self._leave()
        if self._patience is not None and not self._patience.expired():
            self._patience.reschedule(0)

    def _leave(self) -> None:
        self.arrived()
        self._room.held -= self._held
        self._held = 0

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
