"""Bounds how many deliveries are processed at a time, and how much memory their bodies use.

`Admission` limits concurrency and lets a bounded number of requests wait. `BodyBudget` limits the bytes of bodies that
are still being read."""

from __future__ import annotations

import asyncio
from collections import deque

WAIT_S = 0.25  # a burst passes in less; a sender that would wait longer is better asked to retry
WAITING = 4  # waiters per slot: each holds a connection and its body


class Admission:
    """A limiter with a fixed number of slots and a short queue, first come, first served.

    Waiting costs less than refusing at once: a refused sender retries, and a service that is busy with refusals makes
    no progress."""

    def __init__(self, slots: int, wait_s: float = WAIT_S) -> None:
        self.taken = 0
        self._slots = slots
        self._wait_s = wait_s
        self._waiting: deque[asyncio.Future[bool]] = deque()

    async def acquire(self) -> bool:
        """Take a slot. Returns False if none became free in time, or if the queue is full."""
        if self.taken < self._slots:
            self.taken += 1
            return True
        if len(self._waiting) >= WAITING * self._slots:
            return False
        loop = asyncio.get_running_loop()
        slot: asyncio.Future[bool] = loop.create_future()
        self._waiting.append(slot)
        timer = loop.call_later(self._wait_s, _time_out, slot)
        try:
            return await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled() and slot.result():
                self.release()  # the slot was granted at the same moment: pass it on
            raise
        finally:
            timer.cancel()

    def release(self) -> None:
        """Pass the slot to the next waiter, or free it."""
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(True)
                return
        self.taken -= 1


def _time_out(slot: asyncio.Future[bool]) -> None:
    if not slot.done():
        slot.set_result(False)


class BodyBudget:
    """Memory for bodies that arrive in several pieces, until their request is admitted.

    A full budget evicts the body that has been arriving for longest. An honest sender finishes soon; a sender that
    only wants to fill the budget stays longest in it."""

    def __init__(self, bytes_max: int) -> None:
        self.used = 0
        self._bytes_max = bytes_max
        self._arriving: dict[Reservation, None] = {}  # oldest first

    def reserve(self) -> Reservation:
        """The share of one body. It is returned when its context ends."""
        return Reservation(self)

    def enforce(self) -> None:
        """Evict bodies until the budget is kept."""
        while self.used > self._bytes_max and self._arriving:
            next(iter(self._arriving)).evict()


class Reservation:
    """The bytes that one body uses of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self.evicted = False
        self._budget = budget
        self._used = 0
        self._timeout: asyncio.Timeout | None = None

    def start_reading(self, timeout: asyncio.Timeout) -> None:
        """The rest of the body is awaited inside `timeout`. From now on the body can be evicted."""
        self._timeout = timeout
        self._budget._arriving[self] = None

    def grow(self, by: int) -> None:
        """Add the bytes of one piece."""
        if not self.evicted:
            self._used += by
            self._budget.used += by
            self._budget.enforce()

    def finish_reading(self) -> None:
        """The body is complete or was refused. Its bytes still count until the context ends."""
        self._budget._arriving.pop(self, None)

    def evict(self) -> None:
        """End the read with a TimeoutError, so that the reader drops the body."""
        self.evicted = True
        self._free()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)

    def _free(self) -> None:
        self.finish_reading()
        self._budget.used -= self._used
        self._used = 0

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self._free()
