"""The inbox on PostgreSQL: round trips, locks, plans, and terminated backends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import asyncpg
import pytest
from tests.ledgers.postgres.plans import plans_of
from tests.ledgers.postgres.stores import connected

from semel.ledgers.postgres import PostgresLedger, inbox
from semel.ports import DeadLetters, DeadLetterStore, Inbox
from semel.testing.harness import Harness, InboxCaller, altered, arrival, lane, of_handler
from semel.testing.race import Round, race_threads
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Finished, GivenUp, Postponed, Taken

LEASE_MS = 600_000
SCHEMA = "semel"
SETTLED = """
    insert into semel.key (token, until_ms, first_granted_ms, retention_ms, attempts, state, outcome, suspect, digest,
                           tenant, handler, key_text)
    values (nextval('semel.token'), semel.now_ms() + 60000, 0, 60000, 1, 3, 1, false, $1, '', 'h', 'a')
"""  # a key that was claimed and settled
SOON_S = 20.0  # limit for things that happen at once, on a loaded machine


@pytest.fixture
def harness(url: str) -> Harness:
    return Harness(open=partial(PostgresLedger.from_url, url))


@pytest.fixture
def ledger(harness: Harness) -> Iterator[InboxCaller]:
    with InboxCaller(harness.open) as clerk:
        yield clerk


def test_it_has_an_inbox_dead_letters_and_a_dead_letter_store(ledger: InboxCaller) -> None:
    for port in (Inbox, DeadLetters, DeadLetterStore):
        assert isinstance(ledger.ledger, port)


# -------------------------------------------------------------------------------------------------------- round trips


def test_accept_take_and_finish_are_one_round_trip_for_a_batch(url: str, harness: Harness) -> None:
    async def count() -> list[int]:
        came = [arrival(harness, f"key {at}") for at in range(50)]
        async with connected(url) as connection:
            trips: list[int] = []

            async def one(work: Awaitable[Any]) -> Any:
                seen: list[object] = []
                with connection.query_logger(seen.append):
                    answer = await work
                    await asyncio.sleep(0)  # loggers are called by the loop
                trips.append(len(seen))
                return answer

            await _take_and_finish(connection, harness)  # the driver queries each type once
            await one(inbox.accept(connection, came, None, SCHEMA))
            await one(inbox.accept(connection, [*came, *came], None, SCHEMA))
            mixed = [arrival(harness, f"key {at}") for at in range(40, 60)]
            await one(inbox.accept(connection, [*mixed, *mixed], None, SCHEMA))
            taken = await one(inbox.take(connection, {lane(harness): 100}, LEASE_MS, None, SCHEMA))
            assert len(taken) == 61  # with one that was postponed before
            endings = [(Finished(x), Postponed(x, 0), GivenUp(x, "no"))[at % 3] for at, x in enumerate(taken)]
            assert all(await one(inbox.finish(connection, endings, None, SCHEMA)))
            return trips

    assert asyncio.run(count()) == [1] * 5


def test_duplicates_write_nothing(url: str, harness: Harness, ledger: InboxCaller) -> None:
    """No transaction id is assigned, so no caller waits for a disk."""
    came = [arrival(harness, f"key {at}") for at in range(50)]
    ledger.accept_all(came)
    ledger.do(harness.claim("done"))
    came.append(arrival(harness, "done"))

    async def accept_again() -> tuple[list[Acceptance], Any, Any]:
        async with connected(url) as connection, connection.transaction(isolation="read_committed"):
            answers = await inbox.accept(connection, came, None, SCHEMA)
            spent = await connection.fetchval("select pg_current_xact_id_if_assigned()::text")
            await inbox.accept(connection, [arrival(harness, "new")], None, SCHEMA)
            return answers, spent, await connection.fetchval("select pg_current_xact_id_if_assigned()::text")

    answers, spent, spent_later = asyncio.run(accept_again())
    assert {answer.status for answer in answers} == {"duplicate"}
    assert spent is None
    assert spent_later is not None, "inconclusive: it cannot be seen"


# -------------------------------------------------------------------------------------------------------------- locks


def test_a_take_does_not_wait_for_another_take(url: str, harness: Harness, ledger: InboxCaller) -> None:
    """Locked rows are skipped at once, and are found after their release."""
    ledger.accept_all([arrival(harness, f"key {at}", event=b"%d" % at) for at in range(10)])

    async def take_beside() -> tuple[list[bytes], list[bytes]]:
        async with connected(url) as first, connected(url) as second:
            held = first.transaction(isolation="read_committed")
            await held.start()
            mine = await inbox.take(first, {lane(harness): 4}, LEASE_MS, None, SCHEMA)
            theirs = await asyncio.wait_for(
                inbox.take(second, {lane(harness): 100}, LEASE_MS, None, SCHEMA), timeout=SOON_S
            )
            doing = "select state from pg_stat_activity where pid = $1"
            assert await second.fetchval(doing, first.get_server_pid()) == "idle in transaction"
            await held.rollback()
            return [one.event for one in mine], [one.event for one in theirs]

    mine, theirs = asyncio.run(take_beside())
    assert mine == [b"0", b"1", b"2", b"3"]
    assert theirs == [b"%d" % at for at in range(4, 10)]
    assert [one.event for one in ledger.take(harness)] == mine


def test_an_accept_waits_only_for_an_accept_of_the_same_key(url: str, harness: Harness, ledger: InboxCaller) -> None:
    async def accept_beside() -> tuple[list[Acceptance], list[Acceptance], list[Acceptance]]:
        async with connected(url) as first, connected(url) as second, connected(url) as third:
            held = first.transaction(isolation="read_committed")
            await held.start()
            one = await inbox.accept(first, [arrival(harness, "a"), arrival(harness, "b")], None, SCHEMA)
            other = asyncio.create_task(
                inbox.accept(second, [arrival(harness, "b"), arrival(harness, "c")], None, SCHEMA)
            )
            await _waits_for_a_lock(third, second.get_server_pid())
            free = await asyncio.wait_for(inbox.accept(third, [arrival(harness, "d")], None, SCHEMA), timeout=SOON_S)
            assert not other.done()
            await held.commit()
            return one, await other, free

    one, other, free = asyncio.run(accept_beside())
    assert [answer.status for answer in (*one, *other, *free)] == [
        *("accepted", "accepted"),
        *("duplicate", "accepted"),
        "accepted",
    ]
    assert ledger.depth(harness) == (4, 0)


def test_an_event_is_accepted_after_another_accept_of_it_rolled_back(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    """The second waits for the first, whose transaction rolls back: it must not be a duplicate."""

    async def accept_after() -> list[Acceptance]:
        async with connected(url) as first, connected(url) as second, connected(url) as third:
            held = first.transaction(isolation="read_committed")
            await held.start()
            await inbox.accept(first, [arrival(harness, "a")], None, SCHEMA)
            other = asyncio.create_task(inbox.accept(second, [arrival(harness, "a")], None, SCHEMA))
            await _waits_for_a_lock(third, second.get_server_pid())
            await held.rollback()
            return await other

    assert [answer.status for answer in asyncio.run(accept_after())] == ["accepted"]
    assert ledger.depth(harness) == (1, 0)


def test_an_event_that_was_done_while_its_accept_waited_is_a_duplicate(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    """The first event is accepted, handled, settled and purged before the waiting accept looks again."""
    claim = harness.claim("a")

    async def accept_after() -> list[Acceptance]:
        async with connected(url) as first, connected(url) as second, connected(url) as third:
            held = first.transaction(isolation="read_committed")
            await held.start()
            await inbox.accept(first, [arrival(harness, claim)], None, SCHEMA)
            taken = await inbox.take(first, {lane(harness): 1}, LEASE_MS, None, SCHEMA)
            other = asyncio.create_task(inbox.accept(second, [arrival(harness, claim)], None, SCHEMA))
            await _waits_for_a_lock(third, second.get_server_pid())
            await first.execute(SETTLED, claim.digest)
            assert await inbox.finish(first, [Finished(one) for one in taken], None, SCHEMA) == [True]
            await held.commit()
            return await other

    assert [(one.status, one.reason) for one in asyncio.run(accept_after())] == [("duplicate", "done")]
    assert ledger.depth(harness) == (0, 0)


def test_an_accept_is_decided_again_if_its_keys_changed(url: str, harness: Harness, ledger: InboxCaller) -> None:
    """One of its claims is done, and a concurrent accept brings the other: it waits for that, and is a duplicate."""
    one, two = of_handler(harness, "one", "a"), of_handler(harness, "two", "a")
    ledger.do(one)

    async def accept_after() -> list[Acceptance]:
        async with connected(url) as first, connected(url) as second, connected(url) as third:
            held = first.transaction(isolation="read_committed")
            await held.start()
            await inbox.accept(first, [arrival(harness, two)], None, SCHEMA)
            other = asyncio.create_task(inbox.accept(second, [arrival(harness, one, two)], None, SCHEMA))
            await _waits_for_a_lock(third, second.get_server_pid())
            await held.commit()
            return await other

    assert [answer.status for answer in asyncio.run(accept_after())] == ["duplicate"]
    assert ledger.depth(harness) == (1, 0)


def test_keys_are_locked_in_one_order_whatever_the_order_of_the_arrivals(url: str, harness: Harness) -> None:
    """This prevents deadlocks: a transaction that waits for the last key holds all keys before it."""
    low, high = sorted([arrival(harness, "a"), arrival(harness, "b")], key=lambda one: one.claims[0].digest)

    async def accept_beside() -> list[list[Acceptance]]:
        async with connected(url) as first, connected(url) as second, connected(url) as third, connected(url) as looks:
            held = first.transaction(isolation="read_committed")
            await held.start()
            await inbox.accept(first, [high], None, SCHEMA)
            both = asyncio.create_task(inbox.accept(second, [high, low], None, SCHEMA))
            await _waits_for_a_lock(looks, second.get_server_pid())
            late = asyncio.create_task(inbox.accept(third, [low], None, SCHEMA))
            await _waits_for_a_lock(looks, third.get_server_pid())
            await held.commit()
            return [await both, await late]

    both, late = asyncio.run(accept_beside())
    assert [answer.status for answer in (*both, *late)] == ["duplicate", "accepted", "duplicate"]


async def _waits_for_a_lock(connection: Any, pid: int) -> None:
    for _ in range(int(SOON_S / 0.01)):
        found = await connection.fetchval("select wait_event_type from pg_stat_activity where pid = $1", pid)
        if found == "Lock":
            return
        await asyncio.sleep(0.01)
    raise AssertionError("inconclusive: it did not come to wait")


# -------------------------------------------------------------------------------------------------------------- races


class Bringer:
    """Puts arrivals where `semel.testing.race` puts claims."""

    def __init__(self, url: str) -> None:
        self._ledger = PostgresLedger.from_url(url)

    async def claim(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        return await self._ledger.accept(arrivals)

    async def close(self) -> None:
        await self._ledger.close()


def _raced(url: str, batches: Sequence[Sequence[Arrival]]) -> list[list[Acceptance]]:
    opener: Any = partial(Bringer, url)
    rounds: Any = [[Round(claims=batch)] for batch in batches]  # type: ignore[arg-type] # a stand-in
    return [[answer for turn in own for answer in turn.verdicts] for own in race_threads(opener, rounds)]  # type: ignore[misc]


def test_events_that_share_keys_in_any_order_are_accepted_once_without_a_deadlock(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    pairs = [
        arrival(harness, harness.claim(f"{at}", aliases=[f"x {at}"]), harness.claim(f"y {at}"), event=b"%d" % at)
        for at in range(30)
    ]
    answers = _raced(url, [(pairs if racer % 2 else pairs[::-1]) for racer in range(6)])
    statuses = [[answer.status for answer in own] for own in answers]
    told = [own if racer % 2 else own[::-1] for racer, own in enumerate(statuses)]
    for at in range(30):
        assert sorted(own[at] for own in told) == ["accepted"] + ["duplicate"] * 5
    assert sorted(int(one.event) for one in ledger.take(harness)) == list(range(30))


def test_a_key_at_two_order_positions_is_accepted_once_for_each(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    """The key is known and the event is accepted, under locks."""
    places = [
        [arrival(harness, harness.claim(f"{at}", subject="s", position=place), event=b"%d %d" % (at, place))]
        for at in range(12)
        for place in (1, 2, 3)
    ]
    batch = [one for (one,) in places]
    answers = _raced(url, [batch[racer * 5 :] + batch[: racer * 5] for racer in range(6)])
    accepted = [answer.status for own in answers for answer in own].count("accepted")
    assert accepted == len(batch)
    assert len({one.event for one in ledger.take(harness)}) == len(batch)


# ------------------------------------------------------------------------------------------------------------ crashes


def test_a_backend_that_dies_in_the_middle_of_an_accept_leaves_nothing(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    came = [arrival(harness, name) for name in "abc"]

    async def die() -> None:
        victim = PostgresLedger.from_url(url)
        async with connected(url) as blocker, connected(url) as watcher:
            held = blocker.transaction(isolation="read_committed")
            await held.start()
            await inbox.accept(blocker, [max(came, key=lambda one: one.claims[0].digest)], None, SCHEMA)
            asked = asyncio.create_task(victim.accept(came))
            pid = await _one_that_waits(watcher)
            assert await watcher.fetchval("select pg_terminate_backend($1)", pid)
            with pytest.raises(LedgerUnavailable):
                await asked
            await held.rollback()
            left = await watcher.fetchval(
                "select count(*) from semel.inbox_key where digest = any ($1)", [one.claims[0].digest for one in came]
            )
            assert left == 0
            assert {answer.status for answer in await victim.accept(came)} == {"accepted"}
        await victim.close()

    asyncio.run(die())
    assert ledger.depth(harness) == (3, 0)


async def _one_that_waits(watcher: Any) -> int:
    for _ in range(int(SOON_S / 0.01)):
        pid = await watcher.fetchval(
            "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        if pid is not None:
            return int(pid)
        await asyncio.sleep(0.01)
    raise AssertionError("inconclusive: nobody came to wait")


def test_a_take_whose_reply_is_lost_is_due_again_after_its_lease(
    url: str, harness: Harness, ledger: InboxCaller
) -> None:
    ledger.put(arrival(harness, "a"))

    async def vanish() -> Taken:
        connection = await asyncpg.connect(url)
        (taken,) = await inbox.take(connection, {lane(harness): 1}, 200, None, SCHEMA)
        connection.terminate()
        return taken

    lost = asyncio.run(vanish())
    assert ledger.take(harness) == []
    harness.advance(250)
    again = ledger.take_one(harness)
    assert (again.id, again.lapses) == (lost.id, 1)
    assert again.token > lost.token
    assert ledger.finish(Finished(lost)) is False


# -------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("odd", ["nul \0", "half \udcff", "\U0001f4de ä"], ids=["nul", "half", "wide"])
def test_an_event_with_any_text_is_accepted_and_taken(harness: Harness, ledger: InboxCaller, odd: str) -> None:
    claim = altered(harness.claim("a"), text=odd, tenant=odd, handler=odd)
    came = altered(arrival(harness, claim, event=b"\0\xff"), tenant=odd, lane=f"{harness.namespace} {odd}", trace=odd)
    assert ledger.accept(came) == "accepted"
    (taken,) = ledger.take_all({came.lane: 1}, LEASE_MS)
    assert (taken.lane, taken.event) == (came.lane, b"\0\xff")
    assert ledger.finish(Postponed(taken, 0, odd)) is True
    (taken,) = ledger.take_all({came.lane: 1}, LEASE_MS)
    assert ledger.finish(GivenUp(taken, odd)) is True
    assert ledger.accept(came).startswith("duplicate: dead: ")
    assert ledger.replay(claim, odd, odd) is True
    (taken,) = ledger.take_all({came.lane: 1}, LEASE_MS)
    ledger.die(claim, event=taken.event)
    assert ledger.accept(came) == "duplicate: dead: no"
    assert ledger.finish(Finished(taken)) is True
    assert ledger.discard(claim, odd, odd) is True
    assert [entry.state for entry in ledger.history(claim)] == ["discarded", "replayed"]


# -------------------------------------------------------------------------------------------------------------- plans

Work = Callable[[Any, Harness], Awaitable[object]]


async def _accept(connection: Any, harness: Harness) -> None:
    came = [arrival(harness, name) for name in "abc"]
    for _ in range(2):
        await inbox.accept(connection, [*came, arrival(harness, "x", "y")], None, SCHEMA)


async def _take_and_finish(connection: Any, harness: Harness) -> None:
    await inbox.accept(connection, [arrival(harness, name) for name in "abc"], None, SCHEMA)
    one, two, three = await inbox.take(connection, {lane(harness): 9}, LEASE_MS, None, SCHEMA)
    await inbox.finish(connection, [Finished(one), Postponed(two, 0), GivenUp(three, "no")], None, SCHEMA)


async def _is_due(connection: Any, harness: Harness) -> None:
    await connection.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")  # as the pool does
    assert not await inbox.is_due(connection, [lane(harness)], None, SCHEMA)


async def _depths(connection: Any, harness: Harness) -> None:
    await inbox.depths(connection, None, SCHEMA)


PLANS: dict[str, tuple[Work, Sequence[str]]] = {
    "accept": (_accept, ["key_pkey", "inbox_key_pkey", "inbox_pkey", "dead_letter_pkey"]),
    "take and finish": (_take_and_finish, ["inbox_due", "inbox_pkey", "inbox_key_pkey"]),
    "is due": (_is_due, ["inbox_due"]),
    "depths": (_depths, ["inbox_due"]),
}


@pytest.mark.parametrize("what", list(PLANS))
def test_no_plan_reads_a_whole_table(fresh_url: str, what: str) -> None:
    """Plans made for empty tables are kept, and must suit a million items too."""
    harness = Harness(open=partial(PostgresLedger.from_url, fresh_url))
    work, expected = PLANS[what]
    plans = asyncio.run(plans_of(fresh_url, lambda connection: work(connection, harness)))
    steps = [line.strip() for plan in plans for line in plan.splitlines()]
    assert not [step for step in steps if "Seq Scan on" in step]
    for name in expected:
        assert any(re.search(rf"Scan .*(on|using) {name} ", step) for step in steps), name
    for plan in plans:
        lines = [line.strip().removeprefix("->").strip() for line in plan.splitlines()]
        for at, line in enumerate(lines):
            if " Scan using " in line and what != "depths":
                assert lines[at + 1].startswith("Index Cond:"), f"all of an index is read: {plan}"
            if "using inbox_due" in line and what != "depths":
                assert "(lane = " in lines[at + 1]
                assert "(due_ms <= " in lines[at + 1]
