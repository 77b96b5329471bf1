"""Inbox items that were accepted by a process with other settings: each runs once, and none is given up in a hurry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.engine.apps import message
from tests.engine.inbox_scene import Scene, story, until_empty

from semel import LedgerUnavailable, Outcome, Semel, keys
from semel.app import IncomingMessage, to_bytes
from semel.core.inbox_flow import GIVE_UP_S, LOG_S, POSTPONE_MAX_S, POSTPONE_MIN_S, mismatched_since_ms
from semel.values.log import LogEvent
from semel.values.outcome import NotNow

OTHER_KEYS = [keys.content, keys.fields("type"), keys.tiers(keys.delivery, keys.content)]


@pytest.mark.parametrize("key", OTHER_KEYS)
def test_an_item_runs_under_the_key_it_was_accepted_with(tmp_path: Path, key: keys.Strategy) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[str] = []
        scene.app.on("**", name="h")(lambda event, ctx: ran.append(ctx.key))
        accepted = [(await scene.accepted(message(id, n=id))).key for id in ("1", "2")]
        later = Scene(tmp_path)
        async with later.app:
            later.app.on("**", name="h", key=key)(lambda event, ctx: ran.append(ctx.key))
            pump = later.pump()
            await until_empty(later, pump)
            await pump.stop(10)
            assert await later.app.entries("dead") == []
        assert sorted(ran) == sorted(accepted), "each of them, also where they share a business key"
        assert [await scene.accept(message(id, n=id)) for id in ("1", "2")] == ["duplicate"] * 2

    story(tmp_path, tell)


def test_an_identity_that_is_computed_otherwise_here_is_known_with_it(tmp_path: Path) -> None:
    """A redelivery is a duplicate, whichever of the two processes receives it."""

    async def tell(scene: Scene) -> None:
        ran: list[str] = []
        body = {"id": "bus-1", "detail-type": "t", "source": "shop", "detail": {"eventId": "e-1"}}
        scene.app.on("**", name="h")(lambda event, ctx: ran.append("event"))
        await scene.accept(body)
        later = Scene(tmp_path)
        async with later.app:
            later.app.on("**", name="h", key=keys.delivery)(lambda event, ctx: ran.append("delivery"))
            pump = later.pump()
            await until_empty(later, pump)
            await pump.stop(10)
            assert await later.accept(body) == "duplicate"
        assert await scene.accept(body) == "duplicate"
        assert ran == ["delivery"]

    story(tmp_path, tell)


def test_what_may_have_happened_under_the_accepted_key_is_in_doubt_under_another_one_too(tmp_path: Path) -> None:
    """SIGKILL after the effect of a `park` handler, then a restart with another key: nobody knows what happened."""

    async def tell(scene: Scene) -> None:
        ran: list[str] = []
        scene.app.on("**", name="h", effect="park", lease=0.1, timeout=0.05)(lambda event, ctx: None)
        await scene.accept(message("1"))
        plan = scene.app.planner.plan(IncomingMessage(to_bytes(message("1"))))
        assert not isinstance(plan, Outcome)
        await scene.app.ledger.claim(plan.claims)
        await asyncio.sleep(0.15)  # its holder has vanished
        later = Scene(tmp_path)
        async with later.app:
            later.app.on("**", name="h", effect="park", key=keys.content)(lambda event, ctx: ran.append(event.id))
            pump = later.pump()
            await until_empty(later, pump)
            await pump.stop(10)
            (entry,) = await later.app.entries("uncertain")
            assert entry.key == plan.claims[0].digest.hex()
            assert ran == []

    story(tmp_path, tell)


def test_an_item_of_another_tenant_is_left_to_others(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[str] = []
        scene.app.on("**", name="h")(lambda event, ctx: ran.append(event.tenant))
        await scene.accept(message("1"))
        later = Scene(tmp_path, tenant="acme")
        async with later.app:
            later.app.on("**", name="h")(lambda event, ctx: ran.append(event.tenant))
            pump = later.pump()
            await pump.run_once()
            await pump.stop(10)
            assert await later.app.entries("dead") == []
            await later.let_it_be_due("h")
        pump = scene.pump()
        await until_empty(scene, pump)
        await pump.stop(10)
        assert ran == [""]

    story(tmp_path, tell)


def test_an_item_whose_key_cannot_be_computed_here_is_left_to_others(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        ran: list[str] = []
        scene.app.on("**", name="h")(lambda event, ctx: ran.append("here"))
        await scene.accept(message("1"))
        later = Scene(tmp_path)
        async with later.app:
            later.app.on("**", name="h", key=keys.fields("data.missing"))(lambda event, ctx: ran.append("there"))
            pump = later.pump()
            await pump.run_once()
            await pump.stop(10)
            assert await later.app.entries("dead") == []
            await later.let_it_be_due("h")
        pump = scene.pump()
        await until_empty(scene, pump)
        await pump.stop(10)
        assert ran == ["here"]

    story(tmp_path, tell)


# --------------------------------------------------------------------------------------- what this process cannot run

Register = Callable[[Semel, list[str]], None]


def _on(topic: str, **options: Any) -> Register:
    def register(app: Semel, ran: list[str]) -> None:
        app.on(topic, name="h", **options)(lambda event, ctx: ran.append(event.id))

    return register


MISMATCHES: dict[str, tuple[Register, str]] = {
    "another topic": (_on("c.*"), ""),
    "another tenant": (_on("**"), "acme"),
    "a key that cannot be computed here": (_on("**", key=keys.fields("data.missing")), ""),
}


def later_by(seconds: float) -> Callable[[], int]:
    return lambda: time.time_ns() // 1_000_000 + round(seconds * 1000)


def due_in_s(scene: Scene) -> float:
    with apsw.Connection(scene.file) as connection:
        due: Any = connection.execute("select due_ms from semel_inbox").get
    connection.close()
    return float(due) / 1000 - time.time()


@pytest.mark.parametrize("name", MISMATCHES)
def test_an_item_that_cannot_run_here_waits_for_a_process_that_can(tmp_path: Path, name: str) -> None:
    register, tenant = MISMATCHES[name]

    async def tell(scene: Scene) -> None:
        here: list[int] = []
        there: list[str] = []
        scene.app.on("a.*", name="h", max_attempts=1)(lambda event, ctx: here.append(ctx.attempt))
        await scene.accept(message("1", "a.b"))
        other = Scene(tmp_path, tenant=tenant)
        async with other.app:
            register(other.app, there)
            for _ in range(5):
                await other.handle()
                assert await other.app.entries("dead") == []
                assert (await other.depth())["h"].waiting == 1
                await other.let_it_be_due("h")
        await scene.handle()
        assert (here, there) == ([1], []), "no attempt was counted"
        assert await scene.depth() == {}

    story(tmp_path, tell)


def test_what_this_version_cannot_read_waits_for_one_that_can(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("**", name="h")(lambda event, ctx: None)
        await scene.accept(message("1"))
        with apsw.Connection(scene.file) as connection:
            connection.execute("update semel_inbox_event set event = ?", (b'{"a shape": "of the next version"}',))
        connection.close()
        await scene.handle()
        assert await scene.app.entries("dead") == []
        (reason,) = await scene.reasons()
        assert mismatched_since_ms(reason) is not None

    story(tmp_path, tell)


@pytest.mark.parametrize("name", MISMATCHES)
def test_it_is_given_up_a_long_time_after_the_first_mismatch(tmp_path: Path, name: str) -> None:
    """Not after it was accepted: it may have waited behind others for longer than that."""
    register, tenant = MISMATCHES[name]

    async def tell(scene: Scene) -> None:
        scene.app.on("a.*", name="h")(lambda event, ctx: None)
        await scene.accept(message("1", "a.b"))
        other = Scene(tmp_path, tenant=tenant)
        async with other.app:
            register(other.app, [])
            first_ms = later_by(10 * GIVE_UP_S)()  # it was accepted long ago
            last_ms = first_ms + round(GIVE_UP_S * 1000)
            for now_ms in (first_ms, last_ms - 1):
                await other.handle(now_ms=partial(int, now_ms))
                assert await other.app.entries("dead") == []
                await other.let_it_be_due("h")
        second = Scene(tmp_path, tenant=tenant)  # the time is counted across processes
        async with second.app:
            register(second.app, [])
            await second.handle(now_ms=partial(int, last_ms))
            (dead,) = await second.app.entries("dead")
            assert dead.event is not None
            assert dead.handler == "h"
        assert await scene.accept(message("1", "a.b")) == "duplicate"

    story(tmp_path, tell)


def test_a_process_that_matches_ends_the_count(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("a.*", name="h")(_not_yet)
        await scene.accept(message("1", "a.b"))
        other = Scene(tmp_path)
        async with other.app:
            other.app.on("c.*", name="h")(lambda event, ctx: None)
            await other.handle()
            await other.let_it_be_due("h")
            await scene.handle()
            assert await scene.reasons() == [] or mismatched_since_ms((await scene.reasons())[0]) is None
            await other.let_it_be_due("h")
            await other.handle(now_ms=later_by(GIVE_UP_S))
            assert await other.app.entries("dead") == []

    story(tmp_path, tell)


def _not_yet(event: Any, ctx: Any) -> None:
    raise NotNow(0.01)


def test_it_is_postponed_longer_each_time_up_to_a_limit(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("a.*", name="h")(lambda event, ctx: None)
        await scene.accept(message("1", "a.b"))
        other = Scene(tmp_path)
        async with other.app:
            other.app.on("c.*", name="h")(lambda event, ctx: None)
            waits = []
            for age_s in (0, 4, 60, 100_000):
                await other.handle(now_ms=later_by(age_s))
                waits.append(due_in_s(other))
                await other.let_it_be_due("h")
        expected = [POSTPONE_MIN_S, POSTPONE_MIN_S, 30.0, POSTPONE_MAX_S]
        assert waits == pytest.approx(expected, abs=2.0)

    story(tmp_path, tell)


def test_when_the_reason_cannot_be_read_the_count_begins_anew(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("a.*", name="h")(lambda event, ctx: None)
        await scene.accept(message("1", "a.b"))
        other = Scene(tmp_path)
        async with other.app:
            other.app.on("c.*", name="h")(lambda event, ctx: None)
            await other.handle()
            await other.let_it_be_due("h")

            async def unreadable(key: str) -> Any:
                raise LedgerUnavailable("no reader is free")

            other.app.ledger.history = unreadable  # type: ignore[method-assign]
            await other.handle(now_ms=later_by(GIVE_UP_S))
            assert await other.app.entries("dead") == []
            assert (await other.depth())["h"].waiting == 1

    story(tmp_path, tell)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    events = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    return [event.fields for event in events if event.name == "inbox_item_unmatched"]


def test_they_are_logged_once_a_minute_for_each_handler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(scene: Scene) -> None:
        for name in ("h", "i"):
            scene.app.on("a.*", name=name)(lambda event, ctx: None)
        for number in range(4):
            await scene.accept(message(str(number), "a.b"))
        other = Scene(tmp_path)
        async with other.app:
            for name in ("h", "i"):
                other.app.on("c.*", name=name)(lambda event, ctx: None)
            now_ms = later_by(0)()
            pump = other.pump(now_ms=lambda: now_ms)
            for passed_s in (0.0, LOG_S - 0.001, 0.001):
                now_ms += round(passed_s * 1000)
                await pump.run_once()
                await pump.stop(10)
                for name in ("h", "i"):
                    await other.let_it_be_due(name)
        for name in ("h", "i"):
            assert [line["count"] for line in logged(caplog) if line["handler"] == name] == [1, 8]

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("key", "event", "reason_class"),
    [
        (lambda event: str(1 / 0 if event.id else ""), None, "the key cannot be computed"),
        (keys.event, b'{"joe@example.com": 1}', "malformed"),
        (keys.event, b'{"id": "1", "type": "x.y", "data": {}}', "no handler matches"),
    ],
)
def test_the_log_has_the_class_of_the_reason_and_nothing_of_the_event(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: keys.Strategy, event: bytes | None, reason_class: str
) -> None:
    async def tell(scene: Scene) -> None:
        scene.app.on("a.*", name="h")(lambda event, ctx: None)
        await scene.accept(message("1", "a.b"))
        if event is not None:
            with apsw.Connection(scene.file) as connection:
                connection.execute("update semel_inbox_event set event = ?", (event,))
            connection.close()
        other = Scene(tmp_path)
        async with other.app:
            other.app.on("a.*", name="h", key=key)(lambda event, ctx: None)
            await other.handle()
        assert logged(caplog) == [{"handler": "h", "count": 1, "reason_class": reason_class}]

    story(tmp_path, tell)


@pytest.mark.parametrize("reason", ["", "busy", "mismatched since yesterday: x", "mismatched since 2026-13-01: x"])
def test_other_reasons_are_not_taken_for_a_mismatch(reason: str) -> None:
    assert mismatched_since_ms(reason) is None
