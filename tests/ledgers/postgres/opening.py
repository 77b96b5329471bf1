"""Ledgers, connections and claims that the tests of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import asyncpg

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, Harness
from semel.values.claim import Claim, Granted

SOON_S = 30.0


@asynccontextmanager
async def opened(
    url: str, options: str = "", clock: FakeClock | None = None, observe: Callable[[str], None] | None = None
) -> AsyncIterator[PostgresLedger]:
    ledger = PostgresLedger.from_url(url + options, clock=clock, observe=observe)
    try:
        yield ledger
    finally:
        await ledger.close()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def keys() -> Harness:
    """A harness for claims only."""

    def nothing() -> PostgresLedger:
        raise AssertionError("only its claims are wanted")

    return Harness(open=nothing)


async def granted(ledger: PostgresLedger, claims: Sequence[Claim]) -> list[Granted]:
    verdicts = await ledger.claim(claims)
    assert all(isinstance(verdict, Granted) for verdict in verdicts)
    return [verdict for verdict in verdicts if isinstance(verdict, Granted)]


async def soon(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SOON_S):
        while not await true():  # noqa: ASYNC110  another process changes it
            await asyncio.sleep(0.02)
