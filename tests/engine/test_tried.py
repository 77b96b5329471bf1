"""What a person can see of each attempt: the words of the exception that ended it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, Reject, Retry
from semel.values.attempts import REASON_MAX


@both_ledgers
def test_each_attempt_is_told_by_its_exception(ledger: str, tmp_path: Path) -> None:
    async def story() -> list[tuple[int, str]]:
        async with app_on(ledger, tmp_path, random=lambda: 0.0) as app:

            @app.on("**", max_attempts=4)
            async def handle(event: Event, ctx: Context) -> None:
                match ctx.attempt:
                    case 1:
                        raise ValueError("attempt 1")
                    case 2:
                        raise Retry(0, "not yet")
                    case 3:
                        raise Retry(0)
                    case _:
                        raise ConnectionResetError

            for _ in range(4):
                await app.process(message("a"))
            (dead_letter,) = await app.entries("dead")
            return [(one.attempt, one.reason) for one in dead_letter.attempt_log]

    first, second, third, fourth = run(story())
    assert (first, second) == ((1, "ValueError: attempt 1"), (2, "not yet"))
    assert (third[0], "retry" in third[1]) == (3, True)
    assert (fourth[0], "4 attempts" in fourth[1], "ConnectionResetError" in fourth[1]) == (4, True, True)


@both_ledgers
def test_what_waits_tells_why_and_what_is_done_at_once_has_nothing_to_tell(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                if event.id == "slow":
                    raise OSError("x" * 10_000)

            await app.process(message("slow"))
            await app.process(message("done"))
            (waiting,) = await app.entries("waiting")
            (one,) = waiting.attempt_log
            assert (one.attempt, len(one.reason), one.reason) == (1, REASON_MAX, waiting.reason)
            assert one.reason.startswith("OSError: xxx")
            (done,) = await app.entries("done")
            assert done.attempt_log == ()

    run(story())


def test_a_transaction_that_was_undone_tells_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:

            @app.on("**", effect="transaction", max_attempts=3)
            async def handle(event: Event, ctx: Context) -> str:
                if ctx.attempt == 1:
                    raise Retry(0, "locked")
                if event.id == "dead":
                    raise Reject("no such customer")
                return "done"

            for id in ("done", "dead"):
                for _ in range(2):
                    await app.process(message(id))
            (dead,) = await app.entries("dead")
            assert [(one.attempt, one.reason) for one in dead.attempt_log] == [(1, "locked"), (2, "no such customer")]
            (done,) = await app.entries("done")
            assert [(one.attempt, one.reason) for one in done.attempt_log] == [(1, "locked")]
            assert (done.attempts, done.result) == (2, b'"done"')

    run(story())


def test_a_cancelled_run_tells_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            begun = asyncio.Event()

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(app.process(message("a")))
            await begun.wait()
            running.cancel()
            await asyncio.wait([running])
            async with asyncio.timeout(60):
                while not (waiting := await app.entries("waiting")):  # noqa: ASYNC110  it is told in its own time
                    await asyncio.sleep(0.01)
            (attempt,) = waiting[0].attempt_log
            assert "cancelled" in attempt.reason

    run(story())
