"""The servers of the storms: one of each kind for all tests of a worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from tests.proof.sources.brokers import on_kafka, on_rabbit, on_sqs
from tests.proof.sources.stages import OnPostgres, OnRedis
from tests.proof.sources.storm import Broker, Stage
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.rabbitmq import Broker as RabbitBroker
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.rabbitmq_shared import share
from tests.support.servers.sqs import SqsServer
from tests.support.servers.valkey import Valkey

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


@pytest.fixture(scope="session")
def kafka(folder: Path) -> Iterator[KafkaServer]:
    server = started(lambda: KafkaServer.given() or KafkaServer(folder / "kafka"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitBroker]:
    """The one that all processes of a run share."""
    given = RabbitServer.given()
    if given is not None:
        yield given
        return
    base = tmp_path_factory.getbasetemp()
    try:
        broker, leave = share((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rabbitmq")
    except NoServer as error:
        not_here(error)
    yield broker
    leave()


OPENED: dict[str, Callable[[Any], AbstractContextManager[Broker]]] = {
    "sqs": on_sqs,
    "kafka": on_kafka,
    "rabbitmq": on_rabbit,
}


@pytest.fixture
def broker(transport: str, request: pytest.FixtureRequest) -> Iterator[Broker]:
    with OPENED[transport](request.getfixturevalue(transport)) as broker:
        yield broker


@pytest.fixture
def stage(store: str, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if store == "postgres":
        stage: OnPostgres | OnRedis = OnPostgres(request.getfixturevalue("postgres"))
    else:
        stage = OnRedis(request.getfixturevalue("valkey"))
    yield stage
    stage.close()
