"""NotNow: the effect was not begun, so the attempt does not count and the deliverer is told when to come again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event
from semel.app import IncomingMessage, to_bytes
from semel.core.routing import Plan
from semel.values.effect import EFFECTS, Effect
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import NotNow, Reject, Retry


@both_ledgers
@pytest.mark.parametrize("effect", EFFECTS)
def test_not_now_burns_no_attempt_and_parks_nothing(ledger: str, effect: Effect, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            if effect == "transaction" and not app.ledger.traits.transactional:
                return
            attempts: list[int] = []

            @app.on("**", effect=effect, max_attempts=2)
            async def handler(event: Event, ctx: Context) -> None:
                attempts.append(ctx.attempt)
                if len(attempts) <= 5:
                    raise NotNow(7, "closed")

            for _ in range(5):
                outcome = await app.process(message("1"))
                assert (outcome.status, outcome.after, outcome.reason) == ("busy", 7, "closed")
            assert (await app.process(message("1"))).status == "done"
            assert attempts == [1, 1, 1, 1, 1, 1]

    run(story())


@both_ledgers
def test_attempts_that_did_count_still_count(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            said = iter([Retry(after=0), NotNow(0), NotNow(0), Retry(after=0), NotNow(0), Retry(after=0)])
            attempts: list[int] = []

            @app.on("**", max_attempts=3)
            async def handler(event: Event, ctx: Context) -> None:
                attempts.append(ctx.attempt)
                raise next(said)

            statuses = [(await app.process(message("1"))).status for _ in range(6)]
            assert attempts == [1, 2, 2, 2, 3, 3]
            assert statuses == ["retry", "busy", "busy", "retry", "busy", "dead"]

    run(story())


def test_a_delay_is_a_number_of_seconds() -> None:
    for after in (-1, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match="delay"):
            NotNow(after)


def test_without_the_ledger_all_handlers_must_have_chosen_so_and_nothing_is_called_final() -> None:
    async def story() -> None:
        async with app_on("memory", Path()) as app:
            raised: list[Exception | None] = [None, Retry(after=3), NotNow(4), Reject("no"), RuntimeError("broken")]

            @app.on("a", "b", fail_open=True)
            async def opens(event: Event, ctx: Context) -> str:
                assert ctx.token == 0
                if (error := raised.pop(0)) is not None:
                    raise error
                return "ran"

            @app.on("b")
            async def closes(event: Event, ctx: Context) -> None: ...

            one, both = (app.planner.plan(IncomingMessage(to_bytes(message("1", kind)))) for kind in ("a", "b"))
            assert isinstance(one, Plan)
            assert isinstance(both, Plan)
            assert (one.fails_open, both.fails_open) == (True, False)
            outcomes = [await app._engine().run_without_ledger(one) for _ in range(5)]
            assert [outcome.status for outcome in outcomes] == ["done", "retry", "retry", "retry", "retry"]
            assert outcomes[0].result == "ran"
            assert [outcome.after for outcome in outcomes[1:3]] == [3, 4]

    run(story())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_run_without_the_ledger_ends_at_its_timeout_and_cannot_notify(is_async: bool, tmp_path: Path) -> None:
    refusals: list[str] = []
    released = threading.Event()

    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:

            async def slow(event: Event, ctx: Context) -> None:
                await asyncio.sleep(60)

            def blocked(event: Event, ctx: Context) -> None:
                released.wait(60)

            app.on("slow", timeout=0.2, fail_open=True)(slow if is_async else blocked)

            @app.on("notify", fail_open=True)
            async def notifies(event: Event, ctx: Context) -> None:
                try:
                    ctx.notify(kind="shipping", recipient="+4915112345678", channel="sms", body="On its way")
                except LedgerUnavailable as error:
                    refusals.append(str(error))
                    raise

            for kind in ("slow", "notify"):
                plan = app.planner.plan(IncomingMessage(to_bytes(message(kind, kind))))
                assert isinstance(plan, Plan)
                outcome = await app._engine().run_without_ledger(plan)
                assert outcome.status == "retry"
            assert await app.entries() == []

    try:
        run(story())
    finally:
        released.set()
    assert len(refusals) == 1


def test_not_now_is_part_of_the_public_surface() -> None:
    import semel

    assert semel.NotNow is NotNow
    assert "NotNow" in semel.__all__
