"""Transactions of handlers on PostgreSQL: groups, interruptions, lost replies, waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, granted, keys, opened, soon

from semel.ledgers.postgres import PostgresLedger
from semel.ledgers.postgres import transaction as groups
from semel.ledgers.postgres.transaction import check_statements
from semel.testing.harness import FakeClock
from semel.testing.proxy import FaultProxy
from semel.values.claim import Busy, DeadLetter, Granted, Settled, Settlement, Stale
from semel.values.errors import LedgerUnavailable, TransactionOver
from semel.values.outcome import Done, Ending, Reject, Retry

LONG_S = 3600


@pytest.fixture
def table(url: str) -> str:
    async def make() -> None:
        async with connected(url) as connection:
            await connection.execute("create table if not exists effect (id serial, name text); truncate effect")

    asyncio.run(make())
    return url


@pytest.fixture
def proxy(url: str) -> Iterator[FaultProxy]:
    place = urlsplit(url)
    with FaultProxy(place.hostname or "", place.port or 5432) as proxy:
        yield proxy


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waiting sessions are one group, however slow the machine is."""
    monkeypatch.setattr(groups, "GROUP_S", SOON_S)


async def written(url: str) -> list[str]:
    async with connected(url) as connection:
        return [row[0] for row in await connection.fetch("select name from effect order by id")]


async def run_one(ledger: PostgresLedger, one: Granted, name: str, pause_s: float = 0.0) -> bool:
    async with ledger.transaction(one.lease) as transaction:
        await transaction.handle.execute("insert into effect (name) values ($1)", name)
        await asyncio.sleep(pause_s)
        if name.startswith("bad"):
            raise ZeroDivisionError
        return await transaction.settle(Settlement(one.lease, Done(name.encode())))


# ---------------------------------------------------------------------------------------------------------- groups


def test_events_that_wait_for_a_connection_share_a_commit(table: str, patient: None) -> None:
    commits: list[str] = []

    async def run() -> None:
        async with opened(table, "?transactions=1", observe=commits.append) as ledger:
            some = await granted(ledger, keys().claims(12))
            commits.clear()
            names = [f"bad {at}" if at % 4 == 1 else f"good {at}" for at in range(12)]
            answers = await asyncio.gather(
                *[run_one(ledger, one, name) for one, name in zip(some, names, strict=True)], return_exceptions=True
            )
            assert [answer is True for answer in answers] == [name.startswith("good") for name in names]
            assert await written(table) == [name for name in names if name.startswith("good")]
            assert commits.count("before_commit") == 1, "one commit for all of them"
            verdicts = await ledger.claim([one.lease.claim for one in some])
            assert [type(verdict) for verdict in verdicts] == [
                Settled if name.startswith("good") else Busy for name in names
            ]

    asyncio.run(run())


def test_leases_of_every_kind_are_settled_by_one_commit(table: str, patient: None) -> None:
    async def one_of(ledger: PostgresLedger, one: Granted, ending: Ending) -> bool:
        async with ledger.transaction(one.lease) as transaction:
            return await transaction.settle(Settlement(one.lease, ending, DeadLetter(b"{}", 1)))

    async def run() -> None:
        harness = keys()
        async with opened(table, "?transactions=1") as ledger:
            claims = [
                harness.claim("plain"),
                harness.claim("alias", aliases=["x", "y"]),
                harness.claim("ordered", subject="s", position=2),
                harness.claim("dead", aliases=["z"], subject="t"),
                harness.claim("later"),
            ]
            endings: list[Ending] = [Done(b"1"), Done(b"2"), Done(b"3"), Reject("no"), Retry(60)]
            some = await granted(ledger, claims)
            assert all(await asyncio.gather(*[one_of(ledger, *pair) for pair in zip(some, endings, strict=True)]))
            asked = [*claims, harness.claim("b", aliases=["y"]), harness.claim("older", subject="s", position=1)]
            *settled, later, aliased, older = await ledger.claim(asked)
            assert settled == [Settled(Done(b"1")), Settled(Done(b"2")), Settled(Done(b"3")), Settled(Reject("no"))]
            assert isinstance(later, Busy)
            assert (aliased, older) == (Settled(Done(b"2")), Stale(2))
            assert [entry.reason for entry in await ledger.history(claims[3].digest.hex())] == ["no"]

    asyncio.run(run())


