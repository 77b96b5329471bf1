"""NotNow: the effect was not begun, so the attempt does not count and the deliverer is told when to come again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event
from semel.app import Message, to_bytes
from semel.core import fail_open
from semel.core.routing import Plan
from semel.values.effect import EFFECTS, Effect
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

            one, both = (app.planner.plan(Message(to_bytes(message("1", kind)))) for kind in ("a", "b"))
            assert isinstance(one, Plan)
            assert isinstance(both, Plan)
            assert (fail_open.may_run(one), fail_open.may_run(both)) == (True, False)
            outcomes = [await fail_open.run(one) for _ in range(5)]
            assert [outcome.status for outcome in outcomes] == ["done", "retry", "retry", "retry", "retry"]
            assert outcomes[0].result == "ran"
            assert [outcome.after for outcome in outcomes[1:3]] == [3, 4]

    run(story())


def test_not_now_is_part_of_the_public_surface() -> None:
    import semel

    assert semel.NotNow is NotNow
    assert "NotNow" in semel.__all__
