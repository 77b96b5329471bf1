"""The stores of the storms: PostgreSQL is one server for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.proof.outbox.stores import OnPostgres, OnSqlite, Store
from tests.shared import shared_server
from tests.support.servers.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    return shared_server(request, "postgres", lambda folder: PostgresServer.given() or PostgresServer(folder))


@pytest.fixture
def store(on: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    store: Store = OnSqlite(tmp_path) if on == "sqlite" else OnPostgres(request.getfixturevalue("postgres"))
    yield store
    store.close()
