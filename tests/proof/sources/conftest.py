"""The servers of the storms: one of each kind for all tests of a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pytest
from tests.proof.sources.brokers import OnSqs
from tests.proof.sources.stages import OnPostgres, OnRedis
from tests.proof.sources.storm import Broker, Stage

from semel.testing.servers.postgres import PostgresServer
from semel.testing.servers.process import NoServer, not_here
from semel.testing.servers.sqs import SqsServer
from semel.testing.servers.valkey import Valkey

Made = TypeVar("Made")


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Not pytest's: the next run of pytest takes away the rights of others, and a server of root's is one of those."""
    with TemporaryDirectory(prefix="semel-storm-") as folder:
        yield Path(folder)


def started(make: Callable[[], Made]) -> Made:
    try:
        server = make()
        server.start()  # type: ignore[attr-defined]
    except NoServer as error:
        not_here(error)
    return server


@pytest.fixture(scope="session")
def postgres(folder: Path) -> Iterator[PostgresServer]:
    server = started(lambda: PostgresServer.given() or PostgresServer(folder / "postgres"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey(folder: Path) -> Iterator[Valkey]:
    server = started(lambda: Valkey(folder / "valkey"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sqs(folder: Path) -> Iterator[SqsServer]:
    server = started(lambda: SqsServer.given() or SqsServer(folder / "sqs"))
    yield server
    server.stop()


@pytest.fixture
def broker(transport: str, request: pytest.FixtureRequest) -> Broker:
    return {"sqs": OnSqs}[transport](request.getfixturevalue(transport))


@pytest.fixture
def stage(store: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if store == "postgres":
        stage: OnPostgres | OnRedis = OnPostgres(request.getfixturevalue("postgres"))
    else:
        stage = OnRedis(request.getfixturevalue("valkey"))
    yield stage
    stage.close()
