"""What keeps a destination from being hammered, and from holding up the others."""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol


class Breaker(Protocol):
    """What a destination needs of a circuit breaker. `semel.core.breaker` has one."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]: ...
    def admit(self) -> bool: ...
    def succeeded(self) -> None: ...
    def failed(self) -> None: ...
    def ready_in_s(self) -> float: ...
    def open_for_s(self) -> float: ...


class Budget(Protocol):
    """What a destination needs of a retry budget. `semel.core.retry_budget` has one."""

    def earn(self) -> None: ...
    def spend(self) -> bool: ...
    def give_back(self) -> None: ...
    def ready_in_s(self) -> float: ...


class Turns:
    """At most `most` at a time. Few may wait, and not for long: who waits holds a lease and a handler's time."""

    def __init__(self, most: int, waiting_max: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._waiting_max = waiting_max
        self._waiting = 0

    async def take(self, wait_s: float) -> bool:
        """False: too many wait already, or the wait was in vain."""
        if not self._free.locked():
            return await self._free.acquire()  # without waiting
        if self._waiting >= self._waiting_max:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                return await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        self._free.release()
