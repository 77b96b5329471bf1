"""A connection is one question's until all its answers were read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from semel.adapters.ledgers.redis.address import read_url
from semel.adapters.ledgers.redis.node import Node, facts_of


@asynccontextmanager
async def waiting(url: str) -> AsyncIterator[tuple[Node, asyncio.Task[Any], Node, str]]:
    """A node with a question that the server has, and does not answer before something is pushed; a node beside it."""
    address = read_url(url)
    node, beside, key = Node(address, *address.hosts[0]), Node(address, *address.hosts[0]), uuid4().hex
    await node.ask("PING")  # it has a connection already
    asked = asyncio.create_task(node.ask("BLPOP", key, 0))
    while int(facts_of(await beside.ask("INFO", "clients"))["blocked_clients"]) == 0:  # noqa: ASYNC110  a server's state
        await asyncio.sleep(0.01)
    yield node, asked, beside, key
    await beside.ask("DEL", key)
    await node.close()
    await beside.close()


def test_an_answer_that_nobody_waits_for_is_not_the_next_ones(redis_url: str) -> None:
    async def run() -> None:
        async with waiting(redis_url) as (node, asked, beside, key):
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled()
            await beside.ask("LPUSH", key, "nobody's")
            assert await node.ask("ECHO", "mine") == b"mine"

    asyncio.run(run())


def test_who_asks_beside_another_waits_for_none_of_its_answers(redis_url: str) -> None:
    async def run() -> None:
        async with waiting(redis_url) as (node, asked, beside, key):
            assert await node.ask("ECHO", "mine") == b"mine"
            await beside.ask("LPUSH", key, "theirs")
            assert await asked == [key.encode(), b"theirs"]

    asyncio.run(run())
