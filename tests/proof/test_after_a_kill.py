"""One kill -9 with many runs in flight: after the restart no handler waits for another, and fresh events flow."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apsw
from tests.proof import inbox_process
from tests.proof.inbox_process import LEASE_S, accept, app_on, pump_of
from tests.proof.scene import wait_until

import semel
from semel import Context, Event

COUNT = 32
SLOW_S = 4.0  # 32 of them one after the other would take two minutes
FRESH = 10
SOON_S = 15.0  # the slow runs beside them, on a busy machine; one after the other none would be done by then


def killed_with_everything_in_flight(folder: Path) -> None:
    """Leaves 32 slow and 32 quick runs behind, each counted as one attempt that vanished."""
    begun = folder / "begun"
    command = [sys.executable, inbox_process.__file__, str(folder / "semel.db"), str(COUNT), str(begun)]
    found_at = [str(Path(semel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))}
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_until(lambda: begun.exists() and len(begun.read_text().split()) == 2 * COUNT, "all runs to begin")
        finally:
            process.kill()
        assert process.wait(30) == -signal.SIGKILL, "inconclusive: it ended by itself"
    time.sleep(LEASE_S + 0.1)
    with apsw.Connection(str(folder / "semel.db")) as connection:  # as if the leases of the inbox had lapsed, too
        connection.execute("update semel_inbox set due_ms = 0")
    connection.close()


def test_after_a_kill_every_run_is_taken_over_beside_the_others_and_fresh_events_flow(tmp_path: Path) -> None:
    killed_with_everything_in_flight(tmp_path)
    done: dict[str, list[int]] = {}

    async def slow(event: Event, ctx: Context) -> None:
        await asyncio.sleep(SLOW_S)
        done.setdefault(event.id, []).append(ctx.attempt)

    async def quick(event: Event, ctx: Context) -> None:
        done.setdefault(event.id, []).append(ctx.attempt)

    async def story() -> None:
        async with app_on(tmp_path / "semel.db", slow, quick) as app:
            pump = pump_of(app)
            running = asyncio.create_task(pump.run())
            begun = time.monotonic()
            try:
                await until(lambda: all(f"quick-{number}" in done for number in range(COUNT)), SLOW_S, "the quick runs")
                for number in range(FRESH):
                    await accept(app, "quick", f"fresh-{number}")
                    pump.wake()
                await until(lambda: all(f"fresh-{number}" in done for number in range(FRESH)), SLOW_S, "fresh events")
                await until(lambda: len(done) == 2 * COUNT + FRESH, SOON_S, "the slow runs")
                assert time.monotonic() - begun < SOON_S
            finally:
                await pump.stop(10)
                await running
            assert [depth for depth in await app.ledger.depths() if depth.waiting or depth.taken] == []  # type: ignore[attr-defined]
            assert await app.entries("dead") == []

    asyncio.run(story())
    assert {id: runs for id, runs in done.items() if not id.startswith("fresh")} == {
        f"{type}-{number}": [2] for type in ("slow", "quick") for number in range(COUNT)
    }, "each taken over once, none taken again while it waited"


async def until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, f"waited {within_s:g} s for {what}"
        await asyncio.sleep(0.01)
