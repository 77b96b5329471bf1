"""Redis with `appendfsync everysec` may forget when it is killed, and not only when the power fails: while a sync is
under way, what it has answered stays in its own memory, for up to two seconds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.worker_process import Plan, app_of, calls_outside
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey

from semel.testing.laws.faults import document

SEIZE, INTERRUPT = 0x4206, 0x4207  # of ptrace(2): one thread stands still, the others go on
WAIT_FOR_THREADS = 0x40000000  # __WALL of waitpid(2)
SYNCED_S = 2.5  # everything before has been synced, and the next sync is due
EVENTS = [f"park-{number}" for number in range(5)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    try:
        server = Valkey(tmp_path / "valkey", {"appendonly": "yes", "appendfsync": "everysec"})
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


def hold_the_next_sync(server: Valkey) -> int:
    """A disk that takes its time: the thread that syncs stands still. Returns its id."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes, trace.restype = [ctypes.c_long] * 4, ctypes.c_long
    threads = Path(f"/proc/{server.pid}/task")
    for thread in threads.iterdir() if threads.exists() else ():
        if "aof" in (thread / "comm").read_text():
            if trace(SEIZE, int(thread.name), 0, 0) or trace(INTERRUPT, int(thread.name), 0, 0):
                pytest.skip(f"a thread may not be held here: {os.strerror(ctypes.get_errno())}")
            return int(thread.name)
    pytest.skip("this server or system does not show the thread that syncs")


def test_a_server_killed_while_it_syncs_forgets_what_it_has_answered(tmp_path: Path, server: Valkey) -> None:
    plan = Plan(str(tmp_path), f"{server.url}?timeout=2", ("park",))

    async def deliver(*events: str) -> list[str]:
        async with app_of(plan) as app:
            return [(await app.process(document(event))).status for event in events]

    assert asyncio.run(deliver("park-before")) == ["done"]
    time.sleep(SYNCED_S)
    thread = hold_the_next_sync(server)
    assert asyncio.run(deliver(*EVENTS)) == ["done"] * len(EVENTS)
    os.kill(server.pid, signal.SIGKILL)
    os.waitpid(thread, WAIT_FOR_THREADS)  # who holds a thread has to bury it
    server.kill()
    server.start()
    assert asyncio.run(deliver("park-before")) == ["duplicate"], "what was synced is known"
    again = asyncio.run(deliver(*EVENTS))
    assert "done" in again, "inconclusive: nothing was forgotten"
    times = [sum(call.event == event for call in calls_outside(tmp_path)) for event in EVENTS]
    assert max(times) == 2, "and so the effect has doubled"
