"""Stores with the effects beside them: rows in PostgreSQL's own transaction, calls of a sink that honours keys."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import redis
from tests.proof.sources.consumer_process import LANES
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.valkey import Valkey

from semel.ports import Catalog
from semel.wiring import open_ledger

TABLE = "create table effect (event text)"  # no unique constraint anywhere: a double would show


class OnPostgres:
    """effect="transaction": the row commits with the settle."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._name = f"storm_{uuid4().hex}"
        self._url = server.database(self._name)
        server.execute(TABLE, database=self._name)
        asyncio.run(self._migrate())

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"ledger": f"{self._url}?transactions={LANES}", "effect": "transaction", "sink": self._url}

    def happened(self) -> list[str]:
        return [event for (event,) in self._server.execute("select event from effect", database=self._name)]

    def counts(self) -> dict[str, int]:
        return asyncio.run(counts_of(self._url))

    def close(self) -> None:
        self._server.drop(self._name)

    async def _migrate(self) -> None:
        ledger: Any = open_ledger(self._url)
        await ledger.migrate()
        await ledger.close()


class OnRedis:
    """effect="keyed": a sink in another database of the same server keeps what was new to it."""

    def __init__(self, server: Valkey) -> None:
        self._url = server.url
        self._sink = server.url.removesuffix("/0") + "/1"
        self._client().flushall()

    @property
    def plan(self) -> Mapping[str, Any]:
        return {"ledger": self._url, "effect": "keyed", "sink": self._sink}

    def happened(self) -> list[str]:
        listed: Any = self._client().lrange("effects", 0, -1)
        return [event.decode() for event in listed]

    def counts(self) -> dict[str, int]:
        return asyncio.run(counts_of(self._url))

    def close(self) -> None:
        self._client().flushall()

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self._sink)


async def counts_of(url: str) -> dict[str, int]:
    ledger: Any = open_ledger(url)
    catalog: Catalog = ledger
    try:
        return await catalog.counts()
    finally:
        await ledger.close()
