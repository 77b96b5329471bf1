"""One RabbitMQ for all tests of a run, whichever worker they are in; each test has queues of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from tests.sources.rabbitmq.places import Client, Place
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.rabbitmq import Broker, RabbitServer
from tests.support.servers.rabbitmq_shared import share


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
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


@pytest.fixture(scope="session")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.url) as client:
        yield client


@pytest.fixture
def new_place(broker: Broker, client: Client) -> Iterator[Callable[..., Place]]:
    """Queues that are deleted after the test, with those where its retries wait."""
    places: list[Place] = []

    def make(**options: bool) -> Place:
        places.append(Place(broker, client, **options))
        return places[-1]

    yield make
    for place in places:
        place.delete()


@pytest.fixture
def place(new_place: Callable[..., Place]) -> Place:
    return new_place()
