"""Whoever is told by the store to try again does: of two that stand in each other's way one is always let through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from semel.adapters.ledgers.postgres.pool import driver

T = TypeVar("T")

TRIES = 20
PAUSE_S = 0.01  # at most, after the first try; longer after each


class Changed(Exception):
    """What was decided upon is not what is there any more. Nothing was written."""

    def __str__(self) -> str:
        return "others changed the same keys again and again: ask once more"


async def insist(ask: Callable[[], Awaitable[T]]) -> T:
    """`ask` writes all or nothing."""
    asyncpg = driver()
    again = (Changed, asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
    for tried in range(1, TRIES):
        try:
            return await ask()
        except again:
            await asyncio.sleep(random.uniform(0, PAUSE_S * tried))
    return await ask()
