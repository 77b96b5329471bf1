"""A relay that is told to stop: it begins with nothing, and what it does not wait for it calls by its name."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.outbox.troubled import CONTRACT, Scene, note, play

from semel.core.provider_calls import CUT_OFF
from semel.values.delivery_state import Accepted, Answer, Unknown
from semel.values.outbox import Lane, LookedUp, Unclear

LANES = {"@sms": Lane(9, "phone"), "phone": Lane(9, "phone")}
ONE_AT_A_TIME = replace(CONTRACT, concurrency=1)


async def stall() -> Answer:
    await asyncio.Event().wait()
    return Accepted("never")


def test_what_waits_for_room_is_not_begun_by_one_that_stops(tmp_path: Path) -> None:
    """Three lanes lead to a provider that has room for one."""

    async def tell(scene: Scene) -> None:
        answer = asyncio.Event()

        async def late() -> Answer:
            await answer.wait()
            return Accepted("r")

        waiting = [note(channel, channel=channel) for channel in ("sms", "voice", "message")]
        await scene.outbox.add(waiting)
        scene.phone.sends = [late]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await scene.wait(lambda: bool(scene.phone.got))
        stopping = asyncio.create_task(relay.stop(20.0))
        await asyncio.sleep(0)
        answer.set()
        await asyncio.gather(stopping, running)
        assert len(scene.phone.got) == 1, "the others are the next relay's"
        states = sorted([(await scene.shown(one)).state for one in waiting])
        assert states == ["accepted", "pending", "pending"]
        assert await scene.outbox.take({"phone": Lane(9, "phone")}, 1_000) == []
        taken = await scene.outbox.take({f"@{one.channel}": Lane(9, "another") for one in waiting}, 1_000)
        assert [dispatch.vanished for dispatch in taken] == [False, False], "nobody has vanished with them"
        assert [dispatch.delivery_state.provider for dispatch in taken] == ["", ""], (
            "and any provider of their channel may come"
        )

    play(tmp_path, tell, ONE_AT_A_TIME)


def test_what_is_cut_off_is_uncertain_at_once_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(scene: Scene) -> None:
        await scene.outbox.add([note()])
        scene.phone.sends = [stall]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await scene.wait(lambda: bool(scene.phone.got))
        await relay.stop(0.0)
        await running
        shown = await scene.shown(note())
        assert (shown.state, shown.reason) == ("uncertain", CUT_OFF), "it need not wait for its lease"
        assert await scene.outbox.take(LANES, 1_000) == []

    with caplog.at_level(logging.WARNING, "semel"):
        play(tmp_path, tell)
    assert "relay_sends_cut_off uncertain=1" in caplog.text


def test_a_second_and_shorter_stop_counts(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        await scene.outbox.add([note()])
        scene.phone.sends = [stall]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await scene.wait(lambda: bool(scene.phone.got))
        stopping = asyncio.create_task(relay.stop(3_600.0))
        await asyncio.sleep(0)
        await relay.stop(0.0)
        async with asyncio.timeout(20):
            await asyncio.gather(stopping, running)
        assert (await scene.shown(note())).reason == CUT_OFF

    play(tmp_path, tell)


def test_a_look_up_that_is_cut_off_says_nothing(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        looking = asyncio.Event()

        async def unknown() -> Answer:
            return Unknown("no answer")

        async def for_ever() -> LookedUp:
            looking.set()
            await asyncio.Event().wait()
            return Unclear("never")

        await scene.outbox.add([note()])
        scene.phone.sends, scene.phone.looks = [unknown], [for_ever]
        relay = scene.relay()
        await relay.run_once()
        scene.moved.by_s += 400.0
        running = asyncio.create_task(relay.run())
        await looking.wait()
        await relay.stop(0.0)
        await running
        shown = await scene.shown(note())
        assert (shown.state, shown.reason) == ("uncertain", f"no answer; {CUT_OFF}")
        assert len(scene.phone.got) == 1

    play(tmp_path, tell, replace(CONTRACT, looks_up=True, settle_s=60.0))


def test_what_has_crossed_when_the_time_is_over_is_not_sent(tmp_path: Path) -> None:
    async def tell(scene: Scene) -> None:
        crossed, cut = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            crossed.set()
            await cut.wait()

        await scene.outbox.add([note()])
        scene.way.after["cross"] = [slowly]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await crossed.wait()
        stopping = asyncio.create_task(relay.stop(0.0))
        while not relay._calls.is_cut:  # noqa: ASYNC110  it knows no event
            await asyncio.sleep(0)
        cut.set()
        await asyncio.gather(stopping, running)
        assert scene.phone.got == []
        assert (await scene.shown(note())).state == "pending", "nothing has left, and that is known"

    play(tmp_path, tell)


def test_a_store_that_is_gone_does_not_keep_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(scene: Scene) -> None:
        async def gone() -> None:
            await asyncio.Event().wait()

        await scene.outbox.add([note()])
        scene.way.before["record"] = [gone]
        relay = scene.relay()
        running = asyncio.create_task(relay.run())
        await scene.wait(lambda: "record" in scene.way.landed)
        async with asyncio.timeout(20):
            await relay.stop(0.0)
        await running
        assert (await scene.shown(note())).state == "sending"

    with caplog.at_level(logging.ERROR, "semel"):
        play(tmp_path, tell)
    assert "relay_notifications_abandoned notifications=1" in caplog.text


def test_a_look_up_that_waits_for_room_is_not_begun_by_one_that_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider is quick, so that one more is in hand than it has room for."""

    async def tell(scene: Scene) -> None:
        looks = 0

        async def unknown() -> Answer:
            return Unknown("no answer")

        async def for_ever() -> LookedUp:
            nonlocal looks
            looks += 1
            await asyncio.Event().wait()
            return Unclear("never")

        notes = [note(f"n-{number}") for number in range(3)]
        await scene.outbox.add(notes)
        scene.phone.sends, scene.phone.looks = [unknown] * 3, [for_ever] * 3
        relay = scene.relay()
        await relay.run_once()
        scene.moved.by_s += 400.0
        assert await relay.begin() == 3
        await scene.wait(lambda: looks == 2)
        await relay.stop(0.0)
        assert looks == 2, "the third one is the next relay's"
        told = sorted([(await scene.shown(one)).reason for one in notes])
        assert told == ["no answer", *[f"no answer; {CUT_OFF}"] * 2]
        taken = await scene.outbox.take(LANES, 1_000)
        assert [one.vanished for one in taken] == [False] * 3, "nobody has to wait for a lease"

    with caplog.at_level(logging.ERROR, "semel"):
        play(tmp_path, tell, replace(CONTRACT, looks_up=True, settle_s=60.0, concurrency=2, timeout_s=0.2))
    assert caplog.text == ""
