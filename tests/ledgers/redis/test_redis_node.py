"""A connection is one question's until all its answers were read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from redis.exceptions import ReadOnlyError

from semel.ledgers.redis.dispatch import PAUSE_S, ScriptCall, ScriptDispatcher
from semel.ledgers.redis.topology import Node, OneServer, parse_info
from semel.ledgers.redis.url import parse_url
from semel.values.errors import LedgerUnavailable


@asynccontextmanager
async def waiting(url: str) -> AsyncIterator[tuple[Node, asyncio.Task[Any], Node, str]]:
    """A node with a question that the server has, and does not answer before something is pushed; a node beside it."""
    address = parse_url(url)
    node, beside, key = Node(address, *address.hosts[0]), Node(address, *address.hosts[0]), uuid4().hex
    await node.ask("PING")  # it has a connection already
    asked = asyncio.create_task(node.ask("BLPOP", key, 0))
    while int(parse_info(await beside.ask("INFO", "clients"))["blocked_clients"]) == 0:  # noqa: ASYNC110  a server's state
        await asyncio.sleep(0.01)
    yield node, asked, beside, key
    await beside.ask("DEL", key)
    await node.close()
    await beside.close()


def test_a_late_reply_is_not_read_by_the_next_caller(redis_url: str) -> None:
    async def run() -> None:
        async with waiting(redis_url) as (node, asked, beside, key):
            asked.cancel()
            await asyncio.wait([asked])
            assert asked.cancelled()
            await beside.ask("LPUSH", key, "nobody's")
            assert await node.ask("ECHO", "mine") == b"mine"

    asyncio.run(run())


def test_concurrent_exchanges_use_separate_connections(redis_url: str) -> None:
    async def run() -> None:
        async with waiting(redis_url) as (node, asked, beside, key):
            assert await node.ask("ECHO", "mine") == b"mine"
            await beside.ask("LPUSH", key, "theirs")
            assert await asked == [key.encode(), b"theirs"]

    asyncio.run(run())


def test_a_server_that_is_loading_is_asked_again_after_pauses(redis_url: str) -> None:
    """Without pauses its clients would use up a processor, and the server's too, until it can answer."""

    class Replica:
        asked = 0

        async def exchange(self, packed: Any, count: int) -> list[Any]:
            self.asked += 1
            list(packed)
            await asyncio.sleep(0)
            return [ReadOnlyError("You can't write against a read only replica.")] * count

    class OnlyThat(OneServer):
        async def node(self, bucket: int) -> Any:
            return replica

    replica = Replica()

    async def run() -> None:
        address = parse_url(f"{redis_url}?timeout=1")
        topology = OnlyThat(address)
        with pytest.raises(LedgerUnavailable, match="ReadOnlyError"):
            await ScriptDispatcher(address, topology).run([ScriptCall(0, lambda: b"")])
        await topology.close()
        least_s = sum([PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S])
        assert 2 <= replica.asked <= 3 + 1 / least_s

    asyncio.run(run())
