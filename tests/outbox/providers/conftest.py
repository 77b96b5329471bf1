"""One simulator for all tests of a worker process: each test has its own recipients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.testing.simulator import SimulatorProcess


@pytest.fixture(scope="session")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator
