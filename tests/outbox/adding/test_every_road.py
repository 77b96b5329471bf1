"""Whatever the connection: a notification is there when the caller's transaction commits, and else it never was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.outbox.adding.places import EVERYTHING, Place, notification
from tests.outbox.adding.roads import POSTGRES, SQLITE, Road

from semel.values.notification import Notification
from semel.values.outbox import Added, Lane

ROADS = [*[(name, True) for name in POSTGRES], *[(name, False) for name in SQLITE]]

every_road = pytest.mark.parametrize(
    ("name", "is_postgres"), ROADS, ids=[f"{'postgres' if pg else 'sqlite'}: {name}" for name, pg in ROADS]
)


@pytest.fixture
def place(request: pytest.FixtureRequest, is_postgres: bool) -> Place:
    place = Place(request.getfixturevalue("url" if is_postgres else "file"), is_postgres)
    place.empty()
    return place


@pytest.fixture
def road(place: Place, name: str) -> Road:
    return place.roads[name]


def added(
    place: Place, road: Road, notifications: Sequence[Notification], order: str = "4711", *, commit: bool = True
) -> list[Added]:
    """In one transaction with a write of the caller's own."""

    async def story() -> list[Added]:
        async with road(place.url) as customer:
            await customer.write(f"insert into orders values ('{order}')")
            answers = await customer.add(*notifications)
            await customer.end(commit=commit)
            return answers

    return asyncio.run(story())


def statuses(answers: Sequence[Added]) -> list[str]:
    return [one.status for one in answers]


@every_road
def test_it_commits_and_rolls_back_with_the_callers_own_writes(place: Place, road: Road) -> None:
    one, two = notification("kept"), notification("undone")
    assert added(place, road, [one]) == [Added(one.id.hex(), "added")]
    assert added(place, road, [two], "never", commit=False) == [Added(two.id.hex(), "added")]
    assert (place.keys(), place.orders()) == (["kept"], ["4711"])
    assert statuses(added(place, road, [one, two])) == ["known", "added"], "what was rolled back was never there"
    assert place.keys() == ["kept", "undone"]


@every_road
def test_it_may_be_the_first_statement_of_a_transaction_that_begins_by_itself(place: Place, road: Road) -> None:
    async def story(key: str, *, commit: bool) -> None:
        async with road(place.url) as customer:
            assert statuses(await customer.add(notification(key))) == ["added"]
            await customer.end(commit=commit)

    asyncio.run(story("undone", commit=False))
    assert place.keys() == []
    asyncio.run(story("kept", commit=True))
    assert place.keys() == ["kept"]


@every_road
def test_the_same_again_is_known_and_another_content_is_a_conflict(place: Place, road: Road) -> None:
    one, two, other = notification("1"), notification("2"), notification("1", body="something else")
    batch = [one, other, one, two, two]
    assert statuses(added(place, road, batch)) == ["added", "conflict", "known", "added", "known"]
    assert statuses(added(place, road, batch)) == ["known", "conflict", "known", "known", "known"]
    assert statuses(added(place, road, [])) == []
    (row, _) = place.rows("notification")
    assert bytes(row["content"]) == one.content


@every_road
def test_it_says_what_became_of_what_is_known(place: Place, road: Road) -> None:
    one = notification(provider="one")
    added(place, road, [one])
    place.with_ledger(lambda ledger: ledger.outbox.erase(one.tenant, one.recipient, "asked to", "somebody"))
    (known,) = added(place, road, [one])
    assert (known.status, known.state) == ("known", "cancelled")


@every_road
def test_by_every_road_it_is_the_same_row(place: Place, road: Road) -> None:
    both = [notification("the least"), notification("everything", **EVERYTHING)]
    place.with_ledger(lambda ledger: ledger.outbox.add(both))
    by_ledger = place.rows("notification"), place.rows("dispatch")
    place.empty()
    added(place, road, both)
    assert (place.rows("notification"), place.rows("dispatch")) == by_ledger
    answers = place.with_ledger(lambda ledger: ledger.outbox.add(both))
    assert statuses(answers) == ["known", "known"], "and the ledger knows them"


@every_road
def test_it_is_due_at_once_by_the_ledgers_own_clock(place: Place, road: Road) -> None:
    """And it has its place behind what was added before, and before what is added later, whoever adds."""
    ordered = [notification(f"n-{n}", provider="one", order="customer-1") for n in range(4)]
    place.with_ledger(lambda ledger: ledger.outbox.add(ordered[:1]))
    added(place, road, ordered[1:3])
    place.with_ledger(lambda ledger: ledger.outbox.add(ordered[3:]))
    prefix = "semel." if place.is_postgres else "semel_"
    sql = f"""select n.key, n.added_ms, d.due_ms, d.sequence
              from {prefix}notification n join {prefix}dispatch d on d.id = n.id order by d.sequence"""
    rows = place.ask(sql)
    assert [row["key"] for row in rows] == ["n-0", "n-1", "n-2", "n-3"]
    assert len({row["sequence"] for row in rows}) == 4
    assert rows[0]["added_ms"] <= rows[1]["added_ms"] <= rows[2]["added_ms"] <= rows[3]["added_ms"]
    assert [row["due_ms"] for row in rows] == [row["added_ms"] for row in rows]
    (taken,) = place.with_ledger(lambda ledger: ledger.outbox.take({"one": Lane(10)}, 60_000))
    assert taken.notification == ordered[0]


@pytest.mark.parametrize(
    ("name", "is_postgres"), [("asyncpg", True), ("psycopg", True), ("apsw", False), ("session on sqlite3", False)]
)
def test_a_batch_of_many_is_added_in_order(place: Place, road: Road) -> None:
    many = [notification(f"{n:04}") for n in range(1_203)]
    assert statuses(added(place, road, many)) == ["added"] * len(many)
    assert statuses(added(place, road, [*many[-3:], *many])) == ["known"] * (len(many) + 3)
    assert place.keys() == [one.key for one in many]
