"""One server of each kind for the tests of a process, as a careful operator would run it; each test has a place of its
own there."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.shared import shared_emulator, shared_server
from tests.support.servers.dynamodb import DynamoServer
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, given_url, not_here
from tests.support.servers.valkey import Valkey

STORES = ("sqlite", "postgres", "redis", "dynamodb")


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    return shared_server(
        request, "postgres-fsync", lambda folder: PostgresServer.given() or PostgresServer(folder, fsync=True)
    )


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    if (given := given_url("REDIS")) is not None:
        yield given
        return
    try:
        server = Valkey(tmp_path_factory.mktemp("valkey"), {"appendonly": "yes"})
        server.start()
    except NoServer as error:
        not_here(error)
    server.ask("ACL", "SETUSER", "semel", "on", ">s3cret-of-redis", "~*", "&*", "+@all")
    yield server.url.replace("redis://", "redis://semel:s3cret-of-redis@")
    server.stop()


@pytest.fixture(scope="session")
def dynamodb(request: pytest.FixtureRequest) -> DynamoServer:
    return shared_emulator(request, DynamoServer)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """An empty database: its URL."""
    name = f"semel_{uuid4().hex}"
    yield postgres.database(name)
    postgres.drop(name)


@pytest.fixture
def redis_url(valkey: str) -> str:
    return f"{valkey}?prefix={uuid4().hex}"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty store, of each kind."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{request.getfixturevalue('tmp_path')}/semel.db"
        case "postgres":
            return str(request.getfixturevalue("database"))
        case "redis":
            return str(request.getfixturevalue("redis_url"))
    server: DynamoServer = request.getfixturevalue("dynamodb")
    return server.url(f"semel-{uuid4().hex}")
