"""Closing, forking and ending loops in mid-work: nothing hangs, nothing is lost, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import ConfigError, Context, Event, LedgerUnavailable


def test_closing_in_the_middle_of_work_on_several_loops_loses_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # other tests may have left a ledger open
    app = app_on("sqlite", tmp_path)
    stop = threading.Event()

    @app.on("**")
    async def handle(event: Event, ctx: Context) -> None: ...

    async def load() -> None:
        while not stop.is_set():
            await app.process(message())

    async def story() -> None:
        here = [asyncio.create_task(load()) for _ in range(4)]
        for _ in range(30):
            await asyncio.sleep(0.005)
            await asyncio.wait_for(app.ledger.close(), 10)
        stop.set()
        await asyncio.gather(*here)

    with ThreadPoolExecutor(1) as pool:
        elsewhere = pool.submit(lambda: run(load()))
        run(story())
        elsewhere.result(10)
    run(app.close())
    assert "semel-sqlite" not in [thread.name for thread in threading.enumerate() if thread not in before]


@both_ledgers
def test_closing_lets_a_sync_call_finish(ledger: str, tmp_path: Path) -> None:
    app = app_on(ledger, tmp_path)
    answers: list[str] = []
    begun = threading.Event()

    @app.on("**")
    async def handle(event: Event, ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(0.2)

    caller = threading.Thread(target=lambda: answers.append(app.process_sync(message()).status), daemon=True)
    caller.start()
    begun.wait(5)
    run(app.close())
    caller.join(5)
    assert answers == ["done"]
    assert app.process_sync(message()).status == "done"
    run(app.close())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    app = app_on("sqlite", tmp_path)

    @app.on("**")
    async def handle(event: Event, ctx: Context) -> None: ...

    assert app.process_sync(message()).status == "done"
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # a hang is an exit code too
        try:
            app.process_sync(message())
        except LedgerUnavailable as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert app.process_sync(message()).status == "done"
    run(app.close())


def test_a_loop_that_is_over_leaves_no_engine_and_no_threads(tmp_path: Path) -> None:
    app = app_on("memory", tmp_path)

    @app.on("**")
    def handle(event: Event, ctx: Context) -> None: ...

    before = threading.active_count()
    for _ in range(10):
        assert run(app.process(message())).status == "done"
    gc.collect()
    assert len(app._engines) == 1
    while threading.active_count() > before + 1:  # what has no engine ends by itself
        time.sleep(0.01)


@pytest.mark.parametrize("wrong", [{"lease": -1}, {"lease": 0.0001}, {"lease": float("nan")}, {"retention": 1e300}])
def test_times_that_no_store_can_keep_are_refused(tmp_path: Path, wrong: dict[str, float]) -> None:
    app = app_on("memory", tmp_path)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        app.on("a", **wrong)  # type: ignore[arg-type]
