"""A process that stands still past its lease (a paused machine, a long garbage collection) and then goes on.

Worker A is stopped by SIGSTOP, worker B takes over and settles, A goes on. Whatever A does then, its settle is refused.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.proof.scene import Row, Scene, wait_until
from tests.proof.worker_process import IN_HANDLER

from semel.values.effect import Effect

OUTSIDE_EFFECTS = ("keyed", "fenced", "retry", "park")  # a transaction keeps the others out, see below
BEFORE_THE_HANDLER = "handler_start"
STALLS_S = 1.5  # the lease of the process that stalls: a busy machine comes to its handler in this time
OVERTAKES_S = 20.0  # that of the other one, which must not be lost on a busy machine
PROBES_S = 3.0  # the same with a probe, which is asked again after one lease
AFTER_THE_EFFECT = ("handler_end", "before_settle")
sync_and_async = pytest.mark.parametrize(
    "sync", [pytest.param(False, id="async"), pytest.param(True, id="sync", marks=pytest.mark.long)]
)


def overtaken(home: Path, effect: str, boundary: str, **settings: Any) -> tuple[Scene, list[Row]]:
    """A stops at the boundary, B ends the event, A goes on. Returns the effects of both, in order."""
    scene = Scene(home, cast(Effect, effect), lease_s=STALLS_S, **settings)
    scene.deliver("a")
    with scene.stopped(boundary, 1, answers="A") as stopped:
        scene.run_to_the_end(answers="B", lease_s=PROBES_S if scene.plan.probe else OVERTAKES_S)
        assert scene.answers("B")[-1] == "ack"
        assert scene.answers("A") == []
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(30) == 0, scene.said()
    assert scene.answers("A") == ["retry"], "its settle was refused: it must not claim that it has done it"
    return scene, scene.rows()


def only_the_second_acted(scene: Scene, rows: list[Row]) -> None:
    scene.check(("a",))
    state = scene.entries()["a"].state
    if scene.effect == "park" and not scene.plan.probe:
        assert (rows, state) == ([], "uncertain"), "B must not run the handler, and A did not"
    else:
        assert ([row.attempt for row in rows], state) == ([2], "done")


@sync_and_async
@pytest.mark.parametrize("effect", OUTSIDE_EFFECTS)
def test_a_stalled_process_without_a_check_acts_when_it_wakes_up(tmp_path: Path, effect: str, sync: bool) -> None:
    """It stalls inside its handler, on the line before the effect. Nothing can stop it there but `ctx.check()`."""
    scene, rows = overtaken(tmp_path, effect, IN_HANDLER, sync=sync)
    scene.check(("a",))
    state = scene.entries()["a"].state
    if effect == "park":
        (late,) = rows
        assert (late.attempt, state) == (1, "uncertain"), "B must not run the handler: it lists the event"
        return
    in_time, late = rows
    assert (in_time.attempt, late.attempt, state) == (2, 1, "done"), "A's effect came last, or this proves nothing"
    assert late.token < in_time.token
    assert late.key == in_time.key
    assert late.applied == (effect != "fenced"), "a fenced resource refuses the lower token"


@sync_and_async
@pytest.mark.parametrize("effect", OUTSIDE_EFFECTS)
def test_a_stalled_process_that_checks_does_not_act_when_it_wakes_up(tmp_path: Path, effect: str, sync: bool) -> None:
    only_the_second_acted(*overtaken(tmp_path, effect, IN_HANDLER, sync=sync, check=True))


@sync_and_async
@pytest.mark.parametrize("effect", OUTSIDE_EFFECTS)
def test_a_process_that_stalls_before_its_handler_does_not_run_it(tmp_path: Path, effect: str, sync: bool) -> None:
    """Semel checks the lease itself between the start of a run and the handler."""
    only_the_second_acted(*overtaken(tmp_path, effect, BEFORE_THE_HANDLER, sync=sync))


@sync_and_async
def test_a_probe_that_truthfully_answers_not_yet_doubles_no_effect_of_a_holder_that_checks(
    tmp_path: Path, sync: bool
) -> None:
    only_the_second_acted(*overtaken(tmp_path, "park", IN_HANDLER, sync=sync, check=True, probe=True))


@sync_and_async
def test_a_probe_cannot_make_up_for_a_holder_that_does_not_check(tmp_path: Path, sync: bool) -> None:
    """What the guarantee of `park` with a probe says, and why it asks for `ctx.check()`."""
    _, rows = overtaken(tmp_path, "park", IN_HANDLER, sync=sync, probe=True)
    assert [row.attempt for row in rows] == [2, 1]


@sync_and_async
def test_a_stalled_transaction_that_checks_is_rolled_back_and_happens_once(tmp_path: Path, sync: bool) -> None:
    scene = Scene(tmp_path, "transaction", sync=sync, check=True, lease_s=STALLS_S)
    scene.deliver("a")
    with scene.stopped(IN_HANDLER, 1, answers="A") as stopped:
        time.sleep(1.2 * STALLS_S)  # nobody can take over: it holds the write lock
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(30) == 0, scene.said()
    scene.check(("a",))
    assert "retry" in scene.answers("A"), "inconclusive: the run that stalled was not lost"
    assert [row.attempt for row in scene.rows()] == [2]


@pytest.mark.parametrize("boundary", AFTER_THE_EFFECT)
@pytest.mark.parametrize("effect", OUTSIDE_EFFECTS)
def test_who_comes_back_after_its_effect_cannot_settle(tmp_path: Path, effect: str, boundary: str) -> None:
    scene, rows = overtaken(tmp_path, effect, boundary)
    scene.check(("a",))
    state = scene.entries()["a"].state
    if effect == "park":
        assert ([row.attempt for row in rows], state) == ([1], "uncertain")
    else:
        assert ([row.attempt for row in rows], state) == ([1, 2], "done")
        assert rows[0].token < rows[1].token


@pytest.mark.parametrize(
    "uvloop", [pytest.param(False, id="asyncio"), pytest.param(True, id="uvloop", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("effect", [*OUTSIDE_EFFECTS, "transaction"])
def test_who_comes_back_before_its_handler_has_started_does_not_run_it(
    tmp_path: Path, effect: str, uvloop: bool
) -> None:
    """uvloop keeps the time of its last iteration: it does not notice a stall before the next one."""
    only_the_second_acted(*overtaken(tmp_path, effect, "after_claim", uvloop=uvloop))


@pytest.mark.long
@pytest.mark.parametrize("boundary", [IN_HANDLER, *AFTER_THE_EFFECT])
@pytest.mark.parametrize("effect", OUTSIDE_EFFECTS)
def test_who_comes_back_while_another_acts_cannot_settle_for_it(tmp_path: Path, effect: str, boundary: str) -> None:
    scene = Scene(tmp_path, cast(Effect, effect), lease_s=STALLS_S)
    scene.deliver("a")
    with scene.stopped(boundary, 1, answers="A") as late:
        with scene.stopped("before_settle", 1, answers="B", lease_s=30.0) as holder:
            late.send_signal(signal.SIGCONT)
            wait_until(lambda: bool(scene.answers("A")), "A's answer")
            assert scene.answers("A") == ["retry"]
            assert scene.entries()["a"].state == "leased", "B's lease, which A's token cannot end"
            holder.send_signal(signal.SIGCONT)
            assert [late.wait(30), holder.wait(30)] == [0, 0], scene.said()
    assert scene.answers("B")[-1] == "ack"
    scene.check(("a",))
    assert scene.entries()["a"].attempts == 2


@pytest.mark.parametrize(("boundary", "hit"), [("handler_start", 1), ("before_settle", 1), ("before_commit", 2)])
def test_a_stopped_transaction_keeps_everybody_out_and_then_happens_once(
    tmp_path: Path, boundary: str, hit: int
) -> None:
    scene = Scene(tmp_path, "transaction")
    scene.deliver("a")
    with scene.stopped(boundary, hit, answers="A") as stopped:
        with scene.process(answers="B") as other:
            wait_until(lambda: bool(scene.answers("B")), "B to give up waiting for the write lock")
            assert scene.answers("B") == ["retry"]
            stopped.send_signal(signal.SIGCONT)
            assert stopped.wait(30) == 0, scene.said()
            assert other.wait(30) == 0, scene.said()
    scene.check(("a",))
    assert scene.answers("A")[-1:] == ["ack"]
