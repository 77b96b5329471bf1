"""The plans of statements, as text, including those inside functions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

LOGGED = (
    "load 'auto_explain'",
    "set auto_explain.log_min_duration = 0",
    "set auto_explain.log_nested_statements = on",
    "set auto_explain.log_parameter_max_length = 0",
    "set client_min_messages = log",
)


async def plans_of(url: str, work: Callable[[Any], Awaitable[object]]) -> list[str]:
    """The plans of all that is done by `work`, on a connection of its own."""
    connection = await asyncpg.connect(url)
    told: list[str] = []
    try:
        try:
            await connection.execute("; ".join(LOGGED))
        except asyncpg.PostgresError as error:
            pytest.skip(f"this server does not tell its plans: {error}")
        connection.add_log_listener(lambda _, message: told.append(str(message.message)))
        await work(connection)
        await asyncio.sleep(0)  # listeners are called by the loop
        return [text for text in told if "plan:" in text and "semel" in text]  # the driver has queries of its own
    finally:
        await connection.close()
