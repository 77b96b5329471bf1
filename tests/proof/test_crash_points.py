"""Kill the process at every boundary, for every effect; start another one; count the effects.

Each process works on the same five deliveries, in two batches:

    a b a′ | c b′            claims: (a b), a′, (c b′)      commits: claim, settle, claim, claim, settle
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeAlias, cast

import pytest
from tests.proof.scene import Scene, exactly_once, times
from tests.proof.worker_process import LEASE_S

from semel.core.crash_points import Boundary
from semel.values.effect import EFFECTS, Effect

Crash: TypeAlias = tuple[Boundary, str, int]

DELIVERIES = ("a", "b", "a", "c", "b")
EVENTS = ("a", "b", "c")
BATCH = 3

HITS = {  # which announcements of a boundary are tried
    Boundary.BEFORE_CLAIM: (1, 2, 3),
    Boundary.BEFORE_COMMIT: (1, 2, 3, 4, 5),
    Boundary.AFTER_COMMIT: (1, 2, 3, 4, 5),
    Boundary.AFTER_CLAIM: (1, 2, 3),
    Boundary.HANDLER_START: (1, 3),
    Boundary.HANDLER_END: (1, 3),
    Boundary.BEFORE_SETTLE: (1, 2),
    Boundary.AFTER_SETTLE: (1, 2),
    Boundary.BEFORE_ACK: (1, 2),
    Boundary.AFTER_ACK: (1, 2),
}
CRASHES = [(boundary, effect, hit) for boundary, hits in HITS.items() for effect in EFFECTS for hit in hits]
FIRST = {(boundary, effect, hits[0]) for boundary, hits in HITS.items() for effect in EFFECTS}

HITS_IN_RECOVERY = dict.fromkeys(Boundary, (1,)) | {
    Boundary.BEFORE_COMMIT: (1, 2, 3, 4),  # claim, give back, claim alone, settle
    Boundary.AFTER_COMMIT: (1, 2, 3, 4),
}
CRASHES_IN_RECOVERY = [
    (boundary, effect, hit) for boundary, hits in HITS_IN_RECOVERY.items() for effect in EFFECTS for hit in hits
]

# One crash while recovering for each boundary and for each effect; `make proof` runs all pairs.
FIRST_IN_RECOVERY = {(boundary, EFFECTS[at % len(EFFECTS)], 1) for at, boundary in enumerate(Boundary)}

CANNOT_HAPPEN: dict[tuple[Boundary, str], str] = {}  # (boundary, effect): why. Every pair can happen.

REPEATS = {  # the effect has happened, the settle has not: whoever may repeat it must be seen to
    (boundary, effect)
    for boundary in (Boundary.HANDLER_END, Boundary.BEFORE_SETTLE)
    for effect in ("keyed", "fenced", "retry")
}


@pytest.fixture
def scene(tmp_path: Path, effect: str) -> Scene:
    scene = Scene(tmp_path, cast(Effect, effect), at_most=BATCH)
    scene.deliver(*DELIVERIES)
    return scene


def once_each(crashes: list[Crash], first: set[Crash]) -> list[Any]:
    """Crashes to run. Those that only repeat a pair of boundary and effect are long."""
    return [pytest.param(*crash, marks=() if crash in first else pytest.mark.long) for crash in crashes]


@pytest.mark.parametrize(("boundary", "effect", "hit"), once_each(CRASHES, FIRST))
def test_a_crash_at_any_boundary_keeps_the_promise(scene: Scene, boundary: Boundary, effect: str, hit: int) -> None:
    scene.run_until_killed(boundary.value, hit)
    scene.run_to_the_end()
    scene.check(EVENTS)
    if (boundary, effect) in REPEATS:
        assert max(times(scene.rows()).values()) == 2, "the crash had no consequence, so this proves nothing"


@pytest.mark.parametrize(("boundary", "effect", "hit"), once_each(CRASHES_IN_RECOVERY, FIRST_IN_RECOVERY))
def test_a_crash_while_recovering_from_a_crash_keeps_the_promise(
    scene: Scene, boundary: Boundary, effect: str, hit: int
) -> None:
    scene.run_until_killed(Boundary.HANDLER_START.value, 1)
    time.sleep(LEASE_S)  # not a guess: leases end by time, and by nothing else
    scene.run_until_killed(boundary.value, hit)
    scene.run_to_the_end()
    scene.check(EVENTS)


@pytest.mark.parametrize("crashes", [CRASHES, CRASHES_IN_RECOVERY], ids=["first", "in recovery"])
def test_no_boundary_is_left_out_for_any_effect(crashes: list[Crash]) -> None:
    every = {(boundary, effect) for boundary in Boundary for effect in EFFECTS}
    assert {(boundary, effect) for boundary, effect, _ in crashes} == every - set(CANNOT_HAPPEN)
    assert set(CANNOT_HAPPEN) <= every
    assert set(CRASHES) >= FIRST, "each pair once in an ordinary run"
    assert set(CRASHES_IN_RECOVERY) >= FIRST_IN_RECOVERY, "each boundary once in an ordinary run"
    assert all(CANNOT_HAPPEN.values()), "each has its reason"


def test_a_run_that_misses_its_boundary_is_inconclusive_not_green(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "retry")
    scene.deliver("a")
    with pytest.raises(AssertionError, match="inconclusive: handler_start 2"):
        scene.run_until_killed("handler_start", 2)


def test_the_check_sees_what_is_doubled_lost_or_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "retry")
    scene.deliver("a", "b", "a")
    scene.run_until_killed("handler_end", 1)
    scene.run_to_the_end()
    scene.check(("a", "b"))
    with pytest.raises(AssertionError, match="every event is listed"):
        scene.check(("a", "b", "c"))
    with pytest.raises(AssertionError):
        exactly_once(scene.rows(), {"a": "done", "b": "done"}, {})
    scene.deliver("a")
    with pytest.raises(AssertionError):
        scene.check(("a", "b"))
