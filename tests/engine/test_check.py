"""`ctx.check()`: the last line before an effect, in a process that may have stalled past its lease."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run
from tests.engine.faults import FaultyLine

from semel import Context, Event, LeaseLost, Retry, Semel
from semel.core import engine, handler_run
from semel.core.clock import steady_s
from semel.values.claim import Granted

LEASE_S = 1.0

sync_and_async = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Stall:
    """As if the process had been stopped for so long: the loop and its timers notice nothing yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(handler_run, "steady_s", lambda: steady_s() + self.seconds)


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Stall:
    return Stall(monkeypatch)


def story(ledger: str, folder: Path, tell: Callable[[Semel], Awaitable[None]], **options: Any) -> None:
    async def story() -> None:
        async with app_on(ledger, folder, **{"lease": LEASE_S, "random": lambda: 0.0, **options}) as app:
            async with asyncio.timeout(60):
                await tell(app)

    run(story())


def on(app: Semel, handle: Callable[[Event, Context], Any], sync: bool, **options: Any) -> None:
    async def handle_async(event: Event, ctx: Context) -> Any:
        return handle(event, ctx)

    app.on("**", name="h", timeout=None, **options)(handle if sync else handle_async)


@sync_and_async
@both_ledgers
def test_a_check_passes_while_the_lease_lasts_and_is_renewed(ledger: str, tmp_path: Path, sync: bool) -> None:
    async def tell(app: Semel) -> None:
        async def slow(event: Event, ctx: Context) -> str:
            ctx.check()
            await asyncio.sleep(1.5 * LEASE_S)
            ctx.check()
            return "ok"

        def slow_sync(event: Event, ctx: Context) -> str:
            ctx.check()
            time.sleep(1.5 * LEASE_S)
            ctx.check()
            return "ok"

        app.on("**", name="h", timeout=None)(slow_sync if sync else slow)
        assert (await app.process(message())).result == "ok"

    story(ledger, tmp_path, tell)


@sync_and_async
@both_ledgers
def test_a_run_that_a_check_ends_is_lost_and_no_failed_attempt(
    ledger: str, tmp_path: Path, sync: bool, stall: Stall
) -> None:
    async def tell(app: Semel) -> None:
        effects: list[int] = []

        def handle(event: Event, ctx: Context) -> None:
            if ctx.attempt == 1:
                stall.seconds = 2 * LEASE_S
                assert ctx.lost
            ctx.check()
            effects.append(ctx.attempt)

        on(app, handle, sync, effect="retry")
        body = message()
        first = await app.process(body)
        assert (first.status, effects) == ("busy", [])
        stall.seconds = 0.0
        await asyncio.sleep(LEASE_S + 0.1)
        assert (await app.process(body)).status == "done"
        (entry,) = await app.entries()
        assert (effects, entry.attempts, entry.attempt_log) == ([2], 2, ())

    story(ledger, tmp_path, tell)


@both_ledgers
def test_a_check_that_fails_in_one_of_several_tasks_ends_the_run_as_lost(
    ledger: str, tmp_path: Path, stall: Stall
) -> None:
    async def tell(app: Semel) -> None:
        @app.on("**", effect="park")
        async def handle(event: Event, ctx: Context) -> None:
            async def one() -> None:
                stall.seconds = 2 * LEASE_S
                ctx.check()

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(one())
                tasks.create_task(asyncio.sleep(5))

        assert (await app.process(message())).status == "busy"
        stall.seconds = 0.0
        assert await app.entries("uncertain") == []

    story(ledger, tmp_path, tell)


@both_ledgers
def test_a_transaction_that_a_check_ends_is_rolled_back(ledger: str, tmp_path: Path, stall: Stall) -> None:
    if ledger == "memory":
        return

    async def tell(app: Semel) -> None:
        def handle(event: Event, ctx: Context) -> None:
            ctx.tx.execute("create table written (x)")
            if ctx.attempt == 1:
                stall.seconds = 2 * LEASE_S
            ctx.check()

        on(app, handle, sync=False, effect="transaction")
        body = message()
        assert (await app.process(body)).status == "busy"
        stall.seconds = 0.0
        await asyncio.sleep(LEASE_S + 0.1)
        assert (await app.process(body)).status == "done", "the table was not there"

    story("sqlite", tmp_path, tell)


@sync_and_async
def test_a_check_fails_when_another_process_has_the_lease(tmp_path: Path, sync: bool) -> None:
    async def tell(app: Semel) -> None:
        line = FaultyLine(app)
        line.cut = {"renew"}
        checked: list[str] = []

        def wait_and_check(ctx: Context) -> None:
            try:
                ctx.check()
            except LeaseLost as error:
                checked.append(str(error))

        async def handle(event: Event, ctx: Context) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
            wait_and_check(ctx)

        def handle_sync(event: Event, ctx: Context) -> None:
            time.sleep(1.2 * LEASE_S)
            wait_and_check(ctx)
            ended.set()

        ended = threading.Event()
        app.on("**", name="h", timeout=None)(handle_sync if sync else handle)
        assert (await app.process(message())).status == "busy"
        if sync:
            assert await asyncio.to_thread(ended.wait, 10)
        assert line.landed >= 1
        assert len(checked) == 1

    story("memory", tmp_path, tell)


