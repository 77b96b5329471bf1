"""One mock cluster of librdkafka for all tests of a worker, by real sockets; each test has topics of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.sources.kafka.topics import Topics
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.process import NoServer, not_here


def started(folder: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    server = KafkaServer(folder.mktemp("kafka"))
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    given = KafkaServer.given()
    if given is not None:
        yield given
    else:
        yield from started(tmp_path_factory)


@pytest.fixture
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """To be broken on purpose: always a mock cluster."""
    yield from started(tmp_path_factory)


@pytest.fixture
def new_topics(kafka: KafkaServer) -> Iterator[Callable[..., Topics]]:
    made: list[Topics] = []

    def make(**options: int) -> Topics:
        made.append(Topics(kafka, **options))
        return made[-1]

    yield make
    for topics in made:
        topics.close()


@pytest.fixture
def topics(new_topics: Callable[..., Topics]) -> Topics:
    return new_topics()
