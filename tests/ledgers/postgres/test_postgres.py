"""The PostgreSQL ledger itself: round trips, HOT updates, deadlocks, its pool, its clock."""

from __future__ import annotations

import asyncio
import multiprocessing
from itertools import count
from urllib.parse import urlsplit

import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, granted, keys, opened, soon
from tests.ledgers.postgres.relay import Relay

from semel.ledgers.postgres import PostgresLedger, profiles
from semel.ports import Migrates, TransactionalLedger, Waits
from semel.testing.harness import FakeClock, Harness
from semel.testing.proxy import BLACK_HOLE, FaultProxy
from semel.values.claim import Busy, Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain


def test_it_implements_its_ports(url: str) -> None:
    ledger = PostgresLedger.from_url(url)
    assert isinstance(ledger, TransactionalLedger)
    assert isinstance(ledger, Waits)
    assert isinstance(ledger, Migrates)
    assert ledger.traits in profiles()
    assert ledger.traits.async_handle


# ---------------------------------------------------------------------------------------------------- round trips


def test_a_batch_is_one_round_trip_to_claim_and_one_to_settle(url: str) -> None:
    async def run() -> None:
        async with Relay(url) as relay, opened(relay.url) as ledger:
            harness = keys()
            warm = await granted(ledger, [harness.claim("warm", fingerprint="1")])
            await ledger.settle([Settlement(warm[0].lease, Done())])
            claims = [harness.claim(f"key {at}", fingerprint="1") for at in range(100)]
            before = relay.round_trips
            leases = [one.lease for one in await granted(ledger, claims)]
            assert relay.round_trips - before == 1
            assert all(await ledger.settle([Settlement(lease, Done(b"1")) for lease in leases]))
            assert relay.round_trips - before == 2
            again = await ledger.claim([*claims, *claims[:10], *[harness.claim(f"new {at}") for at in range(50)]])
            assert [type(verdict) for verdict in again] == [Settled] * 110 + [Granted] * 50
            assert relay.round_trips - before == 3, "duplicates and new keys together"

    asyncio.run(run())


def test_every_ending_is_one_round_trip(url: str) -> None:
    async def run() -> None:
        async with Relay(url) as relay, opened(relay.url) as ledger:
            harness = keys()
            endings: list[Ending] = [Done(), Reject("no"), Uncertain("?"), Retry(5), Release()]
            before = 0
            for turn in range(2):  # statements are prepared in the first
                claims = [
                    harness.claim(f"{turn} {at}", aliases=[f"{turn} {at}"][: at % 2], subject=f"{turn} {at}")
                    for at in range(20)
                ]
                leases = [one.lease for one in await granted(ledger, claims)]
                before = relay.round_trips
                dead_letter = DeadLetter(b"{}", 1)
                settlements = [Settlement(lease, endings[at % 5], dead_letter) for at, lease in enumerate(leases)]
                assert await ledger.settle(settlements) == [True] * 20
            assert relay.round_trips - before == 1

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------------------- HOT


def test_a_settle_is_a_hot_update(fresh_url: str) -> None:
    async def run() -> None:
        async with opened(fresh_url) as ledger, connected(fresh_url) as connection:
            for turn in range(20):
                leases = [one.lease for one in await granted(ledger, keys().claims(100))]
                result = b'"%s"' % (b"x" * 20)
                assert all(await ledger.settle([Settlement(lease, Done(result)) for lease in leases])), turn
            await ledger.close()  # its statistics are reported at the end

            async def told() -> bool:
                await connection.execute("select pg_stat_clear_snapshot()")
                row = await connection.fetchrow(
                    "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'key'"
                )
                assert row is not None
                assert row[1] >= 0.95 * row[0], f"of {row[0]} settles {row[1]} were HOT"
                return bool(row[0] == 2000)

            await soon(told)

    asyncio.run(run())


def test_nothing_reads_the_whole_table_though_it_was_empty_when_plans_were_made(fresh_url: str) -> None:
    async def run() -> None:
        async with opened(fresh_url) as ledger, connected(fresh_url) as connection:
            scans = "select n_tup_ins, seq_scan from pg_stat_user_tables where relname = 'key'"
            before = await connection.fetchrow(scans)  # making its indexes reads a table, too
            assert before is not None
            for turn in range(10):
                harness = keys()
                claims = [harness.claim(f"{at}", aliases=[f"{at}"][: at % 5 == 0], subject=f"{at}") for at in range(20)]
                some = await granted(ledger, [*claims, *harness.claims(80)])
                assert all(await ledger.renew([one.lease for one in some]))
                for one in some[-3:]:
                    async with ledger.transaction(one.lease) as transaction:
                        assert await transaction.settle(Settlement(one.lease, Done()))
                rest = [one.lease for one in some[:-3]]
                endings: list[Ending] = [Done(), Retry(0), Release(), Reject("no")]
                assert all(await ledger.settle([Settlement(one, endings[at % 4]) for at, one in enumerate(rest)])), turn
                await ledger.purge(10)
            await ledger.close()

            async def told() -> bool:
                await connection.execute("select pg_stat_clear_snapshot()")
                row = await connection.fetchrow(scans)
                assert row is not None
                assert row[1] == before[1]
                return bool(row[0] >= 1000)

            await soon(told)

    asyncio.run(run())


