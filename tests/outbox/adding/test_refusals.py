"""What would not be what the caller believes is refused, and says what to do. Nothing was written then."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
import apsw
import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.outbox.adding.places import Place, notification
from tests.outbox.adding.roads import NO_CHECKPOINTS, async_engine_of, done, engine_of

from semel import ConfigError, outbox

ALONE = "transaction"


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


@asynccontextmanager
async def of_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def of_psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        yield connection


@asynccontextmanager
async def of_apsw(path: str) -> AsyncIterator[Any]:
    connection = apsw.Connection(path)
    yield connection
    connection.close()


@asynccontextmanager
async def of_sqlite3(path: str) -> AsyncIterator[Any]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(NO_CHECKPOINTS)
    yield connection
    connection.close()


@asynccontextmanager
async def of_aiosqlite(path: str) -> AsyncIterator[Any]:
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        await connection.execute(NO_CHECKPOINTS)
        yield connection


def of_session(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = engine_of(driver, url, isolation_level="AUTOCOMMIT")
        with Session(engine) as session, session.begin():
            yield session
        engine.dispose()

    return opened


def of_async_session(driver: str) -> Callable[[str], Any]:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = async_engine_of(driver, url, isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session, session.begin():
            yield session
        await engine.dispose()

    return opened


AUTOCOMMIT: dict[str, tuple[bool, Callable[[str], Any]]] = {
    "asyncpg": (True, of_asyncpg),
    "psycopg": (True, of_psycopg),
    "psycopg async": (True, of_psycopg_async),
    "session on psycopg": (True, of_session("postgresql+psycopg")),
    "async session on psycopg": (True, of_async_session("postgresql+psycopg")),
    "async session on asyncpg": (True, of_async_session("postgresql+asyncpg")),
    "apsw": (False, of_apsw),
    "sqlite3": (False, of_sqlite3),
    "aiosqlite": (False, of_aiosqlite),
    "session on sqlite3": (False, of_session("sqlite+pysqlite")),
    "async session on aiosqlite": (False, of_async_session("sqlite+aiosqlite")),
}


def place_of(request: pytest.FixtureRequest, is_postgres: bool) -> Place:
    place = Place(request.getfixturevalue("url" if is_postgres else "file"), is_postgres)
    place.empty()
    return place


@pytest.mark.parametrize("name", list(AUTOCOMMIT))
def test_outside_of_a_transaction_it_is_refused(request: pytest.FixtureRequest, name: str) -> None:
    is_postgres, opened = AUTOCOMMIT[name]
    place = place_of(request, is_postgres)

    async def story() -> None:
        async with opened(place.url) as connection:
            with pytest.raises(ConfigError, match=ALONE):
                await done(outbox.add(connection, notification()))

    asyncio.run(story())
    assert place.keys() == []


@pytest.mark.parametrize("name", ["psycopg", "asyncpg", "apsw", "sqlite3"])
def test_an_explicit_transaction_on_an_autocommit_connection_is_one(request: pytest.FixtureRequest, name: str) -> None:
    is_postgres, opened = AUTOCOMMIT[name]
    place = place_of(request, is_postgres)

    async def story() -> None:
        async with opened(place.url) as connection:
            for key, end in (("undone", "rollback"), ("kept", "commit")):
                await done(connection.execute("begin"))
                added = await done(outbox.add(connection, notification(key)))
                assert added.status == "added"
                await done(connection.execute(end))

    asyncio.run(story())
    assert place.keys() == ["kept"]


@pytest.mark.parametrize("is_postgres", [True, False], ids=["postgres", "sqlite"])
def test_a_savepoint_of_the_callers_takes_it_back(request: pytest.FixtureRequest, is_postgres: bool) -> None:
    place = place_of(request, is_postgres)

    async def story() -> None:
        async with place.roads["psycopg" if is_postgres else "apsw"](place.url) as customer:
            await customer.add(notification("kept"))
            await customer.write("savepoint mine")
            await customer.add(notification("undone"))
            await customer.write("rollback to mine")
            await customer.end(commit=True)

    asyncio.run(story())
    assert place.keys() == ["kept"]


def test_what_is_no_connection_is_told_apart() -> None:
    class Connection:
        def close(self) -> None: ...

    with pytest.raises(ConfigError, match=r"Connection.*asyncpg.*docs/outbox-sql\.md"):
        outbox.add(Connection(), notification())


def test_a_batch_that_can_be_read_once_is_read_once(file: str) -> None:
    connection = apsw.Connection(file)
    with connection:
        many = (notification(str(n)) for n in range(3))
        assert len(outbox.add_many(connection, many)) == 3  # type: ignore[call-overload]
    connection.close()


def test_a_batch_is_not_one_notification(file: str) -> None:
    connection = apsw.Connection(file)
    with connection, pytest.raises(ConfigError, match="Notification"):
        outbox.add(connection, [notification()])  # type: ignore[call-overload]
    connection.close()


@pytest.mark.parametrize("wrong", [notification(), ["order-1"]], ids=["alone", "a text"])
def test_one_notification_is_no_batch(file: str, wrong: Any) -> None:
    connection = apsw.Connection(file)
    with connection, pytest.raises(ConfigError, match=r"outbox\.add_many\(connection, \[Not"):
        outbox.add_many(connection, wrong)
    connection.close()


@pytest.mark.parametrize("name", ["add", "add_many"])
@pytest.mark.parametrize("road", ["aiosqlite", "async session on aiosqlite"])
def test_a_forgotten_await_is_told_once_with_what_to_write(
    request: pytest.FixtureRequest, road: str, name: str
) -> None:
    place = place_of(request, is_postgres=False)
    said = {"add": notification(), "add_many": [notification()]}

    async def story() -> None:
        async with place.roads[road](place.url) as customer:
            await customer.write("insert into orders values ('4711')")
            getattr(outbox, name)(customer.connection, said[name])
            await customer.end(commit=True)

    with pytest.warns(RuntimeWarning) as told:
        asyncio.run(story())
    assert [str(one.message) for one in told] == [f"coroutine 'await outbox.{name}(connection, …)' was never awaited"]
    assert (place.keys(), place.orders()) == ([], ["4711"])


@pytest.mark.parametrize("wrong", [{"body": object()}, {"body": "x" * 300_000}], ids=["no JSON", "too much"])
@pytest.mark.parametrize("is_postgres", [True, False], ids=["postgres", "sqlite"])
def test_a_mistake_in_one_of_them_leaves_the_transaction_whole(
    request: pytest.FixtureRequest, is_postgres: bool, wrong: dict[str, Any]
) -> None:
    place = place_of(request, is_postgres)

    async def story() -> None:
        async with place.roads["psycopg" if is_postgres else "apsw"](place.url) as customer:
            await customer.write("insert into orders values ('4711')")
            with pytest.raises(ConfigError, match=r"JSON|bytes|a document"):
                await customer.add(notification("right"), notification("wrong", **wrong))
            await customer.add(notification("after"))
            await customer.end(commit=True)

    asyncio.run(story())
    assert (place.keys(), place.orders()) == (["after"], ["4711"])
