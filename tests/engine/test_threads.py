"""Sync handlers that hang, or that want to end the process: they cost nobody else anything."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event


@both_ledgers
def test_a_sync_handler_that_hangs_keeps_no_place_from_the_others(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        go = threading.Event()
        async with app_on(ledger, tmp_path, concurrency=2, lease=0.3) as app:

            @app.on("hang", timeout=0.1, max_attempts=50)
            def hang(event: Event, ctx: Context) -> None:
                go.wait(60)

            @app.on("fine")
            def fine(event: Event, ctx: Context) -> str:
                return "ran"

            callers = [asyncio.create_task(app.process(message(f"h{number}", "hang"))) for number in range(4)]
            await asyncio.sleep(0.1)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            async with asyncio.timeout(20):
                assert (await app.process(message("f", "fine"))).result == "ran"
        go.set()

    run(story())


@both_ledgers
def test_sys_exit_in_a_handler_ends_its_run_and_nothing_else(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("async", max_attempts=1)
            async def leaves(event: Event, ctx: Context) -> None:
                sys.exit(3)

            @app.on("sync", max_attempts=1)
            def leaves_too(event: Event, ctx: Context) -> None:
                sys.exit(3)

            for kind in ("async", "sync"):
                outcome = await app.process(message(kind, kind))
                assert outcome.status == "dead"
                assert "SystemExit" in outcome.reason

    run(story())