# ----------------------------------------------------------------------------------------------------------- races


def test_batches_with_crossed_keys_do_not_deadlock(fresh_url: str) -> None:
    """Same keys in every order, with aliases and subjects, claimed, renewed, settled and purged at once."""
    clock = FakeClock()

    async def worker(ledger: PostgresLedger, harness: Harness, number: int) -> int:
        won = 0
        for turn in range(12):
            claims = [
                harness.claim(
                    f"{turn} {at}",
                    aliases=[f"{turn} {at // 2}"] if at % 3 == 0 else (),
                    subject=f"{turn} {at % 4}" if at % 3 == 1 else None,
                    position=at,
                )
                for at in range(24)
            ]
            ordered = claims[number * 3 :] + claims[: number * 3]
            verdicts = await ledger.claim(ordered if number % 2 else ordered[::-1])
            assert len(verdicts) == len(claims)
            leases = [verdict.lease for verdict in verdicts if isinstance(verdict, Granted)]
            won += len(leases)
            assert all(await ledger.renew(leases))
            endings = (Done(), Retry(0), Release(), Reject("no"))
            assert all(await ledger.settle([Settlement(one, endings[at % 4]) for at, one in enumerate(leases)]))
            await ledger.purge(10)
        return won

    async def run() -> None:
        harness = keys()
        async with (
            connected(fresh_url) as connection,
            opened(fresh_url, "?pool=3", clock) as one,
            opened(fresh_url, "?pool=3", clock) as two,
        ):
            won = await asyncio.gather(*[worker((one, two)[n % 2], harness, n) for n in range(6)])
            assert sum(won) >= 12 * 12
            deadlocks = await connection.fetchval(
                "select deadlocks from pg_stat_database where datname = current_database()"
            )
            assert deadlocks == 0

    asyncio.run(run())


def test_a_claim_does_not_wait_for_a_row_that_a_transaction_holds(url: str) -> None:
    clock = FakeClock()

    async def run() -> None:
        harness = keys()
        async with opened(url, clock=clock) as ledger, opened(url, clock=clock) as other:
            held, free = harness.claim("held"), harness.claim("free")
            (one, two) = await granted(ledger, [held, free])
            clock.now_ms += held.lease_ms  # both have expired
            async with ledger.transaction(one.lease) as transaction:
                assert await transaction.settle(Settlement(one.lease, Done(b"1")))
                async with asyncio.timeout(SOON_S):
                    verdicts = await other.claim([held, free])
            assert [type(verdict) for verdict in verdicts] == [Busy, Granted]
            assert await other.claim([held]) == [Settled(Done(b"1"))]
            assert await ledger.settle([Settlement(two.lease, Done())]) == [False]

    asyncio.run(run())


# ------------------------------------------------------------------------------------------------------------ pool


def test_an_exhausted_pool_waits_and_then_raises(url: str) -> None:
    async def run() -> None:
        harness = keys()
        async with connected(url) as connection, opened(url, "?pool=2&pool_wait=0.2") as ledger:
            (one,) = await granted(ledger, [harness.claim("a")])
            async with connection.transaction():
                await connection.execute("lock table semel.key in access exclusive mode")
                stuck = [asyncio.create_task(ledger.claim([harness.claim(f"{at}")])) for at in range(2)]
                await asyncio.sleep(0.05)
                with pytest.raises(LedgerUnavailable, match=r"\b2\b.*pool="):
                    await ledger.claim([harness.claim("more")])
            assert all([isinstance((await task)[0], Granted) for task in stuck])
            assert await ledger.settle([Settlement(one.lease, Done())]) == [True]

    asyncio.run(run())


def test_the_next_free_connection_goes_to_the_first_waiter(url: str) -> None:
    async def run() -> None:
        harness = keys()
        async with opened(url, "?pool=1") as ledger:
            answers = await asyncio.gather(*[ledger.claim([harness.claim(f"{at}")]) for at in range(50)])
            assert all(isinstance(verdict, Granted) for (verdict,) in answers)

    asyncio.run(run())


