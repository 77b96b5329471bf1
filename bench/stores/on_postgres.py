"""PostgreSQL: one server on loopback with fsync, the same for Semel and the floors; a new database for each measure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bench.stores import many_keys, on_semel
from bench.stores.bare_sql import CREATE, BareSql, Connection, SlimSql, connect, transaction_loop
from bench.stores.plan import BATCH, LARGE_BATCH, Line, Sample, Scenario, Sizes
from bench.stores.servers import running
from bench.stores.supply import Supply, in_batches
from bench.stores.timing import Watch, of_processes
from tests.support.servers.postgres import PostgresServer

from semel.app import Semel
from semel.cli.bench import check_disk
from semel.ports import Migrates
from semel.wiring import open_ledger

WARM = 5  # batches before the clock runs: statements are prepared on every connection
TEMPLATE, FULL = "bench_template", "bench_full"
AIMED_KEYS = 10_000_000

BATCH_LINES = [
    line
    for size in (BATCH, LARGE_BATCH)
    for line in (Line(f"ledger_{size}", f"bare_{size}", at_least=0.8), Line(f"ledger_{size}", f"slim_{size}"))
]


@contextmanager
def opened(folder: Path, sizes: Sizes) -> Iterator[OnPostgres]:
    check_disk(folder, sizes.keys)
    with running(PostgresServer(folder / "postgres", fsync=True)) as server:
        yield OnPostgres(server, sizes)


class OnPostgres:
    """Every measure has a copy of an empty ledger, but for the one that is full and used in every round."""

    name = "postgres"
    title = "Semel on PostgreSQL, fsync on"

    def __init__(self, server: PostgresServer, sizes: Sizes) -> None:
        self._server = server
        self._sizes = sizes
        self._supply = Supply()
        self._watch = Watch(of_processes(server.process.pid))
        self._names = count()
        self._fill_s = 0.0
        few = f"{sizes.keys:,} keys are fewer than {AIMED_KEYS:,}: ask by --keys"
        self.lines: Sequence[Line] = [
            *BATCH_LINES,
            Line("full", "ledger_100", at_least=0.7, unjudged=few if sizes.keys < AIMED_KEYS else ""),
            Line("many"),
            Line("transactions", "transaction_loop"),
            *[Line(f"{floor}_{size}") for floor in ("bare", "slim") for size in (BATCH, LARGE_BATCH)],
            Line("transaction_loop"),
        ]
        self.scenarios = self._scenarios()

    def prepare(self, advance: Callable[[int], None]) -> None:
        """Events are made, the ledger's schema is made, and one ledger is filled."""
        self._supply.events(self._sizes.events + BATCH)
        asyncio.run(_migrate(self._server.database(TEMPLATE)))
        self._copy(FULL)
        self._fill_s = many_keys.fill(self._server.url(FULL), self._sizes.keys, self._supply, advance)

    def remarks(self) -> list[str]:
        ((version,),) = self._server.execute("show server_version")
        ((size,),) = self._server.execute("select pg_size_pretty(pg_database_size(current_database()))", database=FULL)
        return [
            f"PostgreSQL {version}, synchronous_commit=on; each phase of a batch is one commit",
            f"many settled keys: {self._sizes.keys:,}, written in {self._fill_s:.0f} s; {size} at the end",
        ]

    def _scenarios(self) -> list[Scenario]:
        small, large = BATCH, LARGE_BATCH
        by_hand = "claims, then settles: INSERT and UPDATE by unnest, prepared, one connection"
        bare, slim = f"{by_hand}; a record's columns", f"{by_hand}; five columns"
        ledger = "claims, then settles, by the ledger"
        return [
            Scenario("bare_100", "bare SQL, 100", bare, self._floor(BareSql, small)),
            Scenario("slim_100", "slim SQL, 100", slim, self._floor(SlimSql, small)),
            Scenario("ledger_100", "ledger, 100", ledger, self._ledger(small)),
            Scenario("full", "ledger, 100, full", f"{ledger}, on one with many settled keys", self._full),
            Scenario("bare_500", "bare SQL, 500", bare, self._floor(BareSql, large)),
            Scenario("slim_500", "slim SQL, 500", slim, self._floor(SlimSql, large)),
            Scenario("ledger_500", "ledger, 500", ledger, self._ledger(large)),
            Scenario("many", "process_many of 100", "the whole flow with a handler that does nothing", self._many),
            Scenario("transaction_loop", "transaction loop", "key and one INSERT, commit, one by one", self._loop),
            Scenario("transactions", "transactions", 'effect="transaction", one INSERT, by 100', self._transactions),
        ]

    # -------------------------------------------------------------------------------------------------- the floors

    def _floor(self, floor: type[BareSql], size: int) -> Callable[[], Sample]:
        async def measure(connection: Connection) -> Sample:
            sql = floor(connection)
            await sql.two_phases(self._supply.batches_of_claims(WARM, size))
            batches = self._batches(size)
            return await self._watch.timed(size * len(batches), sql.two_phases(batches))

        return lambda: self._by_hand(measure)

    def _loop(self) -> Sample:
        async def measure(connection: Connection) -> Sample:
            keys = [claim.digest for claim in self._supply.claims(self._sizes.singly)]
            return await self._watch.timed(len(keys), transaction_loop(connection, keys))

        return self._by_hand(measure)

    def _by_hand(self, measure: Callable[[Connection], Awaitable[Sample]]) -> Sample:
        async def run(url: str) -> Sample:
            connection = await connect(url)
            try:
                return await measure(connection)
            finally:
                await connection.close()

        return self._on_copy(run)

    # ------------------------------------------------------------------------------------------------------- Semel

    def _ledger(self, size: int) -> Callable[[], Sample]:
        return lambda: self._on_copy(lambda url: self._two_phases(url, size))

    def _full(self) -> Sample:
        return asyncio.run(self._two_phases(self._server.url(FULL), BATCH))

    async def _two_phases(self, url: str, size: int) -> Sample:
        warm = self._supply.batches_of_claims(WARM, size)
        return await on_semel.on_ledger(self._watch, open_ledger(url), warm, self._batches(size))

    def _many(self) -> Sample:
        events = self._supply.events(self._sizes.events + BATCH)
        warm, bodies = events[-BATCH:], events[:-BATCH]
        batches = in_batches(bodies, BATCH)
        return self._on_copy(lambda url: on_semel.process_many(self._watch, url, warm, batches, len(bodies)))

    def _transactions(self) -> Sample:
        """The handler's own INSERT and the settle commit together."""
        events = self._supply.events(self._sizes.events + BATCH)
        return self._on_copy(lambda url: _transactions(self._watch, url, events[-BATCH:], events[: self._sizes.singly]))

    # ---------------------------------------------------------------------------------------------------- databases

    def _batches(self, size: int) -> list[Any]:
        return self._supply.batches_of_claims(max(1, self._sizes.events // size), size)

    def _on_copy(self, run: Callable[[str], Awaitable[Sample]]) -> Sample:
        name = f"bench_{next(self._names)}"
        url = self._copy(name)

        async def measure() -> Sample:
            return await run(url)

        try:
            return asyncio.run(measure())
        finally:
            self._server.drop(name)

    def _copy(self, name: str) -> str:
        self._server.execute(f"create database {name} template {TEMPLATE} strategy file_copy")
        return self._server.url(name)


async def _migrate(url: str) -> None:
    ledger = open_ledger(url)
    if isinstance(ledger, Migrates):
        await ledger.migrate()
    await ledger.close()
    connection = await connect(url)
    for statement in CREATE:
        await connection.execute(statement)
    await connection.close()


async def _transactions(watch: Watch, url: str, warm: Sequence[bytes], bodies: Sequence[bytes]) -> Sample:
    async def act(event: Any, ctx: Any) -> None:
        await ctx.tx.execute("insert into effect (id) values ($1)", ctx.key)

    async with Semel(url) as app:
        app.on(on_semel.TOPIC, name="bench", effect="transaction")(act)
        await app.process_many(warm)

        async def work() -> None:
            for batch in in_batches(bodies, BATCH):
                await app.process_many(batch)

        sample = await watch.timed(len(bodies), work())
    connection = await connect(url)
    acted = await connection.fetchval("select count(*) from effect")
    await connection.close()
    if acted != len(bodies) + len(warm):
        raise AssertionError(f"{acted:,} effects where {len(bodies) + len(warm):,} had to be: its time means nothing")
    return sample
