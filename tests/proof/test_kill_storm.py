"""Two workers, the same events for both, and someone who kills one of them again and again."""

from __future__ import annotations

import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest
from tests.proof.scene import Scene

from semel.values.effect import Effect

DUPLICATES = 0.3
KILL_EVERY_S = 0.3
WORKERS = ("one", "two")
LANES = 4  # handlers of one worker that run at a time
BATCH = 8
NEVER = 10_000  # attempts: nobody is given up on because a stranger kills processes


def storm(home: Path, effect: str, *, events: int, seconds: float) -> None:
    dice = random.Random(f"{effect} {events}")
    at_a_time = 1 if effect == "transaction" else LANES * len(WORKERS)  # a transaction holds the one write lock
    handler_s = seconds * at_a_time / events  # undisturbed the work would last as long as the storm: kills only add
    names = [f"event-{number}" for number in range(events)]
    scene = Scene(
        home,
        cast(Effect, effect),
        handler_s=handler_s,
        concurrency=LANES,
        at_most=BATCH,
        max_attempts=NEVER,
        lease_s=1.0,
    )
    for worker in WORKERS:
        deliveries = names + dice.sample(names, int(events * DUPLICATES))
        dice.shuffle(deliveries)
        scene.deliver(*deliveries, source=worker)
    landed = 0
    with ExitStack() as stack:

        def start(worker: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(scene.process(source=worker))

        running = {worker: start(worker) for worker in WORKERS}
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(dice.uniform(0.5, 1.5) * KILL_EVERY_S)
            worker = dice.choice(WORKERS)
            if running[worker].poll() is None:
                running[worker].kill()
                landed += running[worker].wait() == -9
                running[worker] = start(worker)
        assert [process.wait(seconds + 300) for process in running.values()] == [0, 0], scene.said()
    assert landed >= seconds / KILL_EVERY_S / 2, f"inconclusive: only {landed} kills landed"
    scene.check(names, WORKERS)


@pytest.mark.long
@pytest.mark.parametrize("effect", ["transaction", "keyed", "fenced", "retry", "park"])
def test_a_storm_of_kills_loses_nothing_and_doubles_nothing(tmp_path: Path, effect: str) -> None:
    storm(tmp_path, effect, events=1_500, seconds=30)