def test_a_sync_handler_that_waited_for_its_thread_past_its_lease_does_not_run(tmp_path: Path, stall: Stall) -> None:
    async def tell(app: Semel) -> None:
        ran: list[str] = []
        begun, may_end = threading.Event(), threading.Event()

        @app.on("**", timeout=None)
        def handle(event: Event, ctx: Context) -> None:
            begun.set()
            may_end.wait(30)
            ran.append(event.id)

        first = asyncio.create_task(app.process(message("first")))
        await asyncio.to_thread(begun.wait, 30)
        second = asyncio.create_task(app.process(message("second")))
        await asyncio.sleep(0.1)  # it waits for the thread by now
        stall.seconds = 1_000.0
        may_end.set()
        assert (await second).status == "busy"
        await first
        assert ran == ["first"]

    story("memory", tmp_path, tell, concurrency=1, lease=30)


def test_without_a_ledger_there_is_no_lease_that_could_be_lost(tmp_path: Path) -> None:
    from semel.app import IncomingMessage, to_bytes
    from semel.core.routing import Plan

    async def tell(app: Semel) -> None:
        @app.on("**", fail_open=True)
        async def handle(event: Event, ctx: Context) -> str:
            ctx.check()
            return "ok"

        plan = app.planner.plan(IncomingMessage(to_bytes(message())))
        assert isinstance(plan, Plan)
        assert (await app._engine().run_without_ledger(plan)).result == "ok"

    story("memory", tmp_path, tell)


# ------------------------------------------------------------------------------------------------------- the probe


async def vanish(app: Semel, body: dict[str, Any]) -> None:
    """Claim as a worker does, and never settle."""
    from semel.app import IncomingMessage, to_bytes

    plan = app.planner.plan(IncomingMessage(to_bytes(body)))
    (verdict,) = await app.ledger.claim(plan.claims)  # type: ignore[union-attr]
    assert isinstance(verdict, Granted)


@both_ledgers
def test_a_probe_is_believed_only_when_a_call_that_the_holder_began_has_ended(ledger: str, tmp_path: Path) -> None:
    """The holder checks in time. Its call arrives a moment after another process has taken over and asked the probe."""

    async def tell(app: Semel) -> None:
        effects: list[str] = []
        asked: list[float] = []

        def look(event: Event, ctx: Context) -> str:
            asked.append(time.monotonic())
            if not effects:
                raise Retry
            return effects[0]

        def handle(event: Event, ctx: Context) -> None:
            effects.append("second holder")

        on(app, handle, sync=False, effect="park", probe=look)
        body = message()
        await vanish(app, body)
        await asyncio.sleep(LEASE_S + 0.05)
        running = asyncio.create_task(app.process(body))
        while not asked:  # noqa: ASYNC110 - it announces nothing
            await asyncio.sleep(0.01)
        assert len(asked) == 1
        effects.append("first holder")  # the call that it began before its lease ended
        outcome = await running
        assert (outcome.status, outcome.result) == ("done", "first holder")
        assert effects == ["first holder"]
        assert len(asked) == 2
        assert asked[1] - asked[0] > 0.5 * LEASE_S

    story(ledger, tmp_path, tell)


def test_a_long_lease_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PROBE_MARGIN_S", 0.2)

    async def tell(app: Semel) -> None:
        def look(event: Event, ctx: Context) -> None:
            raise Retry

        on(app, lambda event, ctx: "ran", sync=False, effect="park", probe=look)
        body = message()
        await vanish(app, body)
        monkeypatch.setattr(app.ledger, "_clock", lambda: time.time_ns() // 1_000_000 + 60_000)
        async with asyncio.timeout(10):
            assert (await app.process(body)).result == "ran"

    story("memory", tmp_path, tell, lease=30)


def test_a_deliverer_without_time_for_the_second_look_is_told_to_come_again(tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        ran: list[int] = []

        def look(event: Event, ctx: Context) -> None:
            raise Retry

        on(app, lambda event, ctx: ran.append(ctx.attempt), sync=False, effect="park", probe=look)
        body = message()
        await vanish(app, body)
        await asyncio.sleep(LEASE_S + 0.05)
        from semel.app import IncomingMessage, to_bytes

        until = asyncio.get_running_loop().time() + 0.5 * LEASE_S
        (outcome,) = await app._engine().process([IncomingMessage(to_bytes(body))], until)
        assert (outcome.status, outcome.reason) == ("busy", engine.PROBED_TOO_EARLY)
        assert ran == []
        await asyncio.sleep(0.5 * LEASE_S + 0.05)
        assert (await app.process(body)).status == "done"
        assert ran == [3], "the look that came too early counts"

    story("memory", tmp_path, tell)


def test_a_deliverer_that_never_has_time_for_the_second_look_leaves_it_to_a_person(tmp_path: Path) -> None:
    """A function with a short time limit. A stream would stand still behind an event that always comes again."""

    async def tell(app: Semel) -> None:
        from semel.app import IncomingMessage, to_bytes

        ran: list[int] = []

        def look(event: Event, ctx: Context) -> None:
            raise Retry

        on(app, lambda event, ctx: ran.append(ctx.attempt), sync=False, effect="park", probe=look, max_attempts=4)
        body = message()
        await vanish(app, body)
        await asyncio.sleep(LEASE_S + 0.05)
        statuses = []
        for _ in range(3):
            until = asyncio.get_running_loop().time() + 0.3 * LEASE_S
            (outcome,) = await app._engine().process([IncomingMessage(to_bytes(body))], until)
            statuses.append(outcome.status)
            await asyncio.sleep(0.3 * LEASE_S + 0.05)
        assert (statuses, ran) == (["busy", "busy", "uncertain"], [])

    story("memory", tmp_path, tell)
