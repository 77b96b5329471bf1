"""A relay that is stopped for longer than its lease, as a virtual machine that is paused, and then goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.proof.outbox.step_process import FIRST_BYTE, Asked, Plan
from tests.proof.outbox.stores import Store, add
from tests.proof.outbox.test_steps import start

from semel.core.relay import RelayBoundary
from semel.testing.crash import landing
from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Notification

SOON_S = 60.0
LOOK_S = 0.05
TIMEOUT_S, MARGIN_S = 8.0, 0.5  # the timeout is not waited for, but the lease of the stopped one is
SAID = Notification(key="n", kind="k", recipient="+491", channel="sms", body="text", provider="p")
STATE = "select state, reason from {}notification"
LAPSE = "update {}dispatch set due_ms = 0 where taken"  # as if its lease had come to its end


class Stopped:
    """One relay, stopped at a step with the notification in hand; and another one beside it."""

    def __init__(self, store: Store, home: Path, kind: str, step: str, bug: bool = False) -> None:
        self._store = store
        self._simulator = SimulatorProcess()
        self._simulator.start()
        self._home = home
        self._kind, self._step, self._bug = kind, step, bug
        self._processes: list[Any] = []

    @property
    def simulator(self) -> SimulatorProcess:
        return self._simulator

    def stop(self, timeout_s: float = TIMEOUT_S) -> None:
        marker = self._home / "landed"
        plan = self._plan(step=self._step, marker=str(marker), stops=True, timeout_s=timeout_s)
        self._processes.append(start(plan, self._home / "said"))
        self.until(lambda: marker.exists() and marker.read_text() == landing(self._step), "it did not stop")

    def another(self) -> None:
        """What the stopped one has is there to be taken."""
        self._store.rows(LAPSE)
        self._processes.append(start(self._plan(), self._home / "said"))

    def go_on(self) -> None:
        os.kill(self._processes[0].pid, signal.SIGCONT)

    def state(self) -> str:
        ((state, _),) = self._store.rows(STATE)
        return str(state)

    def got(self) -> int:
        return len(self._simulator.phone())

    def until(self, true: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + SOON_S
        while not true():
            assert time.monotonic() < ends, f"{what}; {(self._home / 'said').read_text()[-3000:]}"
            time.sleep(LOOK_S)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
        self._simulator.stop()

    def _plan(self, **more: Any) -> Plan:
        asked = (Asked("p", self._kind),)
        known = {"timeout_s": TIMEOUT_S, "margin_s": MARGIN_S, "bug": self._bug}
        return Plan(self._store.url, f"http://127.0.0.1:{self._simulator.port}", asked, **{**known, **more})


@pytest.fixture
def scene(store: Store, tmp_path: Path, kind: str, step: str, request: pytest.FixtureRequest) -> Iterator[Stopped]:
    add(store, [SAID])
    bug = "bug" in request.fixturenames and bool(request.getfixturevalue("bug"))
    scene = Stopped(store, tmp_path, kind, step, bug)
    yield scene
    scene.end()


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize(("kind", "step"), [("twilio", RelayBoundary.AFTER_CROSS.value), ("twilio", FIRST_BYTE)])
def test_a_relay_that_goes_on_after_its_lease_sends_nothing(scene: Stopped) -> None:
    """The other one has proven that nothing left, and has sent it."""
    scene.stop(timeout_s=1.0)
    time.sleep(1.0 + MARGIN_S)  # not a guess: the stopped one's lease is over then, by its own clock too
    scene.another()
    scene.until(lambda: scene.state() == "accepted", "it was not sent")
    scene.go_on()
    time.sleep(0.5)  # were it to send, it would do so at once
    assert (scene.got(), scene.state()) == (1, "accepted")


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize(("kind", "step"), [("vonage", RelayBoundary.AFTER_SEND.value)])
def test_a_late_answer_ends_a_doubt_that_nobody_else_could_end(scene: Stopped) -> None:
    scene.stop()
    scene.another()
    scene.until(lambda: scene.state() == "uncertain", "nobody has found it")
    scene.go_on()
    scene.until(lambda: scene.state() == "accepted", "the late answer was not taken")
    assert scene.got() == 1


@pytest.mark.parametrize("on", ["sqlite"])
@pytest.mark.parametrize(("kind", "step"), [("twilio", RelayBoundary.AFTER_SEND.value)])
@pytest.mark.parametrize("bug", [False, True], ids=["as it is", "without its token"])
def test_a_late_refusal_says_nothing_of_what_another_relay_is_sending(scene: Stopped, bug: bool) -> None:
    """The first one was told 429; while it was stopped the second has sent, and waits for the answer."""
    scene.simulator.lie("429", "twilio")
    scene.stop()
    scene.simulator.answer_after(4.0)
    scene.another()
    scene.until(lambda: scene.got() == 1, "the other one has not sent it")
    assert scene.state() == "sending", "inconclusive: it was answered before the first went on"
    scene.go_on()
    scene.until(lambda: scene.state() == "accepted", "it was not sent")
    assert scene.got() == (2 if bug else 1)
