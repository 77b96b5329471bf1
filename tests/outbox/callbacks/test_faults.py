"""The store is out of reach, or the service dies: what a provider says is not lost, and not counted twice."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest
from tests.outbox.callbacks.conftest import staged
from tests.outbox.callbacks.hearing_process import kind_of
from tests.outbox.callbacks.signing import Signed
from tests.outbox.callbacks.stage import SOON_S, Stage, message

from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Notification
from semel.values.outbox import NotificationView


@pytest.fixture
def held(tmp_path: Path, simulator: SimulatorProcess) -> Iterator[Stage]:
    """A stage of its own, whose notary keeps what it signs."""
    for stage in staged(tmp_path, simulator):
        stage.notary.passes_on = False
        yield stage


def caught(stage: Stage, name: str) -> tuple[Notification, Signed]:
    one = message(name, str(stage.path))
    stage.simulator.callbacks(kind_of(name), "out of order", f"{stage.notary.url}/{name}")
    stage.add(one)
    delivered, _ = stage.kept(one, 2)
    stage.until(one, lambda shown: shown.state == "accepted")
    return one, delivered


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else can write into this file."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(int(1000 * SOON_S))
    connection.execute("begin immediate")
    try:
        yield
    finally:
        connection.execute("rollback")
        connection.close()


def test_while_the_store_cannot_be_written_a_provider_is_asked_to_come_again(held: Stage) -> None:
    """Each by the status after which it does."""
    again = {"telnyx": 503, "brevo": 429}
    all = {name: caught(held, name) for name in again}
    with locked(held.path), ThreadPoolExecutor(len(all)) as pool:
        refused = dict(zip(all, pool.map(lambda name: held.notary.post(name, all[name][1]), all), strict=True))
    assert {name: answer.status for name, answer in refused.items()} == again
    assert {answer.headers["retry-after"] for answer in refused.values()} == {"5"}
    for name, (one, true) in all.items():
        held.until(one, told_again(held, name, true))
        assert held.words(one) == ["delivered"]


def told_again(stage: Stage, name: str, true: Signed) -> Callable[[NotificationView], bool]:
    return lambda shown: stage.notary.post(name, true).status == 200 and shown.state == "delivered"


def test_a_service_that_dies_before_it_answers_has_heard(held: Stage) -> None:
    """The provider knows of no answer, and says it again to the next one."""
    one, true = caught(held, "sendgrid")
    held.armed.touch()
    with pytest.raises((OSError, http.client.HTTPException)):
        held.notary.post("sendgrid", true)
    assert held.process is not None
    assert held.process.wait(SOON_S) == -signal.SIGKILL, "inconclusive: the kill before its answer did not land"
    assert held.shown(one).state == "delivered"
    before = held.shown(one)

    held.end()
    held.armed.unlink()
    held.start()
    assert held.notary.post("sendgrid", true).json == {"status": "recorded", "reports": 1}
    assert held.shown(one) == before
