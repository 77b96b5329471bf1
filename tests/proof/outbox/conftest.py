"""The stores of the storms: PostgreSQL is one server for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.proof.outbox.stores import OnPostgres, OnSqlite, Store

from semel.testing.servers.postgres import PostgresServer
from semel.testing.servers.process import NoServer, not_here


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with TemporaryDirectory(prefix="semel-outbox-proof-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer.given() or PostgresServer(Path(folder))
        try:
            server.start()
        except NoServer as error:
            not_here(error)
        yield server
        server.stop()


@pytest.fixture
def store(on: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    store: Store = OnSqlite(tmp_path) if on == "sqlite" else OnPostgres(request.getfixturevalue("postgres"))
    yield store
    store.close()
