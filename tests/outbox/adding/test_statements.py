"""What is put on the caller's connection: at most two statements, counted by the driver or on the wire."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import tempfile
from collections.abc import Callable
from typing import Any

import aiosqlite
import apsw
import asyncpg
import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.outbox.adding.places import Place, notification
from tests.outbox.adding.roads import NO_CHECKPOINTS, async_engine_of, engine_of

from semel import outbox
from semel.values.notification import Notification

ONE = [notification("1")]
MANY = [notification(str(n)) for n in range(100)]  # one of which is known by then
STEPS = (ONE, ONE, MANY, MANY)


def with_asyncpg(url: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    async def story() -> list[list[str]]:
        connection = await asyncpg.connect(url)
        said: list[str] = []
        connection.add_query_logger(lambda record: said.append(record.query))
        counted = []
        async with connection.transaction():
            for step in STEPS:
                await asyncio.sleep(0)  # the driver tells it a little later
                said.clear()
                await added(connection, step)
                await asyncio.sleep(0)
                counted.append(list(said))
        await connection.close()
        return counted

    return asyncio.run(story())


def with_psycopg(url: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    """As the server is told: each message of the protocol that makes it run something."""
    counted = []
    with psycopg.connect(url, prepare_threshold=None) as connection, tempfile.TemporaryFile("w+") as trace:
        connection.execute("select 1")  # the transaction has begun
        for step in STEPS:
            trace.seek(0)
            trace.truncate()
            connection.pgconn.trace(trace.fileno())
            added(connection, step)
            connection.pgconn.untrace()
            trace.seek(0)
            counted.append(re.findall(r"\tF\t\d+\t(?:Execute|Query)\b.*", trace.read()))
    return counted


def with_session(url: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    engine = engine_of("postgresql+psycopg", url)
    said = watched(engine)
    counted = []
    with Session(engine) as session, session.begin():
        for step in STEPS:
            said.clear()
            added(session, step)
            counted.append(list(said))
    engine.dispose()
    return counted


def with_async_session(url: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    async def story() -> list[list[str]]:
        engine = async_engine_of("postgresql+asyncpg", url)
        said = watched(engine.sync_engine)
        counted = []
        async with AsyncSession(engine) as session, session.begin():
            for step in STEPS:
                said.clear()
                await added(session, step)
                counted.append(list(said))
        await engine.dispose()
        return counted

    return asyncio.run(story())


def watched(engine: Any) -> list[str]:
    said: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *told: said.append(told[2]))
    return said


def with_apsw(path: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    connection = apsw.Connection(path)
    said: list[str] = []
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda told: None if told["trigger"] else said.append(told["sql"]))
    counted = []
    with connection:
        for step in STEPS:
            said.clear()
            added(connection, step)
            counted.append(list(said))
    connection.close()
    return counted


def counted_of(said: list[str]) -> list[str]:
    """A statement is told once more for each step of its triggers. A pragma asks about the connection, and reads no
    table."""
    return [sql for sql in dict.fromkeys(said) if not sql.startswith("pragma")]


def with_sqlite3(path: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    connection = sqlite3.connect(path)
    connection.execute(NO_CHECKPOINTS)
    connection.execute("begin immediate")
    said: list[str] = []
    connection.set_trace_callback(said.append)
    counted = []
    for step in STEPS:
        said.clear()
        added(connection, step)
        counted.append(counted_of(said))
    connection.commit()
    connection.close()
    return counted


def with_aiosqlite(path: str, added: Callable[[Any, list[Notification]], Any]) -> list[list[str]]:
    async def story() -> list[list[str]]:
        counted = []
        async with aiosqlite.connect(path) as connection:
            await connection.execute(NO_CHECKPOINTS)
            await connection.execute("begin immediate")
            said: list[str] = []
            await connection.set_trace_callback(said.append)
            for step in STEPS:
                said.clear()
                await added(connection, step)
                counted.append(counted_of(said))
            await connection.commit()
        return counted

    return asyncio.run(story())


@pytest.mark.parametrize("count", [with_asyncpg, with_psycopg, with_session, with_async_session])
def test_postgres_is_asked_one_statement(url: str, count: Callable[..., list[list[str]]]) -> None:
    place = Place(url, is_postgres=True)
    place.empty()
    counted = count(url, outbox.add_many)
    assert [len(said) for said in counted] == [1, 1, 1, 1], counted
    assert len(place.keys()) == len(MANY)


@pytest.mark.parametrize("count", [with_apsw, with_sqlite3, with_aiosqlite])
def test_sqlite_is_asked_one_statement_for_what_is_new_and_two_for_what_is_known(
    file: str, count: Callable[..., list[list[str]]]
) -> None:
    counted = count(file, outbox.add_many)
    assert [len(said) for said in counted] == [1, 2, 2, 2], counted
    assert len(Place(file, is_postgres=False).keys()) == len(MANY)


@pytest.mark.parametrize("is_postgres", [True, False], ids=["postgres", "sqlite"])
def test_nothing_else_is_written(request: pytest.FixtureRequest, is_postgres: bool) -> None:
    """Of all tables there are."""
    place = Place(request.getfixturevalue("fresh_url" if is_postgres else "file"), is_postgres)
    place.empty()

    def everything() -> dict[str, Any]:
        if is_postgres:
            names = place.ask(
                "select format('%s.%I', schemaname, tablename) as name from pg_tables "
                "where schemaname not in ('pg_catalog', 'information_schema')"
            )
        else:
            names = place.ask("select name from sqlite_schema where type = 'table'")
        return {row["name"]: place.ask(f"select * from {row['name']}") for row in names}

    async def story() -> None:
        async with place.roads["psycopg" if is_postgres else "apsw"](place.url) as customer:
            assert (await customer.add(*ONE))[0].status == "added"
            await customer.end(commit=True)

    before = everything()
    asyncio.run(story())
    after = everything()
    changed = {name.replace("semel.", "").replace("semel_", "") for name in before if before[name] != after[name]}
    assert changed == {"notification", "dispatch"} | (set() if is_postgres else {"meta"}), "meta: the last place"