def test_a_group_has_a_bounded_size(table: str, patient: None) -> None:
    commits: list[str] = []

    async def run() -> None:
        async with opened(table, "?transactions=1&group=2", observe=commits.append) as ledger:
            some = await granted(ledger, keys().claims(6))
            commits.clear()
            assert all(await asyncio.gather(*[run_one(ledger, one, "good") for one in some]))
            assert commits.count("before_commit") == 3

    asyncio.run(run())


def test_later_groups_do_not_wait_for_a_slow_handler(table: str) -> None:
    async def run() -> None:
        async with opened(table, "?transactions=2") as ledger:
            slow, quick = await granted(ledger, keys().claims(2))
            running = asyncio.create_task(run_one(ledger, slow, "slow", pause_s=LONG_S))
            await asyncio.sleep(0.05)
            async with asyncio.timeout(SOON_S):
                assert await run_one(ledger, quick, "quick")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await written(table) == ["quick"]

    asyncio.run(run())


def test_settings_of_one_handler_do_not_affect_another(table: str, patient: None) -> None:
    async def one_of(ledger: PostgresLedger, one: Granted, keep: bool) -> str:
        async with ledger.transaction(one.lease) as transaction:
            found = await transaction.handle.fetchval("show search_path")
            await transaction.handle.execute("set search_path = pg_catalog; set statement_timeout = 77")
            if keep:
                assert await transaction.settle(Settlement(one.lease, Done()))
        return str(found)

    async def run() -> None:
        async with opened(table, "?transactions=1") as ledger:
            some = await granted(ledger, keys().claims(6))
            found = await asyncio.gather(*[one_of(ledger, one, at % 3 != 0) for at, one in enumerate(some)])
            found += [await one_of(ledger, some[0], keep=False)]
            assert set(found) == {'"$user", public'}

    asyncio.run(run())


