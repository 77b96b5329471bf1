"""One emulator of AWS for all tests of a worker; each test has a bus and a table of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.letterboxes.bus import AwsServer, Bus
from tests.shared import shared_server


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> AwsServer:
    return shared_server(request, "aws", lambda folder: AwsServer.given() or AwsServer(folder))


@pytest.fixture
def bus(server: AwsServer) -> Iterator[Bus]:
    bus = Bus(server)
    yield bus
    bus.close()
