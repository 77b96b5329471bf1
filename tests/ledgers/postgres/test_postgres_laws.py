"""The PostgreSQL ledger keeps the laws."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import asyncpg
import pytest

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import FakeClock, TransactionHarness
from semel.testing.ledger_laws import LedgerLaws, TransactionLaws

EFFECTS = """
    create table if not exists effect (id serial, name text);
    create table if not exists only_one (id integer primary key);
    insert into only_one values (1) on conflict do nothing;
"""


FORGET = """
    truncate effect, semel.key, semel.subject, semel.dead_letter, semel.decision;
    update semel.meta set value = -1, digest = '' where name = 'purge_position';
"""


async def write(handle: Any, text: str) -> None:
    await handle.execute("insert into effect (name) values ($1)", text)


def running(*statements: str) -> Callable[[Any], Awaitable[None]]:
    async def run(handle: Any) -> None:
        for sql in statements:
            await handle.execute(sql)

    return run


async def own_savepoint(handle: Any) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        async with handle.transaction():
            await handle.execute("insert into only_one values (1)")


async def left_running(handle: Any) -> None:
    asyncio.create_task(handle.execute("select pg_sleep(60)"))  # noqa: RUF006  the point is that nobody waits for it
    await asyncio.sleep(0.01)


MEDDLE: Mapping[str, Callable[[Any], Awaitable[None]]] = {
    "commit": running("commit"),
    "rollback": running("rollback"),
    "commit and begin": running("commit; begin"),
    "commit behind a comment": running("/* a /* nested */ one */ -- and another\n commit"),
    "commit behind a text": running("insert into effect (name) values ('it''s; x'); COMMIT; begin"),
    "end": running("end"),
    "abort": running("abort"),
    "start": running("start transaction"),
    "prepare": running("prepare transaction 'x'"),
    "rollback and begin": running("rollback", "begin"),
    "release": running("release semel_session"),
    "roll back to ours": running("rollback to savepoint semel_session"),
    "savepoint by hand": running("savepoint own", "insert into effect (name) values ('x')", "rollback to own"),
    "own savepoint": own_savepoint,
    "commit in a block": running("do $$ begin commit; end $$"),
    "unique": running("insert into only_one values (1)"),
    "bad sql": running("selec 1"),
    "left running": left_running,
    "search path": running("set search_path = pg_catalog"),
    "read only": running("set transaction read only"),
}


class Effects:
    """The handlers' own tables, on a connection and a loop of their own."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(asyncpg.connect(url))
        self._runner.run(self._connection.execute(EFFECTS))

    def forget(self) -> None:
        """Empties the store, because laws of purging and counting read all of it. Sequences continue."""
        self._runner.run(self._connection.execute(FORGET))

    def written(self) -> list[str]:
        """Also from inside another loop, so in a thread."""
        return [row[0] for row in _elsewhere(lambda: self._runner.run(self._read()))]

    async def _read(self) -> list[Any]:
        return await self._connection.fetch("select name from effect order by id")

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


def _elsewhere(work: Callable[[], list[Any]]) -> list[Any]:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@pytest.fixture(scope="module")
def effects(url: str) -> Iterator[Effects]:
    effects = Effects(url)
    yield effects
    effects.close()


class TestPostgres(LedgerLaws, TransactionLaws):
    @pytest.fixture
    def harness(self, url: str, effects: Effects) -> TransactionHarness:
        effects.forget()
        clock = FakeClock()
        return TransactionHarness(
            open=lambda: PostgresLedger.from_url(url, clock=clock),
            clock=clock,
            remote=partial(PostgresLedger.from_url, url),
            write=write,
            written=effects.written,
            meddle=MEDDLE,
        )


@pytest.mark.long
class TestPostgresByItsOwnClock(LedgerLaws, TransactionLaws):
    @pytest.fixture
    def harness(self, url: str, effects: Effects) -> TransactionHarness:
        effects.forget()
        return TransactionHarness(
            open=lambda: PostgresLedger.from_url(url),
            remote=partial(PostgresLedger.from_url, url),
            unit_ms=200,
            write=write,
            written=effects.written,
            meddle=MEDDLE,
        )
