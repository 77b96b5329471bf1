"""Whoever is told by the store to try again does: of two that stand in each other's way one is always let through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from semel.adapters.ledgers.postgres.pool import driver
from semel.values.errors import LedgerUnavailable

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

T = TypeVar("T")

TRIES = 20
PAUSE_S = 0.01  # at most, after the first try; longer after each


class Changed(LedgerUnavailable):
    """What was decided upon is not what is there any more. Nothing was written."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL: others changed the same keys again and again: ask once more")


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """`ask` writes all or nothing: where two sessions waited for each other, it was rolled back as a whole."""
    asyncpg = driver()
    again = (Changed, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
    for tried in range(1, TRIES):
        try:
            return await ask()
        except again:
            await asyncio.sleep(random.uniform(0, PAUSE_S * tried))
    return await ask()


def repeated(
    work: Callable[[Connection], Coroutine[Any, Any, T]],
) -> Callable[[Connection], Coroutine[Any, Any, T]]:
    """The same work on a connection, insisted upon."""

    async def run(connection: Connection) -> T:
        return await insist(lambda: work(connection))

    return run
