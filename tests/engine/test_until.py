"""A deliverer that is gone at a certain time: nothing is begun that it could not hear of, and nothing goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, Semel
from semel.app import IncomingMessage, to_bytes
from semel.core.engine import NO_TIME
from semel.values.keys import fields, latest
from semel.values.outcome import Outcome


async def process_within(app: Semel, seconds: float, *bodies: dict[str, object]) -> list[Outcome]:
    until = asyncio.get_running_loop().time() + seconds
    return await app.new_engine(app.ledger).process([IncomingMessage(to_bytes(body)) for body in bodies], until)


@both_ledgers
def test_what_cannot_begin_is_busy_and_leaves_nothing_behind(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            begun: list[str] = []

            @app.on("**")
            async def act(event: Event, ctx: Context) -> None:
                begun.append(event.id)

            (outcome,) = await process_within(app, 0.05, message("1"))
            assert (outcome.status, outcome.reason, outcome.after) == ("busy", NO_TIME, 0.0)
            assert await app.entries() == []
            assert begun == []
            assert [outcome.status for outcome in await process_within(app, 30, message("1"))] == ["done"]

    run(story())


@both_ledgers
@pytest.mark.parametrize("ordered", [True, False], ids=["one subject", "copies"])
def test_what_waits_behind_another_of_its_batch_is_not_begun_when_that_took_all_the_time(
    ledger: str, tmp_path: Path, ordered: bool
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            begun: list[str] = []

            @app.on("**", order=latest(subject="data.user", by="data.at") if ordered else None)
            async def slow(event: Event, ctx: Context) -> None:
                begun.append(event.id)
                await asyncio.sleep(60)

            second = message("2" if ordered else "1", user="u", at=2 if ordered else 1)
            outcomes = await process_within(app, 0.4, message("1", user="u", at=1), second)
            assert [outcome.status for outcome in outcomes] == ["retry", "busy"]
            assert outcomes[1].reason == NO_TIME
            assert begun == ["1"]
            assert len(await app.entries()) == 1

    run(story())


@both_ledgers
def test_what_was_claimed_and_could_not_begin_is_given_back_without_an_attempt(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, concurrency=1) as app:
            attempts: list[int] = []

            @app.on("**", key=fields("id"), timeout=None)
            async def slow(event: Event, ctx: Context) -> None:
                attempts.append(ctx.attempt)
                await asyncio.sleep(60 if event.id == "1" else 0)

            outcomes = await process_within(app, 0.4, message("1"), message("2"))
            assert [outcome.status for outcome in outcomes] == ["retry", "busy"]
            assert [outcome.status for outcome in await process_within(app, 30, message("2"))] == ["done"]
            assert attempts == [1, 1]

    run(story())


def test_a_suspect_is_not_begun_when_the_others_took_all_the_time() -> None:
    async def story() -> None:
        async with Semel("memory://") as app:
            begun: list[str] = []

            @app.on("**", timeout=None)
            async def slow(event: Event, ctx: Context) -> None:
                begun.append(event.id)
                await asyncio.sleep(60)

            async def vanish() -> None:
                """A holder that takes the lease and never settles it."""
                plan = app.planner.plan(IncomingMessage(to_bytes(message("1", at=0))))
                assert not isinstance(plan, Outcome)
                claim = plan.claims[0]
                await app.ledger.claim([type(claim)(claim.digest, claim.handler, claim.text, 1, claim.retention_ms)])
                await asyncio.sleep(0.05)

            await vanish()
            await vanish()
            suspect, other = await process_within(app, 0.4, message("1", at=0), message("2"))
            assert (suspect.status, suspect.reason) == ("busy", NO_TIME)
            assert other.status == "retry"
            assert begun == ["2"]

    run(story())


def test_a_renewed_lease_does_not_make_the_handlers_time_longer() -> None:
    async def story() -> None:
        async with Semel("memory://") as app:

            @app.on("**", timeout=None, lease=0.3)
            async def slow(event: Event, ctx: Context) -> None:
                await asyncio.sleep(60)

            begun = time.monotonic()
            (outcome,) = await process_within(app, 1.0, message())
            assert outcome.status == "retry"
            assert 0.9 < time.monotonic() - begun < 20

    run(story())
