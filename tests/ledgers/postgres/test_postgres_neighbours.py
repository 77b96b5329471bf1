"""Handlers that share a connection, a commit or a batch do not cause each other's failures."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import asyncpg
import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, granted, keys, opened, soon

from semel import Context, Event, Outcome, Semel
from semel.ledgers.postgres import PostgresLedger, claims
from semel.ledgers.postgres import claims as renewing
from semel.ledgers.postgres import transaction as groups
from semel.values.claim import Busy, Granted, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done

TRIES = 2


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waiting sessions are one group, however slow the machine is."""
    monkeypatch.setattr(groups, "GROUP_S", SOON_S)


@pytest.fixture
def tables(url: str) -> str:
    async def make() -> None:
        async with connected(url) as connection:
            await connection.execute(
                """
                create table if not exists parent (id integer primary key);
                create table if not exists child (parent integer references parent deferrable initially deferred);
                create table if not exists counter (id integer primary key, n integer not null);
                insert into counter values (1, 0), (2, 0) on conflict (id) do update set n = 0;
                """
            )

    asyncio.run(make())
    return url


def body(number: int, kind: str) -> dict[str, object]:
    return {"id": f"{kind}-{number}", "type": kind, "data": {"number": number}}


def app_on(url: str, kind: str, sql: str) -> Semel:
    """Event 1 runs this SQL, the others run harmless statements."""
    app = Semel(f"{url}?transactions=1")

    @app.on(kind, effect="transaction", max_attempts=TRIES)
    async def handle(event: Event, ctx: Context) -> None:
        await ctx.tx.execute(sql if event.body["number"] == 1 else "select 1")

    return app


async def to_its_end(app: Semel, kind: str) -> tuple[Outcome, list[str]]:
    """Deliver event 1 with another event until it is final. Return its outcome and those of the others."""
    neighbours: list[str] = []
    async with asyncio.timeout(SOON_S):
        for turn in range(1000):
            one, other = await app.process_many([body(1, kind), body(100 + turn, kind)])
            neighbours.append(other.status)
            if one.final:
                return one, neighbours
            await asyncio.sleep(0.05)
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize(
    ("kind", "sql"),
    [
        ("late.constraint", "insert into child values (7)"),
        ("kills.itself", "select pg_terminate_backend(pg_backend_pid())"),
    ],
)
def test_an_event_that_always_breaks_its_transaction_is_given_up_and_the_others_are_done(
    tables: str, patient: None, kind: str, sql: str
) -> None:
    async def run() -> None:
        async with app_on(tables, kind, sql) as app:
            one, neighbours = await to_its_end(app, kind)
            assert one.status == "dead"
            assert f"{TRIES} attempts" in one.reason
            assert set(neighbours) == {"done"}

    asyncio.run(run())


def test_the_settle_does_not_depend_on_the_handlers_settings(tables: str, patient: None) -> None:
    sql = "set role pg_read_all_stats; set statement_timeout = 1; set standard_conforming_strings = off"

    async def run() -> None:
        async with app_on(tables, "set.role", sql) as app:
            outcomes = await app.process_many([body(1, "set.role"), body(2, "set.role")])
            assert [outcome.status for outcome in outcomes] == ["done", "done"]

    asyncio.run(run())


def test_session_objects_of_a_handler_are_removed_after_its_group(tables: str) -> None:
    """Otherwise a lock stays with an idle connection, and the next handler waits for it forever."""

    async def run() -> None:
        sql = "select pg_advisory_lock(99); create temporary table scratch (x integer)"
        async with app_on(tables, "leaves.things", sql) as app, connected(tables) as connection:
            assert (await app.process(body(1, "leaves.things"))).status == "done"

            async def is_free() -> bool:
                return bool(await connection.fetchval("select pg_try_advisory_lock(99)"))

            async def is_dropped() -> bool:
                return not await connection.fetchval("select count(*) from pg_class where relname = 'scratch'")

            await soon(is_free)
            await soon(is_dropped)

    asyncio.run(run())


def test_a_deadlock_caused_by_a_group_is_no_failed_attempt(tables: str, patient: None) -> None:
    """Each handler writes one row and cannot deadlock alone. Two groups can: rows 1 then 2, and 2 then 1."""
    met = 0

    async def one_of(ledger: PostgresLedger, one: Granted, row: int, gate: asyncio.Barrier | None) -> str:
        nonlocal met
        async with ledger.transaction(one.lease) as transaction:
            try:
                await transaction.handle.execute("update counter set n = n + 1 where id = $1", row)
            except Exception:
                met += 1
                return "failed"
            if gate is not None:
                await gate.wait()
            assert await transaction.settle(Settlement(one.lease, Done()))
        return "done"

    async def run() -> None:
        both = asyncio.Barrier(2)
        async with opened(tables, "?transactions=1") as here, opened(tables, "?transactions=1") as there:
            some = await granted(here, keys().claims(4))
            answers = await asyncio.gather(
                *[one_of(here, some[0], 1, both), one_of(here, some[1], 2, None)],
                *[one_of(there, some[2], 2, both), one_of(there, some[3], 1, None)],
                return_exceptions=True,
            )
            assert met >= 1, "inconclusive: there was no deadlock"
            assert "failed" not in answers, "it was told as the handler's own failure"
            told = [answer for answer in answers if answer != "done"]
            assert told
            assert all(isinstance(answer, LedgerUnavailable) for answer in told)
            again = [one for one, answer in zip(some, answers, strict=True) if answer != "done"]
            ends = [await one_of(here, one, 1, None) for one in again]
            assert set(ends) == {"done"}

    asyncio.run(run())


