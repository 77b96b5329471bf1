"""Inbox items that were accepted by a process with other settings: each runs once, and none is given up in a hurry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.engine.apps import message
from tests.engine.inbox_scene import Scene, story, until_empty

from semel import Outcome, keys
from semel.app import Message, to_bytes

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
        plan = scene.app.planner.plan(Message(to_bytes(message("1"))))
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
