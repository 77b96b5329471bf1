"""Kill the process between the claim and the settle of an event whose key cannot be computed for one of two handlers.

The other handler works in a transaction of the ledger, so that each of its effects is seen, once or twice:

    claim (act, no_key) | act: effect and settle | no_key: its dead letter is settled | ack
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.proof.scene import Scene, document, times
from tests.proof.worker_process import NO_KEY_HANDLER, app_of

from semel.core.crash_points import Boundary
from semel.core.routing import NO_KEY
from semel.ports import Entry
from semel.testing.folder_source import FolderSource

BETWEEN_CLAIM_AND_SETTLE = [
    (Boundary.AFTER_CLAIM, 1),
    (Boundary.HANDLER_START, 1),
    (Boundary.HANDLER_START, 2),
    (Boundary.HANDLER_END, 1),
    (Boundary.HANDLER_END, 2),
    (Boundary.BEFORE_SETTLE, 1),
]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path, "transaction", no_key=True)
    scene.deliver("a")
    return scene


def dead_letters(scene: Scene) -> Sequence[Entry]:
    async def list_them() -> Sequence[Entry]:
        async with app_of(scene.plan) as app:
            return await app.entries("dead")

    return asyncio.run(list_them())


def check(scene: Scene) -> None:
    """One dead letter, one effect, nothing left at the source; a redelivery changes nothing."""
    assert FolderSource(scene.home / "source").left() == []
    (dead_letter,) = dead_letters(scene)
    assert dead_letter.handler == NO_KEY_HANDLER
    assert dead_letter.reason.startswith(NO_KEY)
    assert dead_letter.event == document("a")
    assert times(scene.rows()) == {"a": 1}
    again = scene.deliver_again(["a"])["a"]
    assert {part.handler: part.status for part in again.parts} == {"act": "duplicate", NO_KEY_HANDLER: "duplicate"}
    assert [one.key for one in dead_letters(scene)] == [dead_letter.key]
    assert times(scene.rows()) == {"a": 1}


@pytest.mark.parametrize(("boundary", "hit"), BETWEEN_CLAIM_AND_SETTLE)
def test_a_kill_before_the_dead_letter_is_settled_leaves_one_dead_letter_and_one_effect(
    scene: Scene, boundary: Boundary, hit: int
) -> None:
    scene.run_until_killed(boundary.value, hit)
    assert dead_letters(scene) == [], "inconclusive: the dead letter was settled before the process was killed"
    scene.run_to_the_end()
    check(scene)


def test_a_kill_after_the_dead_letter_is_settled_leaves_it_alone(scene: Scene) -> None:
    scene.run_until_killed(Boundary.BEFORE_ACK.value, 1)
    scene.run_to_the_end()
    check(scene)
