"""Several relays at one outbox: what they may do at the same moment, and what only one of them may.

Where a lock decides, a copy of the function without it shows that the test would see it missing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import asyncpg
import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, opened, soon

from semel.ledgers.postgres import PostgresLedger
from semel.ledgers.postgres import outbox as adding
from semel.ledgers.postgres import outbox as crossing
from semel.ledgers.postgres import outbox as recording
from semel.ledgers.postgres import outbox as taking
from semel.testing import harness as sender
from semel.testing.harness import Harness, answered, notification, provider
from semel.values.delivery_state import Accepted, Answer, Refused
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, CrossingVerdict, DeliveryReport, Dispatch, Held, Lane, Lost, Record

OURS = "semel"
LEASE_MS = 600_000
GUARD = Guard(window_s=3600)
PASSED_LONG_AGO = "insert into semel.guard (digest, id, passed_ms, until_ms) values ($1, '\\x00', 0, 0)"


@pytest.fixture
def harness(url: str) -> Harness:
    return Harness(open=partial(PostgresLedger.from_url, url), unit_ms=6_000)


async def take(connection: Any, harness: Harness, room: int = 1_000, per_second: float = 0.0) -> list[Dispatch]:
    whose = provider(harness)
    return await taking.take(connection, {whose: Lane(room, whose, per_second)}, LEASE_MS, None, OURS)


async def cross(connection: Any, *dispatches: Dispatch) -> list[CrossingVerdict]:
    return await crossing.cross(connection, [sender.crossing(one) for one in dispatches], None, OURS)


async def add(connection: Any, *notifications: Notification) -> None:
    await adding.add(connection, notifications, None, OURS)


@asynccontextmanager
async def begun(url: str) -> AsyncIterator[Any]:
    """A connection with an open transaction."""
    async with connected(url) as connection:
        await connection.execute("begin")
        yield connection


async def waits(connection: Any, other: Any) -> None:
    """Until the other one waits for a lock."""
    asked = "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1"
    await soon(lambda: connection.fetchval(asked, other.get_server_pid()))


async def plant(connection: Any, function: str, lock: str, instead: str) -> None:
    """The same function without this lock."""
    text = await connection.fetchval(f"select pg_get_functiondef('semel.{function}'::regproc)")
    assert text.count(lock) == 1, f"inconclusive: {function} has no {lock!r}"
    await connection.execute(text.replace(lock, instead))


# ----------------------------------------------------------------------------------------------------------- taking


def test_a_take_does_not_wait_for_another_take(url: str, harness: Harness) -> None:
    async def run() -> None:
        async with begun(url) as first, connected(url) as second:
            await add(second, *[notification(harness, f"{n}") for n in range(6)])
            mine = await take(first, harness, room=2)
            theirs = await asyncio.wait_for(take(second, harness), SOON_S)
            assert [one.notification.key for one in mine] == ["0", "1"]
            assert [one.notification.key for one in theirs] == ["2", "3", "4", "5"]
            await first.execute("rollback")
            assert [one.id for one in await take(second, harness)] == [one.id for one in mine]

    asyncio.run(run())


def test_the_next_of_an_order_key_is_not_taken_while_the_oldest_is(url: str, harness: Harness) -> None:
    """Locked rows are skipped, and so are those behind them in order."""

    async def run() -> None:
        async with begun(url) as first, connected(url) as second:
            await add(second, *[notification(harness, f"{n}", order="o") for n in range(3)])
            assert [one.notification.key for one in await take(first, harness)] == ["0"]
            assert await asyncio.wait_for(take(second, harness), SOON_S) == []
            await first.execute("commit")
            assert await take(second, harness) == []

    asyncio.run(run())


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without its lock"])
def test_an_older_notification_that_is_committed_late_waits_for_the_one_begun(
    fresh_url: str, harness: Harness, planted: bool
) -> None:
    """It precedes one that a relay is taking; they are still sent one after the other."""

    async def run() -> tuple[list[str], list[str]]:
        async with begun(fresh_url) as caller, begun(fresh_url) as first, connected(fresh_url) as second:
            if planted:
                await plant(
                    second,
                    "take_notifications",
                    "u.order_digest is null or pg_try_advisory_xact_lock(",
                    "true or 0 < (",
                )
            await add(caller, notification(harness, "older", order="o"))
            await add(second, notification(harness, "younger", order="o"))
            (younger,) = await take(first, harness)
            await caller.execute("commit")
            at_once = await asyncio.wait_for(take(second, harness), SOON_S)
            await first.execute("commit")
            assert younger.notification.key == "younger"
            if not planted:
                assert await take(second, harness) == [], "the one that was begun goes on"
                await _sent(second, harness, younger)
            later = await take(second, harness)
            return [one.notification.key for one in at_once], [one.notification.key for one in later]

    at_once, later = asyncio.run(run())
    if planted:
        assert at_once == ["older"], "inconclusive: the planted mistake does not show"
    else:
        assert (at_once, later) == ([], ["older"])


async def _sent(connection: Any, harness: Harness, dispatch: Dispatch) -> None:
    assert await cross(connection, dispatch) == [Crossed()]
    assert await recording.record(connection, [answered(harness, dispatch, Accepted())], None, OURS) == [True]


def test_concurrent_takes_share_a_rate(url: str, harness: Harness) -> None:
    async def run() -> list[Dispatch]:
        async with begun(url) as first, connected(url) as second, connected(url) as third:
            await add(third, *[notification(harness, f"{n}") for n in range(8)])
            mine = await take(first, harness, room=4, per_second=10)
            asked = asyncio.create_task(take(second, harness, room=4, per_second=10))
            await waits(third, second)
            await first.execute("commit")
            return [*mine, *await asked]

    slots = [one.slot_ms for one in asyncio.run(run())]
    assert len(slots) == 8
    apart = [after - before for before, after in pairwise(slots)]
    assert min(apart) >= 99


# ----------------------------------------------------------------------------------------------------------- guards


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without its lock"])
def test_a_crossing_waits_for_another_one_at_its_guard(fresh_url: str, harness: Harness, planted: bool) -> None:
    async def run() -> list[CrossingVerdict]:
        async with begun(fresh_url) as first, connected(fresh_url) as second, connected(fresh_url) as third:
            if planted:
                await plant(third, "cross", "while needed <> '{}' loop", "while false loop")
            said = [notification(harness, key, guard=GUARD) for key in ("n-1", "n-2")]
            await third.execute(PASSED_LONG_AGO, said[0].guarded_by)
            await add(third, *said)
            one, two = await take(third, harness)
            gates = await cross(first, one)
            asked = asyncio.create_task(cross(second, two))
            await waits(third, second)
            await first.execute("commit")
            return [*gates, *await asked]

    gates = asyncio.run(run())
    if planted:
        assert gates == [Crossed(), Crossed()], "inconclusive: the planted mistake does not show"
    else:
        assert [type(gate) for gate in gates] == [Crossed, Held]


def test_a_guard_is_free_after_a_crossing_that_rolled_back(url: str, harness: Harness) -> None:
    async def run() -> list[CrossingVerdict]:
        async with begun(url) as first, connected(url) as second, connected(url) as third:
            await add(third, *[notification(harness, key, guard=GUARD) for key in ("n-1", "n-2")])
            one, two = await take(third, harness)
            await cross(first, one)
            asked = asyncio.create_task(cross(second, two))
            await waits(third, second)
            await first.execute("rollback")
            return await asked

    assert asyncio.run(run()) == [Crossed()]


def test_a_refusal_waits_for_no_guard_of_another_notification(url: str, harness: Harness) -> None:
    async def run() -> None:
        async with begun(url) as first, connected(url) as second:
            said = [notification(harness, key, guard=GUARD, recipient=f"{key}@example.com") for key in ("n-1", "n-2")]
            for one in said:
                await second.execute(PASSED_LONG_AGO, one.guarded_by)
            await add(second, *said)
            await first.execute("select from semel.guard where digest = $1 for update", said[1].guarded_by)
            refused = recording.apply_reports(second, [DeliveryReport("refused", said[0].id)], None, OURS)
            assert len(await asyncio.wait_for(refused, SOON_S)) == 1

    asyncio.run(run())


RACERS, ROUNDS = 3, 20


@pytest.mark.long
def test_one_of_many_processes_passes_a_guard_and_all_are_answered(url: str, harness: Harness) -> None:
    rounds: list[list[Dispatch]] = []

    async def prepare() -> None:
        async with connected(url) as connection:
            for turn in range(ROUNDS):
                guard = Guard(window_s=3600, key=f"round {turn}")
                said = [notification(harness, f"{turn} {n}", guard=guard) for n in range(RACERS)]
                if turn % 2:
                    await connection.execute(PASSED_LONG_AGO, said[0].guarded_by)
                await add(connection, *said)
                rounds.append(await take(connection, harness))

    asyncio.run(prepare())
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    pipes = [context.Pipe(duplex=False) for _ in range(RACERS)]
    racers = [
        context.Process(target=_race, args=(url, [one[at] for one in rounds], barrier, pipes[at][1]), daemon=True)
        for at in range(RACERS)
    ]
    for racer in racers:
        racer.start()
    told: list[list[str]] = []
    for receiver, _ in pipes:
        assert receiver.poll(2 * SOON_S), "a racer did not come back"
        told.append(receiver.recv())
    for racer in racers:
        racer.join(SOON_S)
    for gates in zip(*told, strict=True):
        assert Counter(gates) == {"Crossed": 1, "Held": RACERS - 1}
    assert {gates.index("Crossed") for gates in zip(*told, strict=True)} != {0}, "inconclusive: nobody raced"


def _race(url: str, dispatches: list[Dispatch], barrier: Any, told: Any) -> None:
    async def run() -> list[str]:
        async with opened(url) as ledger:
            gates: list[str] = []
            await ledger.outbox.cross([sender.crossing(_nobodys(dispatches[0]))])  # it is connected
            for dispatch in dispatches:
                barrier.wait(SOON_S)
                (gate,) = await ledger.outbox.cross([sender.crossing(dispatch)])
                gates.append(type(gate).__name__)
            return gates

    told.send(asyncio.run(run()))


def _nobodys(dispatch: Dispatch) -> Dispatch:
    return Dispatch(
        dispatch.id, -1, dispatch.notification, dispatch.content, dispatch.delivery_state, dispatch.taken_ms
    )


def test_many_relays_do_not_deadlock(fresh_url: str, harness: Harness) -> None:
    """Batches with the same guards in other orders, records and callbacks beside them: no deadlock, no lost answer."""
    crowd, turns, size = 6, 8, 30
    dice = random.Random(6)
    passed: Counter[str] = Counter()

    async def relay(outbox: Any, at: int) -> None:
        whose = provider(harness, f"relay {at}")
        for turn in range(turns):
            said = [
                notification(harness, f"{at} {turn} {n}", provider=whose, guard=Guard(window_s=3600, key=f"{turn} {n}"))
                for n in range(size)
            ]
            dice.shuffle(said)
            await outbox.add(said)
            taken = await outbox.take({whose: Lane(1_000, whose)}, LEASE_MS)
            assert len(taken) >= size
            gates = await outbox.cross([sender.crossing(one) for one in taken])
            mine = [one for one, gate in zip(taken, gates, strict=True) if gate == Crossed()]
            passed.update(one.notification.guard.key for one in mine if one.notification.guard is not None)
            others = [one for one, gate in zip(taken, gates, strict=True) if isinstance(gate, Held)]
            answers: list[Answer] = [Accepted(), Refused("no", final=True)]
            dice.shuffle(mine)
            records = [answered(harness, one, answers[n % 2]) for n, one in enumerate(mine)]
            given_back = [Record(one, one.delivery_state, "released") for one in others]
            told = [DeliveryReport("delivered", one.id) for one in mine[::3]]
            written, *_ = await asyncio.gather(outbox.record([*records, *given_back]), outbox.apply_reports(told))
            assert len(written) == len(records) + len(given_back)

    async def run() -> int:
        async with opened(fresh_url) as one, opened(fresh_url) as two:
            await asyncio.gather(*[relay((one, two)[at % 2].outbox, at) for at in range(crowd)])
        async with connected(fresh_url) as connection:  # statistics that the others reported when they closed
            sql = "select deadlocks from pg_stat_database where datname = current_database()"
            return int(await connection.fetchval(sql))

    assert asyncio.run(run()) == 0
    assert len(passed) == turns * size, "each guard has let one through"


# ----------------------------------------------------------------------------------------------------------- killed


def test_a_killed_relay_leaves_dispatches_that_have_crossed_or_not(url: str, harness: Harness) -> None:
    context = multiprocessing.get_context("spawn")
    receiver, told = context.Pipe(duplex=False)
    relay = context.Process(target=_take_cross_and_hang, args=(url, provider(harness), told), daemon=True)

    async def run() -> None:
        async with opened(url) as ledger:
            outbox, whose = ledger.outbox, provider(harness)
            await outbox.add([notification(harness, key) for key in ("crossed", "not crossed")])
            relay.start()
            assert receiver.poll(2 * SOON_S), "inconclusive: it was not ready"
            assert receiver.recv() == "crossed"
            relay.kill()
            relay.join(SOON_S)
            found: dict[str, Dispatch] = {}

            async def both() -> bool:
                taken = await outbox.take({whose: Lane(10, whose)}, LEASE_MS)
                found.update({one.notification.key: one for one in taken})
                return len(found) == 2

            await soon(both)
            assert all(one.vanished for one in found.values())
            assert {key: one.delivery_state.state for key, one in found.items()} == {
                "crossed": "sending",
                "not crossed": "pending",
            }
            assert await outbox.cross([sender.crossing(found["crossed"])]) == [Lost()], "it may have been sent"
            assert await outbox.cross([sender.crossing(found["not crossed"])]) == [Crossed()]

    asyncio.run(run())


def _take_cross_and_hang(url: str, whose: str, told: Any) -> None:
    async def run() -> None:
        async with opened(url) as ledger:
            taken = await ledger.outbox.take({whose: Lane(10, whose)}, 1_000)
            await ledger.outbox.cross([sender.crossing(one) for one in taken if one.notification.key == "crossed"])
            told.send("crossed")
            await asyncio.sleep(10 * SOON_S)

    asyncio.run(run())


def test_a_crossing_whose_backend_is_killed_was_never_written(url: str, harness: Harness) -> None:
    async def run() -> None:
        async with begun(url) as first, connected(url) as second, connected(url) as third, opened(url) as ledger:
            await add(third, *[notification(harness, key, guard=GUARD) for key in ("n-1", "n-2")])
            one, two = await take(third, harness)
            await cross(first, one)
            asked = asyncio.create_task(cross(second, two))
            await waits(third, second)
            await third.execute("select pg_terminate_backend($1)", second.get_server_pid())
            with pytest.raises(asyncpg.PostgresConnectionError):
                await asked
            await first.execute("rollback")
            found = await ledger.outbox.show(two.id)
            assert found is not None
            assert (found.state, found.attempts) == ("pending", ())
            assert await ledger.outbox.cross([sender.crossing(two)]) == [Crossed()], "nothing was written"

    asyncio.run(run())
