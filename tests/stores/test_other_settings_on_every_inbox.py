"""Two processes with different settings on one ledger: neither gives up the inbox items that the other accepted."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.stores.commands import migrated, semel
from tests.stores.settings_process import app_with

from semel.app import IncomingMessage, to_bytes
from semel.core.dead_letter_store import inbox_of
from semel.core.inbox_flow import MISMATCHED, Acceptor
from semel.testing.child_processes import start_child

ROOT = Path(__file__).parents[2]
EVENTS = 30
WAIT_S = 60.0  # the machine may be busy

pytestmark = pytest.mark.parametrize("store", ["sqlite", "postgres"], indirect=True)


class Scene:
    def __init__(self, ledger: str, folder: Path) -> None:
        self.ledger = migrated(ledger)
        self.folder = folder
        self.accepted: dict[str, str] = {}  # keys by event

    def accept(self, key: str, topic: str) -> None:
        async def story() -> None:
            async with app_with(self.ledger, key, topic, self.folder / "unused") as app:
                inbox = inbox_of(app.ledger)
                assert inbox is not None
                acceptor = Acceptor(inbox, app.planner, lambda: None)
                for number in range(EVENTS):
                    body = {"id": f"e{number}", "type": topic, "data": {"n": number}}
                    outcome = await acceptor.accept(IncomingMessage(to_bytes(body)))
                    assert outcome.status == "accepted"
                    self.accepted[f"e{number}"] = outcome.key

        asyncio.run(story())

    @contextmanager
    def process(self, name: str, key: str, topic: str) -> Iterator[None]:
        arguments = [self.ledger, key, topic, str(self.folder / name)]
        command = [sys.executable, "-m", "tests.stores.settings_process", *arguments]
        process = start_child(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.stdin.close()
            process.wait(30)
            process.stdout.close()

    def runs(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def listed(self, state: str, reason: str = "") -> Any:
        return semel("events", "list", "--state", state, "--reason", reason, "--json", "--ledger", self.ledger).json

    @staticmethod
    def until(holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < ends
            time.sleep(0.1)


@pytest.fixture
def scene(store: str, tmp_path: Path) -> Scene:
    return Scene(store, tmp_path)


@pytest.mark.parametrize("key", ["content", "business"])
def test_a_process_with_another_key_runs_each_item_once_under_the_key_it_was_accepted_with(
    scene: Scene, key: str
) -> None:
    scene.accept("event", "order.created")
    with scene.process("other", key, "order.created"), scene.process("own", "event", "order.created"):
        scene.until(lambda: len(scene.runs("own") + scene.runs("other")) >= EVENTS)
        scene.until(lambda: scene.listed("accepted") == [])
    runs = scene.runs("own") + scene.runs("other")
    assert sorted(runs) == sorted(f"{event} {accepted}" for event, accepted in scene.accepted.items())
    assert scene.listed("dead") == []


def test_a_process_with_another_key_alone_runs_them_too(scene: Scene) -> None:
    scene.accept("event", "order.created")
    with scene.process("other", "content", "order.created"):
        scene.until(lambda: scene.listed("accepted") == [])
    assert len(scene.runs("other")) == EVENTS
    assert scene.listed("dead") == []


def test_a_process_with_other_topics_leaves_the_items_to_the_one_that_has_theirs(scene: Scene) -> None:
    scene.accept("event", "order.created")
    with scene.process("other", "event", "order.deleted"):
        scene.until(lambda: len(scene.listed("accepted", MISMATCHED)) == EVENTS)  # each was taken, and postponed
        hints = semel("status", "--json", "--ledger", scene.ledger).json["hints"]
        assert any(re.search(rf"\b{EVENTS}\b.*inbox", hint) for hint in hints)
        with scene.process("own", "event", "order.created"):
            scene.until(lambda: len(scene.runs("own")) == EVENTS)
            scene.until(lambda: scene.listed("accepted") == [])
    assert len(set(scene.runs("own"))) == EVENTS
    assert scene.runs("other") == []
    assert scene.listed("dead") == []
