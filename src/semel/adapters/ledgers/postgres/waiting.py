"""Waiting for a handler's transaction to end.

The transaction holds an advisory lock on its key, which ends with it however it ends. Whoever waits asks for the same
lock, shared, and lets go of it at once. The number of connections that wait is bounded: who finds none free sleeps.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from semel.adapters.ledgers.postgres.pool import Pool, driver, faults, unavailable
from semel.values.claim import Claim
from semel.values.errors import LedgerUnavailable

if TYPE_CHECKING:
    from semel.adapters.ledgers.postgres.pool import Connection

TURN_MS = 250  # how long one waiter keeps a connection before another one has its turn


def lock_of(digest: bytes) -> int:
    """64 bits of a digest: two keys that share them wait for each other, and nothing else."""
    return int.from_bytes(digest[:8], "big", signed=True)


async def held_until(pool: Pool, claim: Claim, timeout_s: float) -> None:
    """Return when no transaction holds the key, or when the time is over."""
    number = lock_of(claim.digest)
    ends = time.monotonic() + timeout_s
    while (left_s := ends - time.monotonic()) > 0:
        try:
            connection = await pool.take(left_s)
        except LedgerUnavailable:
            if time.monotonic() >= ends:
                return  # others wait on all connections
            raise
        generation, broken = pool.generation, True
        try:
            wait_ms = max(1, min(TURN_MS, round((ends - time.monotonic()) * 1000)))
            free = await _is_free(connection, number, wait_ms)
            broken = False
        except faults() as error:
            raise unavailable(pool.options, error) from error
        finally:
            pool.give_back(connection, broken=broken, generation=generation)
        if free:
            return
        await asyncio.sleep(0)


async def _is_free(connection: Connection, number: int, wait_ms: int) -> bool:
    asyncpg = driver()
    try:
        await connection.execute(
            f"begin; set local lock_timeout = {wait_ms}; select pg_advisory_xact_lock_shared({number}); commit"
        )
    except asyncpg.LockNotAvailableError:
        await connection.execute("rollback")
        return False
    return True
