"""effect="transaction" on SQLite: the handler's writes and the settle are one."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.engine.apps import app_on, message, run

from semel import ConfigError, Context, Event, Reject, Retry, Semel, TransactionOver


def tickets(folder: Path) -> list[str]:
    with closing(apsw.Connection(str(folder / "semel.db"))) as connection:
        return [str(row[0]) for row in connection.execute("select id from ticket order by rowid")]


async def with_table(app: Semel) -> None:
    @app.on("make.table", effect="transaction", name="make")
    async def make(event: Event, ctx: Context) -> None:
        ctx.tx.execute("create table ticket (id text)")

    assert (await app.process(message(type="make.table"))).status == "done"


def test_writes_commit_with_the_settle(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            await with_table(app)

            @app.on("ticket", effect="transaction")
            async def open_ticket(event: Event, ctx: Context) -> str:
                ctx.tx.execute("insert into ticket values (?)", (event.id,))
                return event.id

            bodies = [message(f"t{n}", type="ticket") for n in range(50)]
            outcomes = await app.process_many([*bodies, *bodies])
            assert [outcome.status for outcome in outcomes] == ["done"] * 50 + ["duplicate"] * 50
            assert outcomes[-1].result == "t49"

    run(story())
    assert sorted(tickets(tmp_path)) == sorted(f"t{n}" for n in range(50))


@pytest.mark.parametrize("how", ["raise", "retry", "reject", "timeout", "commit", "rollback", "begin", "savepoint"])
def test_a_run_that_does_not_succeed_leaves_no_writes(tmp_path: Path, how: str) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, random=lambda: 0.0) as app:
            await with_table(app)

            @app.on("ticket", effect="transaction", timeout=0.2)
            async def open_ticket(event: Event, ctx: Context) -> None:
                ctx.tx.execute("insert into ticket values (?)", (f"{event.id}-{ctx.attempt}",))
                if ctx.attempt > 1:
                    return
                match how:
                    case "raise":
                        raise OSError("down")
                    case "retry":
                        raise Retry(after=0)
                    case "reject":
                        raise Reject("never")
                    case "timeout":
                        await asyncio.sleep(5)
                    case "commit":
                        ctx.tx.execute("commit")
                    case "rollback":
                        ctx.tx.execute("rollback")
                    case "begin":
                        ctx.tx.execute("rollback; begin; insert into ticket values ('smuggled')")
                    case "savepoint":
                        ctx.tx.execute("rollback; begin; savepoint handler; insert into ticket values ('smuggled')")

            body = message("t", type="ticket")
            neighbour = message("n", type="ticket")
            first = await app.process(body)
            assert first.status == ("dead" if how == "reject" else "retry"), first
            if how != "reject":
                assert (await app.process(body)).status == "done"
            await app.process(neighbour)

    run(story())
    expected = [] if how == "reject" else ["t-2"]
    assert [ticket for ticket in tickets(tmp_path) if not ticket.startswith("n")] == expected


def test_one_failure_does_not_undo_its_neighbours(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            await with_table(app)

            @app.on("ticket", effect="transaction")
            async def open_ticket(event: Event, ctx: Context) -> None:
                ctx.tx.execute("insert into ticket values (?)", (event.id,))
                await asyncio.sleep(0)
                if event.body["n"] % 3 == 0:
                    raise ValueError("every third fails")

            outcomes = await app.process_many([message(f"t{n}", type="ticket", n=n) for n in range(12)])
            assert [outcome.status for outcome in outcomes] == ["retry", "done", "done"] * 4

    run(story())
    assert sorted(tickets(tmp_path)) == sorted(f"t{n}" for n in range(12) if n % 3)


def test_the_handle_refuses_a_handler_that_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, random=lambda: 0.0) as app:
            await with_table(app)
            refused: list[BaseException] = []

            @app.on("ticket", effect="transaction", timeout=0.2)
            async def stubborn(event: Event, ctx: Context) -> None:
                if ctx.attempt > 1:
                    return

                async def later() -> None:
                    await asyncio.sleep(0.6)
                    try:
                        ctx.tx.execute("insert into ticket values ('late')")
                    except TransactionOver as error:
                        refused.append(error)

                tasks.append(asyncio.create_task(later()))
                await asyncio.sleep(5)

            tasks: list[asyncio.Task[None]] = []
            body = message("t", type="ticket")
            assert (await app.process(body)).status == "retry"
            assert (await app.process(body)).status == "done"
            await tasks[0]
            assert len(refused) == 1

    run(story())
    assert tickets(tmp_path) == []


def test_a_handler_that_ignores_its_timeout_gives_the_write_lock_back_at_its_timeout(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, random=lambda: 0.0, lease=60) as app:
            await with_table(app)
            refused: list[TransactionOver] = []
            may_end = asyncio.Event()

            @app.on("ticket", effect="transaction", timeout=0.3)
            async def stubborn(event: Event, ctx: Context) -> str:
                if ctx.attempt > 1:
                    return "second"
                ctx.tx.execute("insert into ticket values ('undone')")
                while not may_end.is_set():
                    try:
                        await may_end.wait()
                    except asyncio.CancelledError:
                        continue
                try:
                    ctx.tx.execute("insert into ticket values ('late')")
                except TransactionOver as error:
                    refused.append(error)
                return "first"

            @app.on("other")
            async def other(event: Event, ctx: Context) -> None: ...

            body = message("t", type="ticket")
            running = asyncio.create_task(app.process(body))
            await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(10):  # the lease is 60 s
                    assert (await app.process(message(type="other"))).status == "done"
                assert not running.done(), "inconclusive: the handler has ended"
            finally:
                may_end.set()
            first = await running
            assert (first.status, "0.3 s" in first.reason) == ("retry", True)
            assert len(refused) == 1
            assert (await app.process(body)).result == "second"

    run(story())
    assert tickets(tmp_path) == []


def test_sync_handlers_may_use_the_transaction_from_their_thread(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            await with_table(app)

            @app.on("ticket", effect="transaction")
            def open_ticket(event: Event, ctx: Context) -> None:
                ctx.tx.executemany("insert into ticket values (?)", [(f"{event.id}-{n}",) for n in range(3)])

            assert (await app.process(message("t", type="ticket"))).status == "done"

    run(story())
    assert tickets(tmp_path) == ["t-0", "t-1", "t-2"]


def test_other_events_go_on_beside_transactions(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            await with_table(app)

            @app.on("ticket", effect="transaction")
            async def open_ticket(event: Event, ctx: Context) -> None:
                ctx.tx.execute("insert into ticket values (?)", (event.id,))
                await asyncio.sleep(0.002)

            @app.on("other")
            async def other(event: Event, ctx: Context) -> None: ...

            bodies = [message(f"t{n}", type="ticket" if n % 2 else "other") for n in range(100)]
            outcomes = await asyncio.gather(*[app.process(body) for body in [*bodies, *bodies]])
            assert sorted({outcome.status for outcome in outcomes}) in (
                ["busy", "done"],
                ["done", "duplicate"],
                ["busy", "done", "duplicate"],
            )
            assert sum(outcome.status == "done" for outcome in outcomes) == 100

    run(story())
    assert len(tickets(tmp_path)) == len(set(tickets(tmp_path))) == 50


def test_only_a_transaction_has_ctx_tx(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            said: list[str] = []

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                try:
                    ctx.tx.execute("select 1")
                except ConfigError as error:
                    said.append(str(error))

            await app.process(message())
            assert "effect='retry'" in said[0]

    run(story())