def test_the_same_outcome_a_second_time_does_not_write_twice(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger:
            (one,) = await granted(ledger, [keys().claim("a")])
            assert await run_one(ledger, one, "once") is True
            assert await run_one(ledger, one, "once") is False
            assert await written(table) == ["once"]

    asyncio.run(run())


def test_a_renewal_does_not_wait_for_long_for_a_lease_that_is_being_settled(table: str) -> None:
    clock = FakeClock()

    async def run() -> None:
        async with opened(table, clock=clock) as ledger:
            settling, other = await granted(ledger, [keys().claim("a"), keys().claim("b", subject="s")])
            async with ledger.transaction(settling.lease) as transaction:
                assert await transaction.settle(Settlement(settling.lease, Done(b"1")))
                async with asyncio.timeout(SOON_S):
                    assert await ledger.renew([settling.lease, other.lease]) == [True, True]
            assert await ledger.claim([settling.lease.claim]) == [Settled(Done(b"1"))]
            assert await ledger.renew([settling.lease, other.lease]) == [False, True]

    asyncio.run(run())


# ---------------------------------------------------------------------------------------------------- interruptions


def test_a_backend_that_is_terminated_leaves_nothing(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger, connected(table) as connection:
            (one,) = await granted(ledger, [keys().claim("a")])

            async def doomed() -> None:
                async with ledger.transaction(one.lease) as transaction:
                    await transaction.handle.execute("insert into effect (name) values ('lost')")
                    pid = await transaction.handle.fetchval("select pg_backend_pid()")
                    assert await connection.fetchval("select pg_terminate_backend($1)", pid)
                    await _gone(connection, pid)
                    await transaction.settle(Settlement(one.lease, Done()))

            with pytest.raises(LedgerUnavailable):
                await doomed()
            assert await written(table) == []
            assert isinstance((await ledger.claim([one.lease.claim]))[0], Busy)
            assert await run_one(ledger, one, "again") is True
            assert await written(table) == ["again"]

    asyncio.run(run())


def test_a_backend_terminated_after_the_settle_fails_only_its_group(table: str, patient: None) -> None:
    async def run() -> None:
        async with opened(table, "?transactions=1") as ledger, connected(table) as connection:
            first, second, third = await granted(ledger, keys().claims(3))
            began = asyncio.Event()

            async def doomed() -> None:
                async with ledger.transaction(second.lease) as transaction:
                    began.set()
                    pid = await transaction.handle.fetchval("select pg_backend_pid()")
                    assert await transaction.settle(Settlement(second.lease, Done()))
                    assert await connection.fetchval("select pg_terminate_backend($1)", pid)
                    await _gone(connection, pid)

            answers = await asyncio.gather(run_one(ledger, first, "first"), doomed(), return_exceptions=True)
            assert all(isinstance(answer, LedgerUnavailable) for answer in answers), answers
            assert await written(table) == []
            assert await asyncio.gather(*[run_one(ledger, one, "ok") for one in (first, second, third)]) == [True] * 3
            assert await written(table) == ["ok"] * 3

    asyncio.run(run())


async def _gone(connection: asyncpg.Connection, pid: int) -> None:
    async def is_gone() -> bool:
        return not await connection.fetchval("select exists (select from pg_stat_activity where pid = $1)", pid)

    await soon(is_gone)


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_commit_whose_reply_is_lost_is_checked(table: str, proxy: FaultProxy, patient: None, lost: str) -> None:
    """A lost reply: the write took effect and is reported so. A lost request: it did not, and is reported so."""

    def lose(boundary: str) -> None:
        if boundary == "before_commit" and armed:
            armed.clear()
            proxy.lose("reply" if lost == "reply" else "request")

    armed: list[bool] = []

    async def run() -> None:
        async with opened(proxy.url(table), "?transactions=1", observe=lose) as ledger:
            some = await granted(ledger, keys().claims(3))
            armed.append(True)
            answers = await asyncio.gather(
                *[run_one(ledger, one, f"{at}") for at, one in enumerate(some)], return_exceptions=True
            )
            verdicts = await ledger.claim([one.lease.claim for one in some])
            for at, (answer, verdict) in enumerate(zip(answers, verdicts, strict=True)):
                assert (answer is True) == isinstance(verdict, Settled), at
                assert answer is True or isinstance(answer, LedgerUnavailable)
            names = await written(table)
            assert names == (["0", "1", "2"] if lost == "reply" else [])

    asyncio.run(run())
    assert proxy.seen.lost_replies if lost == "reply" else proxy.seen.lost_requests, "the fault did not land"


def test_a_deferred_constraint_fails_at_the_settle_and_keeps_nothing(table: str) -> None:
    async def run() -> None:
        async with connected(table) as connection:
            await connection.execute(
                "create table if not exists late (id integer unique deferrable initially deferred); truncate late"
            )
        async with opened(table) as ledger:
            (one,) = await granted(ledger, [keys().claim("a")])

            async def too_late() -> None:
                async with ledger.transaction(one.lease) as transaction:
                    await transaction.handle.execute("insert into late values (1), (1)")
                    await transaction.settle(Settlement(one.lease, Done()))

            with pytest.raises(TransactionOver, match="late_id_key"):
                await too_late()
            assert isinstance((await ledger.claim([one.lease.claim]))[0], Busy)
            assert await run_one(ledger, one, "after") is True

    asyncio.run(run())


def test_a_missing_connection_for_a_transaction_is_reported_in_time(table: str) -> None:
    async def run() -> None:
        async with opened(table, "?transactions=1&pool_wait=0.1") as ledger:
            harness = keys()
            holding, waiting = await granted(ledger, [harness.claim(f"{at}", lease_ms=200) for at in range(2)])
            async with ledger.transaction(holding.lease):
                with pytest.raises(LedgerUnavailable, match="transactions="):
                    async with ledger.transaction(waiting.lease):
                        pass
            assert await run_one(ledger, waiting, "then") is True

    asyncio.run(run())


# ---------------------------------------------------------------------------------------------------------- waiting


def test_waiting_ends_with_the_transaction_that_holds_the_key(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger, opened(table) as other:
            claims = keys().claims(9)
            some = await granted(ledger, claims)
            began, go = asyncio.Event(), asyncio.Event()

            async def hold() -> None:
                async with ledger.transaction(some[0].lease) as transaction:
                    began.set()
                    await go.wait()
                    assert await transaction.settle(Settlement(some[0].lease, Done(b"1")))

            holding = asyncio.create_task(hold())
            await began.wait()
            waiters = [asyncio.create_task(other.wait(claims[0], SOON_S)) for _ in range(8)]  # more than connections
            await asyncio.sleep(0.4)
            assert not any(waiter.done() for waiter in waiters)
            async with asyncio.timeout(SOON_S):
                await granted(other, [keys().claim("beside")])  # waiters do not use up the pool
            go.set()
            async with asyncio.timeout(SOON_S):
                await asyncio.gather(holding, *waiters)
            assert await other.claim([claims[0]]) == [Settled(Done(b"1"))]
            async with asyncio.timeout(SOON_S):
                await other.wait(claims[1], SOON_S)  # it is not held

    asyncio.run(run())


def test_waiting_ends_when_its_time_is_over(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger:
            (one,) = await granted(ledger, [keys().claim("a")])
            async with ledger.transaction(one.lease):
                begun = time.monotonic()
                await asyncio.gather(*[ledger.wait(one.lease.claim, 0.3) for _ in range(6)])
                assert time.monotonic() - begun >= 0.29

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------------- the handle


@pytest.mark.parametrize(
    "text",
    [
        *("COMMIT", " commit work;", "begin", "START TRANSACTION", "end", "abort", "rollback", "rollback work"),
        *("select 1; commit", "/* x */commit", "-- x\ncommit", "select ';'; commit", "select $$;$$; commit"),
        *("prepare transaction 'x'", "release semel_session", 'rollback to savepoint "semel_session"'),
        *("select e'\\'; '; commit", "commit and chain", "rollback and chain", "/* /* */ */ commit"),
    ],
)
def test_a_handler_cannot_end_its_transaction(text: str) -> None:
    with pytest.raises(TransactionOver):
        check_statements(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ";", "select 1", "savepoint mine", "rollback to mine", "rollback to savepoint mine", "release mine"),
        *("select 'commit'", "select $$ ; commit; $$", "select $a$ ; commit $$ ; $a$", "-- commit", "/* ; commit */"),
        *('select "commit"', "prepare q as select 1", "insert into t values ('it''s; commit')", "select 1 -- ; commit"),
    ],
)
def test_statements_that_do_not_end_the_transaction_are_allowed(text: str) -> None:
    check_statements(text)


def test_a_failed_statement_is_explained_at_the_settle(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger:
            (one,) = await granted(ledger, [keys().claim("a")])

            async def careless() -> None:
                async with ledger.transaction(one.lease) as transaction:
                    with pytest.raises(asyncpg.PostgresError):
                        await transaction.handle.execute("selec 1")
                    await transaction.settle(Settlement(one.lease, Done()))

            with pytest.raises(TransactionOver, match=r"ctx\.tx\.transaction\(\)"):
                await careless()
            async with ledger.transaction(one.lease) as transaction:
                with pytest.raises(asyncpg.PostgresError):
                    async with transaction.handle.transaction():
                        await transaction.handle.execute("selec 1")
                await transaction.handle.executemany("insert into effect (name) values ($1)", [("x",), ("y",)])
                assert [row["name"] for row in await transaction.handle.fetch("select name from effect")] == ["x", "y"]
                assert await transaction.handle.fetchrow("select name from effect where false") is None
                assert await transaction.settle(Settlement(one.lease, Reject("no")))
            assert await written(table) == ["x", "y"]

    asyncio.run(run())


def test_concurrent_statements_are_refused_without_harm(table: str) -> None:
    async def run() -> None:
        async with opened(table) as ledger:
            (one,) = await granted(ledger, [keys().claim("a")])
            async with ledger.transaction(one.lease) as transaction:
                sleeping = asyncio.create_task(transaction.handle.execute("select pg_sleep(0.1)"))
                await asyncio.sleep(0)
                with pytest.raises(TransactionOver, match="statement"):
                    await transaction.handle.execute("select 1")
                await sleeping
                await transaction.handle.execute("insert into effect (name) values ('x')")
                assert await transaction.settle(Settlement(one.lease, Done()))
            assert await written(table) == ["x"]

    asyncio.run(run())
