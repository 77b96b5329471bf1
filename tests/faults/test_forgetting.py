"""What a store that has forgotten does to each effect. A ledger in memory that is made anew has forgotten all."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from semel import Context, Event, Semel
from semel.values.effect import Effect, cell

EVENT = {"id": "1", "type": "order.paid"}


def delivered_before_and_after(effect: str) -> tuple[list[Context], Semel]:
    """The same event twice, acknowledged both times, to a ledger that forgets in between."""
    runs: list[Context] = []

    async def deliver(app: Semel) -> None:
        async def handle(event: Event, ctx: Context) -> None:
            runs.append(ctx)

        app.on("order.paid", effect=cast(Effect, effect), name="handle")(handle)
        async with app:
            assert (await app.process(EVENT)).status == "done"
            assert (await app.process(EVENT)).status == "duplicate"

    before, after = Semel("memory://"), Semel("memory://")
    asyncio.run(deliver(before))
    asyncio.run(deliver(after))
    return runs, after


def word(effect: str, app: Semel) -> str:
    return cell(effect, app.ledger.traits, "store killed").word


def test_a_forgotten_keyed_event_runs_again_with_the_same_key() -> None:
    runs, app = delivered_before_and_after("keyed")
    assert len(runs) == 2
    assert runs[0].key == runs[1].key
    assert word("keyed", app) == "safe in the window"


def test_a_forgotten_retry_event_runs_again() -> None:
    runs, app = delivered_before_and_after("retry")
    assert len(runs) == 2
    assert word("retry", app) == "runs again"


def test_a_forgotten_park_event_doubles() -> None:
    runs, app = delivered_before_and_after("park")
    assert len(runs) == 2
    assert word("park", app) == "may double"


def test_a_forgotten_fenced_event_may_get_its_token_again() -> None:
    runs, app = delivered_before_and_after("fenced")
    assert runs[0].token == runs[1].token
    assert word("fenced", app) == "may double"


@pytest.mark.parametrize("effect", ["keyed", "retry", "park", "fenced"])
def test_a_ledger_that_remembers_runs_once(effect: str) -> None:
    """The negative control: without the loss in between there is one run."""

    async def deliver() -> int:
        runs: list[str] = []
        async with Semel("memory://") as app:

            @app.on("order.paid", effect=cast(Effect, effect))
            async def handle(event: Event, ctx: Context) -> None:
                runs.append(ctx.key)

            for _ in range(3):
                await app.process(EVENT)
        return len(runs)

    assert asyncio.run(deliver()) == 1
