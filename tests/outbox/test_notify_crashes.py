"""A process that dies on either side of the commit that holds an event's outcome and its message."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.outbox import notifying_process
from tests.outbox.notifying_process import work

import semel
from semel.core.crash_points import Boundary
from semel.ledgers.sqlite import SqliteLedger
from semel.values.outbox import NotificationQuery

# The first commit is that of the claim.
RECORDED = {
    Boundary.HANDLER_END: False,
    Boundary.BEFORE_SETTLE: False,
    Boundary.BEFORE_COMMIT: False,
    Boundary.AFTER_COMMIT: True,
    Boundary.AFTER_SETTLE: True,
}


def messages(path: Path) -> int:
    async def ask() -> int:
        ledger = SqliteLedger(str(path))
        try:
            return len(await ledger.outbox.find(NotificationQuery()))
        finally:
            await ledger.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("effect", ["transaction", "retry"])
@pytest.mark.parametrize("step", list(RECORDED))
def test_a_message_is_there_exactly_when_its_event_is_recorded(tmp_path: Path, effect: str, step: Boundary) -> None:
    path, marker = tmp_path / "semel.db", tmp_path / "landed"
    found_at = [str(Path(semel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    died = subprocess.run(
        [sys.executable, "-W", "error", notifying_process.__file__, str(path), effect, step.value, str(marker)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))},
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert marker.exists(), f"inconclusive: the crash at {step} did not land"
    assert messages(path) == RECORDED[step]
    assert asyncio.run(work(str(path), effect)) == ("duplicate" if RECORDED[step] else "done")
    assert messages(path) == 1
