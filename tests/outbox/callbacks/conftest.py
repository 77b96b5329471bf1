"""One stage for the tests of a worker: each test has messages of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.outbox.callbacks.stage import Stage

from semel.testing.simulator import SimulatorProcess


@pytest.fixture(scope="session")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


@pytest.fixture(scope="session")
def stage(simulator: SimulatorProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from staged(tmp_path_factory.mktemp("stage"), simulator)


def staged(folder: Path, simulator: SimulatorProcess) -> Iterator[Stage]:
    stage = Stage(folder, simulator)
    try:
        stage.start()
        yield stage
    finally:
        stage.close()
