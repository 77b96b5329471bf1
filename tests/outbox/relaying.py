"""Starting relays that may die, and looking at what they left."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.outbox import relay_process
from tests.outbox.relay_process import Plan

import semel
from semel.adapters.ledgers.sqlite import SqliteLedger
from semel.values.notification import Notification
from semel.values.outbox import Shown

SOON_S = 60.0
LOOK_S = 0.05


@contextmanager
def relay(plan: Plan, said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A relay in a process of its own; it does not outlive the block."""
    command = [sys.executable, "-W", "error", relay_process.__file__, msgspec.json.encode(plan).decode()]
    found_at = [str(Path(semel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))}
    with said.open("ab") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


class Box:
    """An outbox in SQLite, seen from outside. It is opened for each question: a relay is killed beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, notifications: Sequence[Notification]) -> None:
        self._with(lambda ledger: ledger.outbox.add(notifications))

    def shown(self, notifications: Sequence[Notification]) -> list[Shown]:
        async def ask(ledger: SqliteLedger) -> list[Shown]:
            found = [await ledger.outbox.show(one.id) for one in notifications]
            return [one for one in found if one is not None]

        shown: list[Shown] = self._with(ask)
        return shown

    def until(
        self, notifications: Sequence[Notification], true: Callable[[list[Shown]], bool], said: Path
    ) -> list[Shown]:
        ends = time.monotonic() + SOON_S
        while not true(now := self.shown(notifications)):
            if time.monotonic() > ends:
                pytest.fail(f"waited {SOON_S:g} s; {[one.state for one in now]}; they said: {said.read_text()[-4000:]}")
            time.sleep(LOOK_S)
        return now

    def _with(self, ask: Callable[[SqliteLedger], Any]) -> Any:
        async def story() -> Any:
            ledger = SqliteLedger(str(self.path))
            try:
                return await ask(ledger)
            finally:
                await ledger.close()

        return asyncio.run(story())
