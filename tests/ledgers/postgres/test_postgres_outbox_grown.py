"""The cost and the races of an outbox with many sent and many waiting notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Any

import pytest
from tests.ledgers.postgres.opening import SOON_S, connected, opened
from tests.ledgers.postgres.plans import plans_of
from tests.ledgers.postgres.relay import Relay as CountingRelay
from tests.ledgers.postgres.test_postgres_outbox import carry_all, crossings, fill, lanes, pages_of_a_take
from tests.ledgers.postgres.test_postgres_outbox_races import add, begun, cross, plant, take, waits

from semel.ledgers.postgres import PostgresLedger, outbox_queries
from semel.ledgers.postgres import outbox as adding
from semel.ledgers.postgres import outbox as recording
from semel.ledgers.postgres import outbox as taking
from semel.testing.harness import Harness, answered, notification, provider
from semel.testing.laws.outbox import found
from semel.values.delivery_state import Accepted, Unknown
from semel.values.notification import Guard, Notification
from semel.values.outbox import Decision, DeliveryReport, Dispatch, Lane, Record

OURS = "semel"
LEASE_MS = 600_000


@pytest.fixture
def harness(url: str) -> Harness:
    return Harness(open=partial(PostgresLedger.from_url, url), unit_ms=6_000)


# -------------------------------------------------------------------------------------------------------------- costs


@pytest.mark.parametrize("size", [1, 100])
def test_add_take_cross_and_record_are_one_round_trip_each_for_one_and_for_a_hundred(
    url: str, harness: Harness, size: int
) -> None:
    async def run() -> list[int]:
        async with CountingRelay(url) as relay, opened(relay.url) as ledger:
            outbox = ledger.outbox

            async def carried(turn: int) -> list[int]:
                trips: list[int] = []

                async def one(work: Awaitable[Any]) -> Any:
                    before = relay.round_trips
                    answer = await work
                    trips.append(relay.round_trips - before)
                    return answer

                await one(outbox.add([notification(harness, f"{size} {turn} {n}") for n in range(size)]))
                taken = await one(outbox.take(lanes(harness), LEASE_MS))
                assert len(taken) == size
                await one(outbox.cross(crossings(taken)))
                assert all(await one(outbox.record([answered(harness, each, Accepted("r")) for each in taken])))
                return trips

            await carried(0)  # statements are prepared in the first turn
            return await carried(1)

    assert asyncio.run(run()) == [1, 1, 1, 1]


def unbounded(plans: list[str]) -> list[str]:
    """Steps that read a table or an index from end to end."""
    steps: list[str] = []
    for plan in plans:
        lines = plan.splitlines()
        for at, line in enumerate(lines):
            reads = "Seq Scan on" in line or ("Index" in line and "Scan" in line and " on " in line)
            deeper = [each for each in lines[at + 1 : at + 3] if "->" not in each]
            if reads and not any("Index Cond" in each for each in deeper):
                steps.append(f"{line.strip()} in {plan[:200]}")
    return steps


def test_a_plan_made_for_an_empty_queue_does_not_read_all_of_a_long_one(fresh_url: str, harness: Harness) -> None:
    """A queue is empty most of the time, also when it is analyzed."""

    async def work(connection: Any) -> None:
        await carry_all(connection, harness, "one")
        await add(connection, *[notification(harness, f"two {n}") for n in range(20)])
        assert len(await take(connection, harness)) == 20
        await outbox_queries.purge(connection, 0, 0, 100, None, OURS)

    async def run() -> list[str]:
        async with connected(fresh_url) as connection:
            await fill(connection, 1, 2_000)
            await add(connection, *[notification(harness, f"gone {n}", order=f"{n}") for n in range(200)])
            await connection.execute("delete from semel.dispatch")
            await connection.execute("analyze")
        return await plans_of(fresh_url, work)

    plans = asyncio.run(run())
    assert len(plans) > 20
    assert unbounded(plans) == []


def test_a_take_reads_as_many_pages_however_much_waits_elsewhere(fresh_url: str, harness: Harness) -> None:
    """In a lane that is not taken, and behind an uncertain one."""

    async def run() -> list[int]:
        async with connected(fresh_url) as connection:
            await connection.execute("analyze")
            pages = [await pages_of_a_take(connection, harness, "few")]
            elsewhere = provider(harness, "closed")
            for first in range(0, 10_000, 1_000):
                closed = [notification(harness, f"c {first + n}", provider=elsewhere) for n in range(1_000)]
                await adding.add(connection, closed, None, OURS)
            pages.append(await pages_of_a_take(connection, harness, "closed"))
            await queue_behind(connection, harness, 5_000)
            while await taking.take(connection, lanes(harness, room=5), LEASE_MS, None, OURS):
                pass
            aside = "select count(*) from semel.dispatch where blocked_due_ms is not null"
            while await connection.fetchval(aside) < 4_500:
                assert await taking.take(connection, lanes(harness, room=5), LEASE_MS, None, OURS) == []
            pages.append(await pages_of_a_take(connection, harness, "behind"))
            return pages

    few, closed, behind = asyncio.run(run())
    assert closed <= 1.5 * few
    assert behind <= 3 * few + 500, "the last few hundred are passed over"


async def queue_behind(connection: Any, harness: Harness, many: int) -> Dispatch:
    await adding.add(connection, [notification(harness, "head", order="o")], None, OURS)
    (head,) = await taking.take(connection, lanes(harness), LEASE_MS, None, OURS)
    await cross(connection, head)
    assert await recording.record(connection, [answered(harness, head, Unknown("timeout"))], None, OURS) == [True]
    for first in range(0, many, 1_000):
        said = [notification(harness, f"q {first + n}", order="o") for n in range(min(1_000, many))]
        await adding.add(connection, said, None, OURS)
    return head


@pytest.mark.parametrize(
    ("content_ms", "identity_ms", "index"),
    [(0, 10**13, "notification_content"), (10**13, 10**13, "notification_added"), (0, 0, "guard_until")],
    ids=["contents", "identities", "guards"],
)
def test_a_purge_finds_its_rows_by_an_index(
    fresh_url: str, harness: Harness, content_ms: int, identity_ms: int, index: str
) -> None:
    async def run() -> list[str]:
        async with connected(fresh_url) as connection:
            await fill(connection, 1, 20_000)
        return await plans_of(fresh_url, lambda c: outbox_queries.purge(c, content_ms, identity_ms, 10, None, OURS))

    plans = asyncio.run(run())
    assert unbounded(plans) == []
    assert index in "\n".join(plans)


# ------------------------------------------------------------------------------------------------------- one message


async def looking(connection: Any, harness: Harness, *keys: str) -> list[Dispatch]:
    """Taken for a look-up."""
    await add(connection, *[notification(harness, key) for key in keys])
    taken = await take(connection, harness)
    await cross(connection, *taken)
    doubts = [answered(harness, one, Unknown("timeout"), looks_up=True, settle_s=0) for one in taken]
    assert all(await recording.record(connection, doubts, None, OURS))
    again = {one.notification.key: one for one in await take(connection, harness)}
    return [again[key] for key in keys]


async def record(connection: Any, *records: Record) -> list[bool]:
    return await recording.record(connection, records, None, OURS)


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without its lock"])
def test_of_two_concurrent_look_ups_of_one_message_one_gets_it(fresh_url: str, harness: Harness, planted: bool) -> None:
    async def run() -> list[str]:
        async with begun(fresh_url) as first, connected(fresh_url) as second, connected(fresh_url) as third:
            if planted:
                await plant(third, "record_results", "perform pg_advisory_xact_lock(l.lock)", "perform (l.lock)")
            one, two = await looking(third, harness, "n-1", "n-2")
            assert await record(first, found(harness, one, "r")) == [True]
            asked = asyncio.create_task(record(second, found(harness, two, "r")))
            if not planted:
                await waits(third, second)
                await first.execute("commit")
            await asyncio.wait_for(asked, SOON_S)
            if planted:
                await first.execute("commit")
            shown = [await outbox_queries.show(third, each.id, OURS) for each in (one, two)]
            return [each.state for each in shown if each is not None]

    states = asyncio.run(run())
    if planted:
        assert states == ["accepted", "accepted"], "inconclusive: the planted mistake does not show"
    else:
        assert states == ["accepted", "uncertain"]


# --------------------------------------------------------------------------------------------------------- in order


def ordered(harness: Harness, count: int) -> list[Notification]:
    return [notification(harness, f"{n}", order="o") for n in range(count)]


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "without its lock"])
def test_the_next_in_order_is_released_although_it_was_blocked_meanwhile(
    fresh_url: str, harness: Harness, planted: bool
) -> None:
    """The ending transaction does not see that the next is being blocked, and the blocking one does not see the end."""

    async def run() -> list[Dispatch]:
        async with begun(fresh_url) as setter, connected(fresh_url) as second, connected(fresh_url) as third:
            if planted:
                await plant(third, "release_next_in_order", "perform pg_advisory_xact_lock(", "perform (")
            await add(third, *ordered(harness, 400))
            (head,) = await take(third, harness)
            assert await cross(third, head) != []
            assert await take(setter, harness, room=1) == []  # blocks them
            ended = asyncio.create_task(record(second, answered(harness, head, Accepted("r"))))
            if not planted:
                await waits(third, second)
            else:
                await asyncio.wait_for(asyncio.shield(ended), SOON_S)
            await setter.execute("commit")
            assert await asyncio.wait_for(ended, SOON_S) == [True]
            aside = await third.fetchval("select count(*) from semel.dispatch where blocked_due_ms is not null")
            assert aside >= 398, "inconclusive: nobody was set aside"
            return await take(third, harness)

    taken = asyncio.run(run())
    assert [one.notification.key for one in taken] == ([] if planted else ["1"])


def test_an_operator_and_a_relay_that_end_two_of_one_order_key_release_the_next(
    fresh_url: str, harness: Harness
) -> None:
    async def run() -> list[Dispatch]:
        async with begun(fresh_url) as first, connected(fresh_url) as third, opened(fresh_url) as ledger:
            said = ordered(harness, 400)
            await add(third, *said)
            (head,) = await take(third, harness)
            await cross(third, head)
            assert await take(third, harness, room=1) == []
            assert await record(first, answered(harness, head, Accepted("r"))) == [True]
            decided = asyncio.create_task(ledger.outbox.decide(Decision(said[1].id, "cancelled", "because", "ada")))
            await asyncio.sleep(0.2)  # it waits, or has ended before: both are correct
            await first.execute("commit")
            assert await asyncio.wait_for(decided, SOON_S) == "cancelled"
            return await take(third, harness)

    assert [one.notification.key for one in asyncio.run(run())] == ["2"]


# ------------------------------------------------------------------------------------------------------- forgetting


def test_a_notification_with_a_concurrent_report_is_purged_the_next_time(fresh_url: str, harness: Harness) -> None:
    async def run() -> None:
        async with begun(fresh_url) as first, connected(fresh_url) as second:
            said = notification(harness, guard=Guard(window_s=60))
            await add(second, said)
            (dispatch,) = await take(second, harness)
            await cross(second, dispatch)
            await record(second, answered(harness, dispatch, Accepted("r")))
            assert await recording.apply_reports(first, [DeliveryReport("delivered", said.id)], None, OURS) == [
                "delivered"
            ]
            purge = partial(outbox_queries.purge, second, 0, 0, 100, None, OURS)
            assert await asyncio.wait_for(purge(), SOON_S) == 0, "nobody waits"
            await first.execute("commit")
            assert await purge() == 2, "what it said, and it"
            assert await outbox_queries.show(second, said.id, OURS) is None

    asyncio.run(run())


def test_an_add_during_the_purge_of_its_identity_is_answered(fresh_url: str, harness: Harness) -> None:
    async def run() -> tuple[str, list[str]]:
        async with begun(fresh_url) as first, connected(fresh_url) as second, opened(fresh_url) as ledger:
            said = notification(harness)
            await add(second, said)
            (dispatch,) = await take(second, harness)
            await cross(second, dispatch)
            await record(second, answered(harness, dispatch, Accepted("r")))
            assert await outbox_queries.purge(first, 0, 0, 100, None, OURS) == 2
            asked = asyncio.create_task(ledger.outbox.add([said]))
            await asyncio.sleep(0.2)
            await first.execute("commit")
            (added,) = await asyncio.wait_for(asked, SOON_S)
            whose = provider(harness)
            taken = await ledger.outbox.take({whose: Lane(5, whose)}, LEASE_MS)
            return added.status, [one.notification.key for one in taken]

    assert asyncio.run(run()) == ("added", ["order-1"])
