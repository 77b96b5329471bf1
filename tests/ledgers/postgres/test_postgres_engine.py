"""The flow on PostgreSQL: the effect of an open transaction on duplicates and other events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from semel import Context, Event, Reject, Semel, TransactionOver
from semel.core import engine


def body(number: int, type: str = "interaction.created") -> dict[str, object]:
    id = f"e{number}" if type == "interaction.created" else f"{type}-{number}"
    return {"id": id, "type": type, "data": {"number": number}}


@asynccontextmanager
async def with_effects(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("create table if not exists effect (event text)")
        await connection.execute("truncate effect")
        yield connection
    finally:
        await connection.close()


async def effects(connection: asyncpg.Connection) -> list[str]:
    return [row["event"] for row in await connection.fetch("select event from effect order by event")]


class Paused:
    """A handler that writes, and then waits until the test releases it."""

    def __init__(self, app: Semel) -> None:
        self.runs = 0
        self.entered = asyncio.Event()
        self.may_go_on = asyncio.Event()

        @app.on("interaction.created", effect="transaction")
        async def write(event: Event, ctx: Context) -> str:
            self.runs += 1
            await ctx.tx.execute("insert into effect values ($1)", event.id)
            self.entered.set()
            await self.may_go_on.wait()
            if event.body["number"] < 0:
                raise Reject("negative")
            return event.id


async def of_two_copies(url: str, number: int) -> tuple[list[str], int, list[str]]:
    """The second of two workers receives a copy while the first is inside its transaction."""
    async with with_effects(url) as connection:
        first_app, second_app = Semel(url), Semel(url)
        first_handler, second_handler = Paused(first_app), Paused(second_app)
        second_handler.may_go_on.set()
        first = asyncio.ensure_future(first_app.process(body(number)))
        await first_handler.entered.wait()
        second = asyncio.ensure_future(second_app.process(body(number)))
        done, _ = await asyncio.wait((second,), timeout=0.5)
        assert not done, "it was sent away, although the first will have committed in a moment"
        first_handler.may_go_on.set()
        outcomes = [await first, await second]
        await first_app.close()
        await second_app.close()
        runs = first_handler.runs + second_handler.runs
        return [outcome.status for outcome in outcomes], runs, await effects(connection)


def test_a_copy_waits_for_the_commit_and_is_a_duplicate(url: str) -> None:
    statuses, runs, seen = asyncio.run(of_two_copies(url, 1))
    assert (statuses, runs, len(seen)) == (["done", "duplicate"], 1, 1)


def test_a_copy_waits_for_a_transaction_that_rolls_back_and_gets_its_outcome(url: str) -> None:
    statuses, runs, seen = asyncio.run(of_two_copies(url, -1))
    assert statuses[0] == "dead"
    assert statuses[1] in ("duplicate", "busy")  # its end is settled a moment after the rollback
    assert (runs, seen) == (1, [])


def test_a_copy_that_waited_too_long_is_busy_and_the_other_events_are_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WAIT_S", 0.2)

    async def run() -> None:
        async with with_effects(url) as connection:
            first_app, second_app = Semel(url), Semel(url)
            first_handler, second_handler = Paused(first_app), Paused(second_app)
            second_handler.may_go_on.set()
            first = asyncio.ensure_future(first_app.process(body(10)))
            await first_handler.entered.wait()
            outcomes = await second_app.process_many([body(10), body(11), body(12)])
            assert [outcome.status for outcome in outcomes] == ["busy", "done", "done"]
            first_handler.may_go_on.set()
            assert (await first).status == "done"
            assert len(await effects(connection)) == 3
            await first_app.close()
            await second_app.close()

    asyncio.run(run())


def test_only_the_failing_transaction_of_a_batch_is_undone(url: str) -> None:
    async def run() -> None:
        async with with_effects(url) as connection:
            app = Semel(url)
            handler = Paused(app)
            handler.may_go_on.set()
            outcomes = await app.process_many([body(number) for number in (20, 21, -22, 23, 24)])
            assert [outcome.status for outcome in outcomes] == ["done", "done", "dead", "done", "done"]
            assert len(await effects(connection)) == 4
            await app.close()

    asyncio.run(run())


def test_a_statement_that_was_not_awaited_is_no_effect(url: str) -> None:
    """A handler written for SQLite lacks the `await`: a missing effect must not be recorded as done."""

    async def run() -> None:
        async with with_effects(url) as connection:
            app = Semel(url)

            @app.on("interaction.created", effect="transaction", max_attempts=1)
            async def write(event: Event, ctx: Context) -> None:
                await ctx.tx.execute("insert into effect values ('awaited')")
                ctx.tx.execute("insert into effect values ($1)", event.id)

            outcome = await app.process(body(30))
            assert outcome.status == "dead"
            assert "await" in outcome.reason
            assert await effects(connection) == []
            await app.close()

    asyncio.run(run())


@pytest.mark.parametrize("in_statement", [False, True], ids=["between statements", "inside a statement"])
def test_a_handler_that_ignores_its_timeout_loses_its_connection_at_its_timeout(url: str, in_statement: bool) -> None:
    """The next handler uses the only connection, without any write of the first."""

    async def story() -> None:
        async with with_effects(url) as connection:
            app = Semel(f"{url}?transactions=1", lease=60, random=lambda: 0.0)
            may_end = asyncio.Event()
            refused: list[TransactionOver] = []

            @app.on("stubborn", effect="transaction", timeout=0.5)
            async def stubborn(event: Event, ctx: Context) -> str:
                if ctx.attempt > 1:
                    return "second"
                await ctx.tx.execute("insert into effect values ('undone')")
                while not may_end.is_set():
                    try:
                        await (ctx.tx.execute("select pg_sleep(60)") if in_statement else may_end.wait())
                    except (asyncio.CancelledError, TransactionOver):
                        await asyncio.sleep(0.01)
                try:
                    await ctx.tx.execute("insert into effect values ('late')")
                except TransactionOver as error:
                    refused.append(error)
                return "first"

            @app.on("next", effect="transaction")
            async def write(event: Event, ctx: Context) -> None:
                await ctx.tx.execute("insert into effect values ($1)", event.id)

            first, second = body(1 + in_statement, "stubborn"), body(1 + in_statement, "next")
            async with app:
                running = asyncio.create_task(app.process(first))
                await asyncio.sleep(0.2)
                try:
                    async with asyncio.timeout(20):  # the lease is 60 s
                        assert (await app.process(second)).status == "done"
                    assert not running.done(), f"inconclusive: the handler has ended: {running.result()}"
                finally:
                    may_end.set()
                outcome = await running
                assert (outcome.status, "0.5 s" in outcome.reason) == ("retry", True)
                assert len(refused) == 1
                assert (await app.process(first)).result == "second"
            assert await effects(connection) == [second["id"]]

    asyncio.run(story())


def test_a_ledger_that_closes_waits_for_the_commit_of_a_transaction_under_way(url: str) -> None:
    async def run() -> tuple[str, list[str]]:
        async with with_effects(url) as connection:
            app = Semel(url)
            handler = Paused(app)
            running = asyncio.ensure_future(app.process(body(40)))
            await handler.entered.wait()
            closing = asyncio.ensure_future(app.ledger.close())
            done, _ = await asyncio.wait((closing,), timeout=0.3)
            assert not done, "it closed under a transaction"
            handler.may_go_on.set()
            outcome = await running
            await closing
            return outcome.status, await effects(connection)

    assert asyncio.run(run()) == ("done", ["e40"])