def test_renewals_wait_once_for_all_leases_that_are_being_settled(tables: str, patient: None) -> None:
    async def run() -> None:
        async with opened(tables, "?transactions=1") as ledger:
            harness = keys()
            some = await granted(ledger, [harness.claim(f"{at}", aliases=[f"a{at}"] * (at % 2)) for at in range(10)])
            *settling, slow, free = some
            may_go_on, reached = asyncio.Event(), asyncio.Event()

            async def settle(one: Granted, wait: bool = False) -> None:
                async with ledger.transaction(one.lease) as transaction:
                    if wait:
                        reached.set()
                        await may_go_on.wait()
                    assert await transaction.settle(Settlement(one.lease, Done()))

            under_way = [asyncio.create_task(settle(one)) for one in settling]
            under_way.append(asyncio.create_task(settle(slow, wait=True)))
            await reached.wait()
            began = time.monotonic()
            assert await ledger.renew([one.lease for one in some]) == [True] * len(some)
            took_s = time.monotonic() - began
            assert took_s >= renewing.LOCK_S, "inconclusive: nothing was locked"
            assert took_s < len(settling) * renewing.LOCK_S / 2
            may_go_on.set()
            await asyncio.gather(*under_way)
            assert await ledger.renew([one.lease for one in some]) == [one is free for one in some]

    asyncio.run(run())


def test_a_key_whose_holder_hangs_in_its_commit_does_not_delay_the_batch(tables: str) -> None:
    async def run() -> None:
        async with opened(tables, "?timeout=60") as ledger, connected(tables) as connection:
            stopped, other = keys().claims(2)
            await granted(ledger, [stopped])
            async with connection.transaction():
                await connection.execute(
                    "update semel.key set until_ms = until_ms + 1 where digest = $1", stopped.digest
                )
                async with asyncio.timeout(SOON_S):
                    busy, fresh = await ledger.claim([stopped, other])
            assert isinstance(busy, Busy)
            assert isinstance(fresh, Granted)

    asyncio.run(run())


def test_grants_of_a_failed_batch_are_released(tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No caller receives them: they would count as attempts of vanished holders."""
    monkeypatch.setattr(claims, "TRIES", 2)

    async def run() -> None:
        async with opened(tables) as ledger, connected(tables) as connection:
            harness = keys()
            plain, ordered = harness.claim("plain"), harness.claim("ordered", subject="s", position=1)
            assert ordered.order is not None
            async with connection.transaction():
                subject = ordered.order.subject
                await connection.execute(
                    "insert into semel.subject (digest, token, until_ms) values ($1, 0, 0)", subject
                )
                with pytest.raises(LedgerUnavailable, match=r"\b2\b"):
                    await ledger.claim([plain, ordered])
            first, second = await granted(ledger, [plain, ordered])
            assert (first.attempt, first.takeover) == (second.attempt, second.takeover) == (1, False)

    asyncio.run(run())


def test_a_session_that_joins_when_a_group_task_ends_is_served(tables: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks may run, and join, between the last look at the queue and the end of the task."""
    joined: list[asyncio.Task[None]] = []

    def and_then(real: Callable[[groups.Groups], groups.Session | None], start: Callable[[], None]) -> None:
        def look(self: groups.Groups) -> groups.Session | None:
            session = real(self)
            if session is None and not joined and sys._getframe(1).f_code.co_name == "_run_groups":
                start()
            return session

        monkeypatch.setattr(groups.Groups, "_next", look)

    async def run() -> None:
        async with opened(tables, "?transactions=1") as ledger:
            first, second = await granted(ledger, [keys().claim("a", lease_ms=10 * 60_000), keys().claim("b")])

            async def one_of(one: Granted) -> None:
                async with ledger.transaction(one.lease) as transaction:
                    assert await transaction.settle(Settlement(one.lease, Done()))

            and_then(groups.Groups._next, lambda: joined.append(asyncio.create_task(one_of(second))))
            await one_of(first)
            await soon_true(lambda: bool(joined))
            async with asyncio.timeout(SOON_S / 4):
                await joined[0]

    asyncio.run(run())


async def soon_true(true: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return true()

    await soon(asked)


def test_connections_to_a_read_only_server_are_not_kept(tables: str) -> None:
    """As after a failover that closes no connection: open connections stay with the demoted primary."""
    database = tables.rpartition("/")[2]

    async def run() -> None:
        async with connected(tables) as connection, opened(tables) as ledger:
            (one,) = await granted(ledger, keys().claims(1))
            await connection.execute(f"alter database {database} set default_transaction_read_only = on")
            async with opened(tables) as stale:

                async def write() -> None:
                    async with stale.transaction(one.lease) as transaction:
                        with suppress(asyncpg.ReadOnlySQLTransactionError):
                            await transaction.handle.execute("update counter set n = n + 1")

                for _ in range(2):
                    with pytest.raises(LedgerUnavailable, match="read"):
                        await stale.claim(keys().claims(1))
                    with pytest.raises(LedgerUnavailable, match="read"):
                        await write()
                await connection.execute(f"alter database {database} reset default_transaction_read_only")
                await granted(stale, keys().claims(1))
                await write()

    asyncio.run(run())
