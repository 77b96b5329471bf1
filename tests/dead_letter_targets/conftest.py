"""One emulator of AWS for all tests of a worker; each test has a bus and a table of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.dead_letter_targets.bus import AwsServer, Bus
from tests.shared import shared_emulator


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[AwsServer]:
    server = shared_emulator(request, AwsServer)
    yield server
    server.stop()


@pytest.fixture
def bus(server: AwsServer) -> Iterator[Bus]:
    bus = Bus(server)
    yield bus
    bus.close()
