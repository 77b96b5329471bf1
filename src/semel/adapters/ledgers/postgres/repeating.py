"""Work that the server gave up on, because two sessions waited for each other, is done again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres.pool import driver

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")

TRIES = 5


def repeated(
    work: Callable[[Connection], Coroutine[Any, Any, T]],
) -> Callable[[Connection], Coroutine[Any, Any, T]]:
    """The same work, a bounded number of times: each was rolled back as a whole."""

    async def run(connection: Connection) -> T:
        asyncpg = driver()
        for attempt in range(1, TRIES):
            try:
                return await work(connection)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                await asyncio.sleep(random.uniform(0, 0.01 * attempt))
        return await work(connection)

    return run
