"""Attacks that succeeded once: odd handlers, odd values, cancellation at the wrong moment, stuck transactions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, LedgerUnavailable, Reject, Retry, TransactionOver
from semel.core.worker import PURGE_EVERY_S, Worker


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException): ...  # extension modules raise such


# ------------------------------------------------------------------------------------------------- odd handlers


@both_ledgers
@pytest.mark.parametrize(
    "make",
    [
        lambda: Reject("\ud800"),
        lambda: Reject(None),  # type: ignore[arg-type]
        lambda: Reject(ValueError("the error itself")),  # type: ignore[arg-type]
        lambda: ValueError("a file name: \udc80"),
        lambda: Retry(after=1e300),
        Wordless,
        Panic,
        asyncio.CancelledError,  # of something that the handler awaits
    ],
)
def test_whatever_a_handler_raises_is_its_own_outcome_and_takes_no_neighbour_along(
    ledger: str, tmp_path: Path, make: Callable[[], BaseException]
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", max_attempts=1)
            async def handle(event: Event, ctx: Context) -> None:
                await asyncio.sleep(0)
                if event.body:
                    raise make()

            bodies = [message(), message(bad=True), message()]
            outcomes = await app.process_many(bodies)
            assert [outcome.status for outcome in outcomes] == ["done", "dead", "done"]
            assert [outcome.status for outcome in await app.process_many(bodies)] == ["duplicate"] * 3
            (dead_letter,) = await app.entries("dead")
            assert dead_letter.reason == outcomes[1].reason

    run(story())


def test_a_caller_that_was_cancelled_before_still_gets_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("memory", tmp_path, random=lambda: 0.0) as app:

            @app.on("**", timeout=0.05)
            async def slow(event: Event, ctx: Context) -> None:
                await asyncio.sleep(5)

            async def caller() -> str:
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    return (await app.process(message())).reason  # on its way out
                return ""

            task = asyncio.create_task(caller())
            await asyncio.sleep(0)
            task.cancel()
            assert "0.05 s" in await task

    run(story())


def test_a_sync_handler_has_its_whole_time_however_long_it_waited_for_a_thread(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("memory", tmp_path, concurrency=1) as app:
            lost: list[bool] = []

            @app.on("**", timeout=0.3)
            def handle(event: Event, ctx: Context) -> None:
                time.sleep(0.1)
                lost.append(ctx.lost)

            await asyncio.gather(*[app.process(message()) for _ in range(6)])
            assert lost == [False] * 6

    run(story())


@both_ledgers
def test_a_sync_handler_that_still_waits_for_a_thread_does_not_run_after_its_caller_was_cancelled(
    ledger: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path, concurrency=1) as app:
            ran: list[str] = []
            begun, may_end = threading.Event(), threading.Event()

            @app.on("**", effect="park", max_attempts=1)
            def handle(event: Event, ctx: Context) -> None:
                begun.set()
                may_end.wait(30)
                ran.append(event.id)

            bodies = [message("first"), message("second")]
            callers = [asyncio.create_task(app.process(body)) for body in bodies]
            await asyncio.to_thread(begun.wait, 30)
            await asyncio.sleep(0.05)  # the second waits for the thread by now
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
            may_end.set()
            await asyncio.sleep(0.2)
            assert ran == ["first"]
            outcomes = await app.process_many(bodies)
            assert [outcome.status for outcome in outcomes] == ["duplicate", "done"]  # in doubt; never begun

    run(story())


# ------------------------------------------------------------------------------------- cancellation and takeover


@both_ledgers
def test_a_caller_cancelled_in_the_tick_of_its_answer_leaves_no_lease(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**", effect="park", max_attempts=1)
            async def handle(event: Event, ctx: Context) -> None: ...

            claims = app._engine()._claims
            ask = claims.ask

            def ask_and_be_cancelled(asked: Any) -> Any:
                answer = ask(asked)
                answer.add_done_callback(lambda _: caller.cancel())  # before the caller wakes up
                return answer

            claims.ask = ask_and_be_cancelled  # type: ignore[method-assign]
            body = message()
            caller = asyncio.create_task(app.process(body))
            with pytest.raises(asyncio.CancelledError):
                await caller
            claims.ask = ask  # type: ignore[method-assign]
            while await app.entries("leased"):  # noqa: ASYNC110 - the ledger is asked, there is no event
                await asyncio.sleep(0.01)
            assert (await app.process(body)).status == "done"

    run(story())


def test_a_purge_that_fails_does_not_end_the_worker(tmp_path: Path) -> None:
    class Nothing:
        async def receive(self, limit: int) -> list[Any]:
            return []

    async def story() -> None:
        async with app_on("memory", tmp_path) as app:
            purges: list[int] = []

            async def purge(limit: int) -> int:
                purges.append(limit)
                raise LedgerUnavailable("another process holds the write lock")

            app.ledger.purge = purge  # type: ignore[method-assign]
            worker = Worker(Nothing(), app._engine, app.ledger)
            worker._purged_at = -PURGE_EVERY_S
            await worker._purge_periodically()
            assert len(purges) == 1

    run(story())


# ------------------------------------------------------------------------------------------------- transactions


def written(folder: Path) -> list[Any]:
    with closing(apsw.Connection(str(folder / "semel.db"))) as connection:
        return [row[0] for row in connection.execute("select x from written order by rowid")]


def write(ctx: Context, value: object) -> None:
    ctx.tx.execute("create table if not exists written (x)")
    ctx.tx.execute("insert into written values (?)", (value,))


def test_slow_transactions_keep_nobody_from_renewing(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, lease=6.0) as app:  # a loaded machine may take seconds for nothing

            @app.on("slow", timeout=None)
            async def slow(event: Event, ctx: Context) -> None:
                await asyncio.sleep(8.0)

            @app.on("tx", effect="transaction")
            async def transaction(event: Event, ctx: Context) -> None:
                await asyncio.sleep(0.65)

            running = asyncio.create_task(app.process(message(type="slow")))
            await asyncio.sleep(0.05)
            outcomes = await app.process_many([message(type="tx") for _ in range(12)])
            assert {outcome.status for outcome in outcomes} == {"done"}
            assert (await running).status == "done"

    run(story())


@pytest.mark.parametrize("sync", [False, True])
def test_using_the_app_inside_its_own_transaction_is_an_error_and_no_deadlock(tmp_path: Path, sync: bool) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:

            @app.on("other")
            async def other(event: Event, ctx: Context) -> None: ...

            async def nested(event: Event, ctx: Context) -> None:
                await app.process(message(type="other"))

            def nested_sync(event: Event, ctx: Context) -> None:
                app.process_sync(message(type="other"))

            app.on("nested", effect="transaction")(nested_sync if sync else nested)
            begun = time.monotonic()
            outcome = await app.process(message(type="nested"))
            assert outcome.status == "dead", "a programming mistake is not retried"
            assert "transaction" in outcome.reason
            assert time.monotonic() - begun < 2
            assert (await app.process(message(type="other"))).status == "done"

    run(story())


def test_a_transaction_undone_by_a_neighbour_is_given_back_without_counting_the_attempt(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, random=lambda: 0.0) as app:
            attempts: list[int] = []

            @app.on("**", effect="transaction", max_attempts=2)
            async def handle(event: Event, ctx: Context) -> None:
                write(ctx, event.id)
                if event.id == "bad":
                    ctx.tx.execute("rollback")
                else:
                    attempts.append(ctx.attempt)

            bodies = [message("good"), message("bad")]
            statuses = [[outcome.status for outcome in await app.process_many(bodies)] for _ in range(4)]
            assert statuses[-1] == ["duplicate", "duplicate"]
            assert set(attempts) == {1}
            assert [dead_letter.text for dead_letter in await app.entries("dead")] == ["bad"]

    run(story())
    assert written(tmp_path) == ["good"]


def test_a_sync_transaction_ends_with_its_time_also_in_the_middle_of_a_statement(tmp_path: Path) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"

    async def story() -> None:
        async with app_on("sqlite", tmp_path, random=lambda: 0.0) as app:

            @app.on("**", effect="transaction", timeout=0.2)
            def handle(event: Event, ctx: Context) -> None:
                write(ctx, ctx.attempt)
                if ctx.attempt == 1:
                    ctx.tx.execute(endless)

            body = message()
            outcome = await asyncio.wait_for(app.process(body), 5)
            assert (outcome.status, "0.2 s" in outcome.reason) == ("retry", True)
            assert (await app.process(body)).status == "done"

    run(story())
    assert written(tmp_path) == [2]


def test_a_handler_that_blocks_its_loop_does_not_hold_the_store_past_its_lease(tmp_path: Path) -> None:
    app = app_on("sqlite", tmp_path, random=lambda: 0.0)
    refused: list[TransactionOver] = []

    @app.on("blocks", effect="transaction", lease=0.4)
    async def blocks(event: Event, ctx: Context) -> None:
        write(ctx, ctx.attempt)
        if ctx.attempt == 1:
            others_turn.wait(5)
            try:
                write(ctx, "late")
            except TransactionOver as error:
                refused.append(error)

    @app.on("other")
    async def other(event: Event, ctx: Context) -> None: ...

    async def last() -> None:
        assert (await app.process(body)).status == "done"
        await app.close()

    others_turn = threading.Event()
    body = message(type="blocks")
    blocked = threading.Thread(target=lambda: run(app.process(body)))
    blocked.start()
    time.sleep(0.1)
    assert run(asyncio.wait_for(app.process(message(type="other")), 4)).status == "done"
    others_turn.set()
    blocked.join()
    run(last())
    assert len(refused) == 1
    assert written(tmp_path) == [2]
