"""What is special about adding in a transaction of PostgreSQL: who else adds, who may, and what drivers make of it."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row, scalar_row
from tests.ledgers.postgres.opening import connected, opened, soon
from tests.outbox.adding.places import EVERYTHING, Place, notification
from tests.outbox.adding.roads import POSTGRES, by_asyncpg, by_psycopg
from tests.support.servers.postgres import PostgresServer

import semel
from semel import ConfigError, outbox

RACERS = 4


@pytest.fixture
def place(url: str) -> Place:
    place = Place(url, is_postgres=True)
    place.empty()
    return place


async def until_somebody_waits(connection: Any) -> None:
    """For a lock of this database."""

    async def waits() -> bool:
        sql = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        return int(await connection.fetchval(sql)) > 0

    await soon(waits)


# ---------------------------------------------------------------------------------------------------------- at once


@pytest.mark.parametrize("commit", [True, False], ids=["the first commits", "the first rolls back"])
@pytest.mark.parametrize("body", ["On its way", "another"])
def test_of_two_at_once_the_second_waits_for_what_becomes_of_the_first(place: Place, commit: bool, body: str) -> None:
    async def story() -> str:
        async with connected(place.url) as eye, by_psycopg(place.url) as first, by_asyncpg(place.url) as second:
            assert [one.status for one in await first.add(notification())] == ["added"]
            waiting = asyncio.create_task(second.add(notification(body=body)))
            await until_somebody_waits(eye)
            assert not waiting.done()
            await first.end(commit=commit)
            (answer,) = await waiting
            await second.end(commit=True)
            return answer.status

    known = "known" if body == "On its way" else "conflict"
    assert asyncio.run(story()) == (known if commit else "added")
    assert place.keys() == ["order-1"]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "session on psycopg", "async session on asyncpg"])
def test_a_transaction_that_cannot_be_serialized_is_the_callers_to_repeat(place: Place, name: str, level: str) -> None:
    async def story() -> str:
        async with POSTGRES[name](place.url) as customer:
            await customer.write(f"set transaction isolation level {level}")
            await customer.write("insert into orders values ('4711')")
            async with by_psycopg(place.url) as other:
                await other.add(notification())
                await other.end(commit=True)
            with pytest.raises(Exception, match="could not serialize access") as caught:
                await customer.add(notification("new"), notification())
            assert not isinstance(caught.value, ConfigError)
            await customer.end(commit=False)
        async with POSTGRES[name](place.url) as again:
            (answer,) = await again.add(notification())
            return answer.status

    assert asyncio.run(story()) == "known"
    assert (place.keys(), place.orders()) == (["order-1"], []), "nothing is half written"


def test_of_many_at_once_each_gets_an_answer_and_one_has_added_it(place: Place) -> None:
    ones = [notification(f"n-{n}") for n in range(20)]
    ready = threading.Barrier(RACERS)

    def racer(seed: int) -> list[tuple[str, str]]:
        with psycopg.connect(place.url) as connection:
            answers: list[tuple[str, str]] = []
            ready.wait()
            for one in random.Random(seed).sample(ones, len(ones)):
                answers.append((one.key, outbox.add(connection, one).status))
                connection.commit()
            return answers

    with ThreadPoolExecutor(RACERS) as pool:
        answers = [answer for one in pool.map(racer, range(RACERS)) for answer in one]
    assert len(answers) == RACERS * len(ones)
    assert sorted(key for key, status in answers if status == "added") == sorted(one.key for one in ones)
    assert {status for _, status in answers} == {"added", "known"}
    assert len(place.keys()) == len(ones)


def test_of_two_that_wait_for_each_other_one_is_told_and_has_written_nothing(place: Place) -> None:
    async def story() -> None:
        async with connected(place.url) as eye, by_asyncpg(place.url) as first, by_asyncpg(place.url) as second:
            await first.add(notification("a"))
            await second.add(notification("b"))
            waiting = asyncio.create_task(first.add(notification("b")))
            await until_somebody_waits(eye)
            told = await asyncio.gather(waiting, second.add(notification("a")), return_exceptions=True)
            (fell,) = [one for one in told if isinstance(one, BaseException)]
            assert isinstance(fell, asyncpg.DeadlockDetectedError)
            for one, customer in zip(told, (first, second), strict=True):
                await customer.end(commit=one is not fell)

    asyncio.run(story())
    assert place.keys() == ["a", "b"]


def test_what_is_purged_while_it_is_looked_at_is_added_anew(place: Place) -> None:
    """The second statement is for this."""
    old, new = notification("old"), notification("new")

    async def story() -> tuple[list[str], int]:
        async with connected(place.url) as eye, connected(place.url) as blocker, by_asyncpg(place.url) as customer:
            async with by_psycopg(place.url) as earlier:
                await earlier.add(old)
                await earlier.end(commit=True)
            await eye.execute("delete from semel.dispatch")  # it was sent
            said: list[str] = []
            customer.connection.add_query_logger(lambda record: said.append(record.query))
            async with blocker.transaction():
                await blocker.execute("lock table semel.dispatch in share mode")  # after it has seen the old one
                adding = asyncio.create_task(customer.add(old, new, old))
                await until_somebody_waits(eye)
                await eye.execute("delete from semel.notification")
                await blocker.execute("select 1")
            answers = await adding
            await customer.write("select 1")
            await customer.end(commit=True)
            return [one.status for one in answers], len([sql for sql in said if "add_notifications" in sql])

    assert asyncio.run(story()) == (["added", "added", "known"], 2)
    assert place.keys() == ["new", "old"]


# ------------------------------------------------------------------------------------------------------ setting up


@pytest.mark.parametrize("name", ["asyncpg", "psycopg", "session on psycopg", "async session on asyncpg"])
def test_a_database_without_the_outbox_is_told_with_what_to_do(empty_database: str, name: str) -> None:
    async def story() -> None:
        async with POSTGRES[name](empty_database) as customer:
            with pytest.raises(ConfigError, match=r'"semel".*semel migrate'):
                await customer.add(notification())

    asyncio.run(story())


def test_another_schema_is_named(empty_database: str) -> None:
    async def story() -> None:
        async with opened(empty_database, "?schema=other") as ledger:
            await ledger.migrate()
            with psycopg.connect(empty_database) as connection:
                assert outbox.add(connection, notification(), schema="other").status == "added"
                with pytest.raises(ConfigError, match='"semel"'):
                    outbox.add(connection, notification())
                connection.rollback()
                outbox.add(connection, notification(), schema="other")
            assert [one.status for one in await ledger.outbox.add([notification()])] == ["known"]

    asyncio.run(story())


def test_a_schema_that_is_no_name_is_refused_before_anything_is_asked(place: Place) -> None:
    with psycopg.connect(place.url) as connection:
        for wrong in ('semel"; drop table orders; --', "Semel", ""):
            with pytest.raises(ConfigError, match="schema="):
                outbox.add(connection, notification(), schema=wrong)
        assert outbox.add(connection, notification()).status == "added"


def test_a_role_may_add_once_it_is_granted_what_the_refusal_says(place: Place, postgres: PostgresServer) -> None:
    if postgres.is_given:
        pytest.skip("roles of a given server are not ours to make")
    at = urlsplit(place.url)
    role = f"shop_{at.path.strip('/')}"[:60]
    theirs = f"postgresql://{role}:x@{at.hostname}:{at.port}{at.path}"
    grants = (
        f"grant usage on schema semel to {role}; grant select, insert on semel.notification, semel.dispatch to {role}; "
        f"grant usage on sequence semel.token to {role}"
    )

    async def story() -> None:
        async with connected(place.url) as owner:
            await owner.execute(f"create role {role} login password 'x'")
            try:
                with psycopg.connect(theirs) as connection:
                    with pytest.raises(ConfigError, match="grant usage on schema"):
                        outbox.add(connection, notification())
                    connection.rollback()
                    await owner.execute(grants)
                    assert outbox.add(connection, notification()).status == "added"
            finally:
                await owner.execute(f"drop owned by {role}; drop role {role}")

    asyncio.run(story())
    assert place.keys() == ["order-1"]


# --------------------------------------------------------------------------------------------------------- drivers


@pytest.mark.parametrize("rows", [dict_row, scalar_row])
@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor, psycopg.RawCursor])
def test_what_the_caller_wants_of_rows_and_cursors_does_not_matter(place: Place, rows: Any, cursor: Any) -> None:
    one = notification(**EVERYTHING)
    with psycopg.connect(place.url, row_factory=rows, cursor_factory=cursor) as connection:
        assert [added.status for added in outbox.add_many(connection, [one, one])] == ["added", "known"]
        assert (connection.row_factory, connection.cursor_factory) == (rows, cursor)
    (row,) = place.rows("notification")
    assert bytes(row["content"]) == one.content


@pytest.mark.parametrize("name", list(POSTGRES))
def test_a_transaction_that_has_failed_is_the_drivers_to_tell(place: Place, name: str) -> None:
    async def story() -> None:
        async with POSTGRES[name](place.url) as customer:
            with pytest.raises(Exception, match="division by zero"):
                await customer.write("select 1 / 0")
            with pytest.raises(Exception, match=r"current transaction is aborted|rolled back") as caught:
                await customer.add(notification(recipient="+4915199999"))
            assert not isinstance(caught.value, ConfigError)
            assert "+4915199999" not in str(caught.value), "nor in anybody's log"
            await customer.end(commit=False)

    asyncio.run(story())
    assert place.keys() == []


def test_who_has_psycopg_needs_no_other_driver(place: Place) -> None:
    """The ledger's own is for whoever runs the relay."""
    code = """
import sys
sys.modules["asyncpg"] = None
import psycopg
from semel import Notification, outbox
with psycopg.connect(sys.argv[1]) as connection:
    one = Notification(key="order-1", kind="shipping", recipient="+491", channel="sms", body="On its way")
    print(outbox.add(connection, one).status)
"""
    found_at = [str(Path(semel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, place.url],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == "added\n", ran.stderr
    assert place.keys() == ["order-1"]
