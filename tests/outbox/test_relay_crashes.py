"""A relay that dies between any two steps: before the crossing nothing has left, after it nobody claims to know."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from tests.outbox.relay_process import Plan
from tests.outbox.relaying import SOON_S, Box, relay

from semel.core.relay import Step
from semel.testing.crash import landing
from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Notification

SENT = (Step.AFTER_SEND, Step.AFTER_RECORD)
CROSSED = (Step.AFTER_CROSS, Step.AFTER_SEND)  # and nobody has recorded what came of it


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


@pytest.mark.parametrize("step", list(Step))
@pytest.mark.parametrize("looks_up", [True, False])
def test_a_relay_that_dies_at_any_step_sends_nothing_twice_and_calls_a_doubt_a_doubt(
    tmp_path: Path, simulator: SimulatorProcess, request: pytest.FixtureRequest, step: Step, looks_up: bool
) -> None:
    number = f"+49{crc32(request.node.name.encode())}"
    said, box = tmp_path / "said", Box(tmp_path / "semel.db")
    notification = Notification(key="order-1", kind="shipping", recipient=number, channel="sms", body="On its way")
    box.add([notification])
    plan = Plan(str(box.path), simulator.url("twilio"), looks_up, step=step, marker=str(tmp_path / "landed"))

    def got() -> int:
        return sum(one.to == number for one in simulator.phone())

    with relay(plan, said) as doomed:
        assert doomed.wait(SOON_S) == -signal.SIGKILL, said.read_text()
    assert (tmp_path / "landed").read_text() == landing(step), "inconclusive: the fault did not land"
    assert got() == (1 if step in SENT else 0)

    ends = "uncertain" if step in CROSSED and not looks_up else "accepted"
    with relay(Plan(str(box.path), simulator.url("twilio"), looks_up), said):
        (shown,) = box.until([notification], lambda now: now[0].state == ends, said)
    outcomes = [one.outcome for one in shown.attempts]
    assert outcomes.count("unknown") == (1 if step in CROSSED else 0), "every doubt is in the evidence, and no other"
    assert got() == (0 if ends == "uncertain" and step not in SENT else 1)