def test_dead_connections_are_replaced(url: str) -> None:
    async def run() -> None:
        harness = keys()
        async with connected(url) as connection, opened(f"{url}?application_name=doomed") as ledger:
            await asyncio.gather(*[ledger.claim([harness.claim(f"{at}")]) for at in range(5)])
            killed = await connection.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'doomed'"
            )
            assert killed

            async def works() -> bool:
                try:
                    await ledger.claim([harness.claim("after")])
                except LedgerUnavailable:
                    return False  # it had not noticed yet
                return True

            await soon(works)

    asyncio.run(run())


def test_a_cancelled_caller_leaves_a_usable_connection(url: str) -> None:
    async def run() -> None:
        harness = keys()
        async with connected(url) as connection, opened(url, "?pool=1") as ledger:
            await ledger.claim([harness.claim("warm")])
            async with connection.transaction():
                await connection.execute("lock table semel.key in access exclusive mode")
                callers = [asyncio.create_task(ledger.claim([harness.claim(f"{at}")])) for at in range(3)]
                await asyncio.sleep(0.05)
                for caller in callers:
                    caller.cancel()
                await asyncio.gather(*callers, return_exceptions=True)
                assert all(caller.cancelled() for caller in callers)
            for at in range(10):
                (verdict,) = await ledger.claim([harness.claim(f"after {at}")])
                assert isinstance(verdict, Granted)

    asyncio.run(run())


def test_a_server_that_hangs_is_unavailable(url: str) -> None:
    place = urlsplit(url)

    async def run(proxy: FaultProxy) -> None:
        harness = keys()
        async with opened(proxy.url(url), "?timeout=0.5&connect_timeout=0.5") as ledger:
            (one,) = await granted(ledger, [harness.claim("a")])
            with proxy.fault(BLACK_HOLE):
                for what in ("answer", "connection", "connection"):  # the first on an open one, the others on new ones
                    with pytest.raises(LedgerUnavailable, match=rf"{what}.*0\.5 s"):
                        await ledger.claim([harness.claim("b")])
                assert proxy.seen.swallowed
            assert await ledger.settle([Settlement(one.lease, Done())]) == [True]

    with FaultProxy(place.hostname or "", place.port or 5432) as proxy:
        asyncio.run(run(proxy))


# --------------------------------------------------------------------------------------------------- loop and fork


def test_another_loop_is_refused_until_the_ledger_is_closed(url: str) -> None:
    harness, ledger = keys(), PostgresLedger.from_url(url)
    with asyncio.Runner() as first:
        first.run(ledger.claim([harness.claim("a")]))
        with asyncio.Runner() as second, pytest.raises(LedgerUnavailable, match="event loop"):
            second.run(ledger.claim([harness.claim("b")]))
        first.run(ledger.close())
    with asyncio.Runner() as third:
        (verdict,) = third.run(ledger.claim([harness.claim("b")]))
        assert isinstance(verdict, Granted)
        third.run(ledger.close())


def test_a_forked_child_is_refused(url: str) -> None:
    harness, ledger = keys(), PostgresLedger.from_url(url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ledger.claim([harness.claim("a")]))
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        try:
            asyncio.run(ledger.claim([harness.claim("b")]))
            sender.send("it worked")
        except LedgerUnavailable as error:
            sender.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    assert "forked" in receiver.recv()
    process.join()
    (verdict,) = loop.run_until_complete(ledger.claim([harness.claim("b")]))
    assert isinstance(verdict, Granted)
    loop.run_until_complete(ledger.close())
    loop.close()


# ----------------------------------------------------------------------------------------------------- hostile text


@pytest.mark.parametrize("text", ["a\0b", "\0", "half \ud800 a pair", "😀" * 50, "', drop table", "x" * 100_000])
def test_a_settle_is_written_with_any_text(url: str, text: str) -> None:
    async def run() -> None:
        number = count()
        async with opened(url) as ledger:
            for ending in (Reject(text), Uncertain(text), Retry(60, text), Done(text.encode(errors="replace"))):
                claim = keys().claim("a")
                odd = Claim(claim.digest, f"on {text}", text, 1000, 1000, f"{next(number)} {text}", None)
                (one,) = await granted(ledger, [odd])
                assert await ledger.settle([Settlement(one.lease, ending, DeadLetter(b"\0", 1))]) == [True]
                assert await ledger.settle([Settlement(one.lease, ending, DeadLetter(b"\0", 1))]) == [True]
                (verdict,) = await ledger.claim([odd])
                if isinstance(ending, Retry):
                    assert isinstance(verdict, Busy)
                elif "\ud800" not in text:
                    assert verdict == Settled(ending)
                assert [entry.state for entry in await ledger.history(odd.digest.hex())]

    asyncio.run(run())
