"""The pump: what is taken is always answered, in its own lane, and whatever happens to a letter it is not lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import message
from tests.engine.inbox_scene import Scene, story, until, until_empty

from semel import Context, Event, LedgerUnavailable, Reject, Retry, latest
from semel.core.inbox_flow import LAPSES_MAX, InboxWorker
from semel.values.outcome import NotNow


@pytest.mark.parametrize(
    ("first", "runs"),
    [(None, 1), (Retry(after=0.01), 2), (NotNow(0.01), 2), (RuntimeError("once"), 2), (Reject("never"), 1)],
)
def test_a_letter_is_finished_when_its_event_is_and_not_before(tmp_path: Path, first: Any, runs: int) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[int] = []

        @scene.app.on("**")
        async def handler(event: Event, ctx: Context) -> None:
            ran.append(ctx.attempt)
            if first is not None and len(ran) == 1:
                raise first

        assert await scene.accept(message("1")) == "accepted"
        pump = scene.pump()
        await pump.run_once()
        await until_empty(scene, pump)
        await pump.stop(10)
        assert len(ran) == runs
        assert await scene.accept(message("1")) == "duplicate"

    story(tmp_path, tell)


def test_what_is_in_hand_when_time_is_up_is_given_back_at_once(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        begun = asyncio.Event()
        ran: list[int] = []

        @scene.app.on("**")
        async def handler(event: Event, ctx: Context) -> None:
            ran.append(ctx.attempt)
            begun.set()
            if len(ran) == 1:
                await asyncio.sleep(60)

        await scene.accept(message("1"))
        pump = scene.pump()
        await pump.run_once()
        await begun.wait()
        await pump.stop(0.0)
        assert (await scene.depth())["handler"].waiting == 1  # not taken, and not gone
        again = scene.pump()

        async def ran_again() -> bool:
            await again.run_once()
            return len(ran) == 2

        async with asyncio.timeout(4):  # before any lease is over
            await until(ran_again)
        await until_empty(scene, again)
        await again.stop(10)

    story(tmp_path, tell)


def test_a_full_lane_holds_up_nobody_else(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        go = asyncio.Event()
        quick: list[str] = []

        @scene.app.on("slow.*")
        async def slow(event: Event, ctx: Context) -> None:
            await go.wait()

        @scene.app.on("quick.*", name="quick")
        async def be_quick(event: Event, ctx: Context) -> None:
            quick.append(event.id)

        for number in range(20):
            await scene.accept(message(f"s{number}", "slow.one"))
        for number in range(20):
            await scene.accept(message(f"q{number}", "quick.one"))
        pump = scene.pump(concurrency=4)
        running = asyncio.create_task(pump.run())

        async def all_quick() -> bool:
            return len(quick) == 20

        await until(all_quick)
        depth = (await scene.depth())["slow"]
        assert (depth.taken, depth.waiting) == (4, 16)
        go.set()
        await until_empty_by_itself(scene)
        await pump.stop(10)
        await running

    story(tmp_path, tell)


async def until_empty_by_itself(scene: Scene) -> None:
    async def empty() -> bool:
        return await scene.depth() == {}

    await until(empty)


def test_a_lane_whose_handler_is_not_ready_is_left_alone(tmp_path: Path) -> None:
    class Gate:
        __name__ = "gated"
        concurrency = 2
        wait_s = 5.0

        def __init__(self) -> None:
            self.ran = 0

        def ready_in_s(self) -> float:
            return self.wait_s

        async def __call__(self, event: Event, ctx: Context) -> None:
            self.ran += 1

    async def tell(scene: Scene) -> None:
        gate = Gate()
        scene.app.on("**", name="gated")(gate)
        for number in range(5):
            await scene.accept(message(str(number)))
        pump = scene.pump()
        assert await pump.run_once() == 0
        gate.wait_s = 0.0
        assert await pump.run_once() == 2  # its own concurrency
        await until_empty(scene, pump)
        await pump.stop(10)
        assert gate.ran == 5

    story(tmp_path, tell)


def test_each_handler_of_an_event_has_a_letter_of_its_own(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[str] = []

        @scene.app.on("**")
        async def good(event: Event, ctx: Context) -> None:
            ran.append("good")

        @scene.app.on("**", max_attempts=3)
        async def bad(event: Event, ctx: Context) -> None:
            ran.append("bad")
            raise Retry(after=0.01)

        await scene.accept(message("1"))
        pump = scene.pump()
        await until_empty(scene, pump)
        await pump.stop(10)
        assert sorted(ran) == ["bad", "bad", "bad", "good"]
        (dead,) = await scene.app.entries("dead")
        assert dead.handler == "bad"

    story(tmp_path, tell)


def test_a_letter_waits_for_no_other_handler_of_its_event(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("**", name="good")(lambda event, ctx: None)

        @scene.app.on("**")
        async def bad(event: Event, ctx: Context) -> None:
            raise Retry(after=60)

        await scene.accept(message("1"))
        pump = scene.pump()
        await pump.run_once()
        await pump.stop(10)
        assert list(await scene.depth()) == ["bad"]

    story(tmp_path, tell)


def test_a_letter_that_nobody_survives_is_given_up(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("**", name="h")(lambda event, ctx: None)
        await scene.accept(message("1"))
        for _ in range(LAPSES_MAX + 1):
            assert len(await scene.inbox.take({"h": 1}, 1)) == 1  # and it vanishes with it
            await asyncio.sleep(0.01)
        pump = scene.pump()
        await pump.run_once()
        await pump.stop(10)
        (dead,) = await scene.app.entries("dead")
        assert str(LAPSES_MAX + 1) in dead.reason

    story(tmp_path, tell)


def test_when_nothing_can_be_decided_the_letter_stays(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("**", name="h")(lambda event, ctx: None)
        await scene.accept(message("1"))

        async def down(_: Any) -> Any:
            raise LedgerUnavailable("gone")

        pump = InboxWorker(scene.inbox, down, scene.app.handlers, 8)
        await pump.run_once()
        await pump.stop(10)
        assert (await scene.depth())["h"].waiting == 1

    story(tmp_path, tell)


def test_a_key_that_is_held_is_looked_at_again_soon_and_not_at_the_end_of_its_lease(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[int] = []

        @scene.app.on("**", order=latest(subject="data.who", by="createdTime"), lease=30)
        async def ordered(event: Event, ctx: Context) -> None:
            ran.append(event.document["createdTime"])
            await asyncio.sleep(0.05)

        for at in range(5):
            await scene.accept({**message(f"o{at}", who="ada"), "createdTime": 1_678_886_400_000 + at})
        pump = scene.pump()
        running = asyncio.create_task(pump.run())
        async with asyncio.timeout(20):  # the lease is 30 s
            await until_empty_by_itself(scene)
        await pump.stop(10)
        await running
        assert ran[-1] == 1_678_886_400_004
        assert ran == sorted(ran)

    story(tmp_path, tell)


def test_a_bug_around_a_letter_is_no_hot_loop_and_does_not_end_the_pump(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("**", name="h")(lambda event, ctx: None)
        await scene.accept(message("1"))
        attempt_log = 0

        async def broken(_: Any) -> Any:
            nonlocal attempt_log
            attempt_log += 1
            raise ZeroDivisionError

        pump = InboxWorker(scene.inbox, broken, scene.app.handlers, 8)
        running = asyncio.create_task(pump.run())
        await asyncio.sleep(0.5)
        assert not running.done()
        assert attempt_log == 1
        await pump.stop(10)
        await running

    story(tmp_path, tell)
