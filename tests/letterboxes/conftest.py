"""One emulator of AWS for all tests of a worker; each test has a bus and a table of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.letterboxes.bus import AwsServer, Bus

from semel.testing.servers.process import NoServer, not_here


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    server = AwsServer.given() or AwsServer(tmp_path_factory.mktemp("aws"))
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


@pytest.fixture
def bus(server: AwsServer) -> Iterator[Bus]:
    bus = Bus(server)
    yield bus
    bus.close()
