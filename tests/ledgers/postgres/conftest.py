"""One server for the tests of a process, one database for each module of tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.shared import shared_server
from tests.support.servers.postgres import PostgresServer

from semel.ledgers.postgres import PostgresLedger


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    return shared_server(request, "postgres", lambda folder: PostgresServer.given() or PostgresServer(folder))


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    """A database without our schema."""
    name = f"semel_{uuid4().hex}"
    yield postgres.database(name)
    postgres.drop(name)


@pytest.fixture
def fresh_url(empty_database: str) -> str:
    """A database with our schema, for one test alone."""
    migrate(empty_database)
    return empty_database


@pytest.fixture(scope="module")
def url(postgres: PostgresServer) -> Iterator[str]:
    """A database with our schema, shared by the tests of a module. Each test uses its own keys."""
    name = f"semel_{uuid4().hex}"
    url = postgres.database(name)
    migrate(url)
    yield url
    postgres.drop(name)


def migrate(url: str) -> None:
    async def run() -> None:
        ledger = PostgresLedger.from_url(url)
        try:
            await ledger.migrate()
        finally:
            await ledger.close()

    asyncio.run(run())
