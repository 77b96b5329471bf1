"""Direct connections to the database, for tests that read its tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

TABLES = ("key", "subject", "dead_letter", "decision", "inbox", "inbox_key", "unsettled_key")


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def empty(url: str) -> None:
    """Delete all rows. Sequences continue."""
    async with connected(url) as connection:
        await connection.execute("; ".join(f"delete from semel.{table}" for table in TABLES))
        position = "case name when 'purge_position' then -1 else 0 end"
        await connection.execute(f"update semel.meta set value = {position}, digest = ''")
