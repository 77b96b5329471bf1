"""Leases while handlers run: renewed, lost, timed out, cancelled. Times are short and real."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run
from tests.engine.faults import FaultyLine

from semel import Context, Event, LedgerUnavailable, Retry, Semel
from semel.values.claim import Granted, Settlement
from semel.values.outcome import Outcome, Release


async def no_lease_left(app: Semel) -> None:
    await app.ledger.renew([])  # behind what is on its way: readers do not wait for writers
    while await app.entries("leased"):  # noqa: ASYNC110 - the ledger is asked, there is no event to wait for
        await asyncio.sleep(0.01)


@both_ledgers
def test_the_lease_is_renewed_while_a_handler_runs(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=0.5) as app:

            @app.on("**", timeout=None)
            async def slow(event: Event, ctx: Context) -> int:
                await asyncio.sleep(1.2)
                return ctx.token

            body = message()
            running = asyncio.create_task(app.process(body))
            others = []
            for _ in range(5):
                await asyncio.sleep(0.2)
                others.append((await app.process(body)).status)
            assert (await running).status == "done"
            assert others == ["busy"] * 5

    run(story())


@both_ledgers
def test_a_handler_is_cancelled_before_its_lease_ends_when_it_cannot_be_renewed(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=2.0) as app:
            line = FaultyLine(app)
            ended: list[float] = []

            @app.on("**", timeout=None)
            async def slow(event: Event, ctx: Context) -> None:
                try:
                    await asyncio.sleep(5)
                finally:
                    ended.append(time.monotonic())

            line.cut = {"renew"}
            begun = time.monotonic()
            outcome = await app.process(message())
            assert line.landed >= 1
            assert ended[0] - begun < 2.0
            assert outcome.status == "busy"
            assert "renew" in outcome.reason

    run(story())


@both_ledgers
def test_a_handler_that_ignores_cancellation_cannot_settle(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=1.0) as app:
            line = FaultyLine(app)
            tokens: list[int] = []

            @app.on("**", timeout=None)
            async def stubborn(event: Event, ctx: Context) -> str:
                tokens.append(ctx.token)
                if len(tokens) > 1:
                    return "second"
                until = time.monotonic() + 2.5
                while time.monotonic() < until:
                    try:
                        await asyncio.sleep(0.05)
                    except asyncio.CancelledError:
                        continue
                return "first"

            line.cut = {"renew"}
            body = message()
            running = asyncio.create_task(app.process(body))
            await asyncio.sleep(1.2)
            second = await app.process(body)
            first = await running
            assert line.landed >= 1
            assert (second.status, second.result) == ("done", "second")
            assert first.status == "busy"
            assert (await app.process(body)).result == "second"
            assert tokens == sorted(tokens)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0

    run(story())


@both_ledgers
def test_a_lease_that_was_taken_over_is_refused_also_when_the_loop_was_blocked(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, lease=0.2) as app:
            runs: list[int] = []

            @app.on("**", timeout=None)
            async def blocking(event: Event, ctx: Context) -> int:
                runs.append(ctx.attempt)
                if ctx.attempt == 1:
                    time.sleep(0.3)  # noqa: ASYNC251 - the heartbeat cannot run: nobody renews, nobody cancels
                    thread = threading.Thread(target=asyncio.run, args=(other(),))
                    thread.start()
                    thread.join()
                return ctx.attempt

            async def other() -> None:
                outcome = await app.process(body)
                assert (outcome.status, outcome.result) == ("done", 2)

            body = message()
            first = await app.process(body)
            assert runs == [1, 2]
            assert first.status == "busy"
            assert (await app.process(body)).result == 2

    run(story())


class CountedRefusals:
    """Telemetry that counts settles refused by the ledger."""

    def __init__(self) -> None:
        self.refusals: list[str] = []

    def span(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        return nullcontext()

    def refused(self, handler: str) -> None:
        self.refusals.append(handler)

    def granted(self, granted: Granted) -> None: ...
    def answered(self, outcome: Outcome) -> None: ...
    def asked(self, what: str, seconds: float, failed: bool) -> None: ...


@both_ledgers
def test_a_settle_that_the_ledger_refuses_is_counted_for_its_handler(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        telemetry = CountedRefusals()
        async with app_on(ledger, tmp_path, telemetry=telemetry) as app:

            @app.on("**", timeout=None)
            async def overtaken(event: Event, ctx: Context) -> None:
                return None

            settle = app.ledger.settle

            async def refuse(settlements: Sequence[Settlement]) -> list[bool]:
                await settle([Settlement(one.lease, Release()) for one in settlements])
                return await settle(settlements)

            app.ledger.settle = refuse  # type: ignore[method-assign] # the token is no longer current
            outcome = await app.process(message())
            assert outcome.status == "busy"
            assert telemetry.refusals == ["overtaken"]

    run(story())


@both_ledgers
def test_a_timeout_is_retried_and_names_itself(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, random=lambda: 0.0) as app:

            @app.on("**", timeout=0.1)
            async def slow(event: Event, ctx: Context) -> str:
                await asyncio.sleep(5 if ctx.attempt == 1 else 0)
                return "ok"

            body = message()
            first = await app.process(body)
            assert (first.status, "0.1 s" in first.reason) == ("retry", True)
            assert (await app.process(body)).result == "ok"

    run(story())


@both_ledgers
def test_a_sync_handler_past_its_timeout_still_tells_the_truth_within_its_lease(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            saw: list[bool] = []

            @app.on("**", timeout=0.1)
            def slow(event: Event, ctx: Context) -> str:
                time.sleep(0.3)
                saw.append(ctx.lost)
                return "late"

            outcome = await app.process(message())
            assert (outcome.status, outcome.result) == ("done", "late")
            assert saw == [True]

    run(story())


@both_ledgers
def test_a_lost_reply_to_a_settle_is_asked_again_and_the_effect_is_not_repeated(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs: list[int] = []
        async with app_on(ledger, tmp_path) as app:
            line = FaultyLine(app)

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> str:
                runs.append(ctx.attempt)
                return "ok"

            line.lost_replies = 2
            outcome = await app.process(message())
            assert line.landed == 2
            assert (outcome.status, outcome.result) == ("done", "ok")
            assert runs == [1]

    run(story())


@both_ledgers
def test_nothing_runs_while_the_ledger_cannot_be_asked(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs: list[int] = []
        async with app_on(ledger, tmp_path) as app:
            line = FaultyLine(app)

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                runs.append(ctx.attempt)

            line.cut = {"claim"}
            body = message()
            with pytest.raises(LedgerUnavailable):
                await app.process(body)
            assert runs == []
            line.cut = set()
            assert (await app.process(body)).status == "done"

    run(story())


@both_ledgers
@pytest.mark.parametrize(("effect", "then"), [("retry", "done"), ("park", "duplicate")])
def test_a_cancelled_caller_leaves_the_event_as_its_effect_allows(
    ledger: str, tmp_path: Path, effect: str, then: str
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            begun = asyncio.Event()

            @app.on("**", effect=effect)  # type: ignore[arg-type]
            async def handle(event: Event, ctx: Context) -> None:
                begun.set()
                await asyncio.sleep(5 if ctx.attempt == 1 else 0)

            body = message()
            caller = asyncio.create_task(app.process(body))
            await begun.wait()
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            await no_lease_left(app)
            assert (await app.process(body)).status == then
            assert len(await app.entries("uncertain")) == (1 if effect == "park" else 0)

    run(story())


@both_ledgers
def test_a_cancelled_caller_of_a_batch_waits_for_no_handler_to_end_by_itself(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, concurrency=10) as app:
            begun = asyncio.Semaphore(0)
            cancelled: list[str] = []

            @app.on("**", timeout=None)
            async def handle(event: Event, ctx: Context) -> None:
                begun.release()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(event.id)
                    raise

            bodies = [message() for _ in range(3)]
            caller = asyncio.create_task(app.process_many(bodies))
            for _ in bodies:
                await begun.acquire()
            caller.cancel()
            await asyncio.wait([caller], timeout=20)
            assert caller.cancelled()
            assert sorted(cancelled) == sorted(body["id"] for body in bodies)
            await no_lease_left(app)

    run(story())


@both_ledgers
@pytest.mark.parametrize("ending", ["done", "retry", "cancelled"])
def test_the_lease_of_a_run_that_ended_is_not_watched_any_more(ledger: str, tmp_path: Path, ending: str) -> None:
    """Each would stay in memory, and be renewed in vain."""

    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            begun = asyncio.Event()

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> Retry | None:
                begun.set()
                if ending == "cancelled":
                    await asyncio.Event().wait()
                return Retry(after=60) if ending == "retry" else None

            caller = asyncio.create_task(app.process(message()))
            await begun.wait()
            if ending == "cancelled":
                caller.cancel()
            await asyncio.wait([caller], timeout=20)
            assert caller.done()
            assert app._engine()._heartbeat._runs == set()

    run(story())


@both_ledgers
def test_a_lease_that_cannot_be_given_back_is_no_unhandled_error(ledger: str, tmp_path: Path) -> None:
    """It lapses by itself. asyncio reports an error that nobody asked for when its future is collected."""

    async def story() -> None:
        unhandled: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with app_on(ledger, tmp_path) as app:
            line = FaultyLine(app)
            begun = asyncio.Event()

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                begun.set()
                await asyncio.Event().wait()

            caller = asyncio.create_task(app.process(message()))
            await begun.wait()
            line.cut = {"settle"}
            caller.cancel()
            await asyncio.wait([caller], timeout=20)
            async with asyncio.timeout(20):
                while not line.landed:  # noqa: ASYNC110 - the line counts, it announces nothing
                    await asyncio.sleep(0.01)
        gc.collect()
        assert line.landed >= 1
        assert unhandled == []

    run(story())


@both_ledgers
def test_a_caller_cancelled_before_its_claim_was_answered_leaves_no_lease(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", max_attempts=1)
            async def handle(event: Event, ctx: Context) -> int:
                return ctx.attempt

            body = message()
            caller = asyncio.create_task(app.process(body))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
            await no_lease_left(app)  # the claim was on its way; its lease comes back by itself
            outcome = await app.process(body)
            assert (outcome.status, outcome.result) == ("done", 1)

    run(story())


@both_ledgers
def test_a_batch_runs_handlers_side_by_side_and_one_slow_one_keeps_no_other_from_settling(
    ledger: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, concurrency=10) as app:
            may_end = asyncio.Event()

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                if event.body["slow"]:
                    await may_end.wait()

            fast = [message(slow=False) for _ in range(30)]
            batch = asyncio.create_task(app.process_many([message(slow=True), *fast]))
            async with asyncio.timeout(60):
                while len(await app.entries("done")) < 30:  # noqa: ASYNC110 - the ledger is asked
                    await asyncio.sleep(0.01)
            assert {outcome.status for outcome in await app.process_many(fast)} == {"duplicate"}
            assert not batch.done()
            may_end.set()
            assert {outcome.status for outcome in await batch} == {"done"}

    run(story())


@both_ledgers
def test_retry_is_also_a_value(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> Retry:
                return Retry(after=7, reason="the CRM is closed")

            outcome = await app.process(message())
            assert (outcome.status, outcome.after, outcome.reason) == ("retry", 7, "the CRM is closed")

    run(story())
