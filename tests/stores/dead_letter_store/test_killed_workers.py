"""A worker is killed between the steps of two real stores; the next one ends what it began."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.stores.dead_letter_store import dying_worker
from tests.stores.dead_letter_store.broken import LEDGERS

from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.ports import EntryQuery
from semel.values.claim import Busy, DeadLetter, Granted, Settled, Settlement, Verdict
from semel.values.outcome import Done, Reject

ROOT = Path(__file__).parent.parent.parent.parent
WAIT_S = 30.0


@pytest.mark.parametrize(
    ("where", "end", "listed"),
    [
        ("before keep in letterbox", "dead", ["second"]),
        ("after keep in letterbox", "dead", ["second"]),
        ("after keep in letterbox", "done", []),
        ("after settle in ledger", "", ["first"]),
    ],
)
def test_a_killed_worker_leaves_one_dead_letter_or_none(
    where: str, end: str, listed: list[str], redis_url: str, tmp_path: Path
) -> None:
    dead_letters = str(tmp_path / "letters.db")
    worker = subprocess.run(
        [sys.executable, "-m", "tests.stores.dead_letter_store.dying_worker", redis_url, dead_letters, where],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert worker.returncode == -signal.SIGKILL, worker.stderr

    async def go_on() -> list[str]:
        both = LedgerWithDeadLetterStore(LEDGERS["redis"].from_url(redis_url), LEDGERS["sqlite"](dead_letters))
        claim = dying_worker.harness().claim("a", lease_ms=60_000, retention_ms=600_000)
        verdict: Verdict = Busy(0)
        deadline = time.monotonic() + WAIT_S
        while isinstance(verdict, Busy) and time.monotonic() < deadline:
            await asyncio.sleep(verdict.after_ms / 1000)
            (verdict,) = await both.claim([claim])
        if end:
            assert isinstance(verdict, Granted)
            assert verdict.takeover
            outcome = Done(b"1") if end == "done" else Reject("second")
            dead_letter = None if end == "done" else DeadLetter(b"{}", verdict.attempt)
            assert await both.settle([Settlement(verdict.lease, outcome, dead_letter)]) == [True]
        else:
            assert verdict == Settled(Reject("first"))
        found = [entry.reason for state in ("dead", "uncertain") for entry in await both.entries(EntryQuery(state))]
        await both.close()
        return found

    assert asyncio.run(go_on()) == listed
