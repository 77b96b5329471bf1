"""An event that kills every process that handles it is given up on, and takes no others along."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

import pytest
from tests.proof.scene import Scene, times

from semel.testing.folder_source import FolderSource
from semel.values.effect import Effect

MAX_ATTEMPTS = 3
INNOCENT = ("a", "b", "c", "d")
DELIVERIES = ("a", "b", "poison", "c", "d", "a")  # one batch
MAX_DEATHS = 3 * MAX_ATTEMPTS  # a process that dies for ever must end the test, not hang it


def deaths_until_the_end(scene: Scene) -> int:
    for deaths in range(MAX_DEATHS):
        code = scene.run(poison="poison")
        if code == 0:
            return deaths
        assert code == -signal.SIGKILL, scene.said()
    raise AssertionError(f"still dying after {MAX_DEATHS} deaths")


@pytest.mark.parametrize("effect", ["transaction", "keyed", "fenced", "retry"])
def test_poison_is_dead_lettered_and_the_innocent_of_its_batch_are_done(tmp_path: Path, effect: str) -> None:
    scene = Scene(tmp_path, cast(Effect, effect), max_attempts=MAX_ATTEMPTS)
    scene.deliver(*DELIVERIES)
    assert deaths_until_the_end(scene) == MAX_ATTEMPTS, "each attempt died, and there was none after the last"
    assert FolderSource(tmp_path / "source").left() == []
    entries = scene.entries()
    poison = entries.pop("poison")
    assert poison.state == "dead"
    assert f"{MAX_ATTEMPTS} attempts" in poison.reason
    assert poison.event is not None, "it is kept, to be looked at"
    assert {name: entry.state for name, entry in entries.items()} == dict.fromkeys(INNOCENT, "done")
    assert max(entry.attempts for entry in entries.values()) <= 3, "only the first two deaths were shared"
    happened = times(scene.rows())
    assert set(happened) - {"poison"} == set(INNOCENT)
    if effect == "transaction":
        assert happened == dict.fromkeys(INNOCENT, 1), "what the poison wrote was rolled back with it"
    else:
        assert [row.attempt for row in scene.rows() if row.event == "poison"] == [1, 2, 3]


def test_poison_that_must_not_run_twice_is_listed_after_its_first_death(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "park", max_attempts=MAX_ATTEMPTS)
    scene.deliver(*DELIVERIES)
    assert deaths_until_the_end(scene) == 1
    assert scene.entries()["poison"].state == "uncertain"
    scene.check((*INNOCENT, "poison"))
