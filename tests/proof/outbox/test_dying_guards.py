"""A refusal leaves its guard to the message that was sent before it, in one commit: on whichever side of it a relay
dies, the customer is told once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.proof.outbox.step_process import Asked, Plan
from tests.proof.outbox.stores import Store, add
from tests.proof.outbox.test_steps import LAPSE, start

from semel.testing.crash import landing
from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Guard, Notification

SOON_S = 60.0
LOOK_S = 0.05
LONG_S, SHORT_S = 3_600.0, 0.001
STATES = "select key, state from {}notification"


@pytest.fixture
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


def said(key: str, window_s: float) -> Notification:
    guard = Guard(window_s=window_s)
    return Notification(
        key=key, kind="k", recipient="+491", channel="sms", body=f"text of {key}", provider="p", guard=guard
    )


def until(true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends, what
        time.sleep(LOOK_S)


@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize(
    ("step", "becomes"), [("before recording refused", "accepted"), ("after recording refused", "failed")]
)
def test_whoever_dies_with_a_refusal_leaves_the_guard_to_who_was_sent(
    store: Store, tmp_path: Path, simulator: SimulatorProcess, step: str, becomes: str
) -> None:
    """Died before: the look-up finds nothing, so it is sent after all, and has the guard itself."""
    plan = Plan(store.url, f"http://127.0.0.1:{simulator.port}", (Asked("p", "twilio"),))
    marker = tmp_path / "landed"

    def state(key: str) -> str:
        return str(dict(store.rows(STATES)).get(key))

    add(store, [said("sent", LONG_S)])
    relay = start(plan, tmp_path / "said")
    until(lambda: state("sent") == "accepted", "the first one was not sent")
    relay.kill()
    relay.join(SOON_S)

    simulator.lie("400", "twilio")
    add(store, [said("refused", SHORT_S)])  # its own window is over, and so it passes
    doomed = start(replace(plan, step=step, marker=str(marker)), tmp_path / "said")
    doomed.join(SOON_S)
    assert doomed.exitcode == -signal.SIGKILL
    assert marker.read_text() == landing(step)

    add(store, [said("third", LONG_S)])
    store.rows(LAPSE)
    relay = start(plan, tmp_path / "said")
    try:
        until(lambda: state("refused") == becomes, "nobody has gone on with it")
        until(lambda: state("third") != "pending", "the third one waits for ever")
    finally:
        relay.kill()
    assert state("third") == "suppressed", "within its window the customer was told already"
    assert len(simulator.phone()) == (2 if becomes == "accepted" else 1)
