"""PostgreSQL through every fault: the shared laws, and what only PostgreSQL can suffer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from tests.faults.bindings import harness_of
from tests.faults.worker_process import NEVER
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, not_here

from semel import Context, Event, Semel
from semel.core.crash_points import Observer
from semel.ledgers.postgres import PostgresLedger
from semel.testing.fault_laws import FaultBinding, FaultHarness, Happened, StoreFaultLaws
from semel.testing.laws.faults import SOON_S, FaultStorm, document, inconclusive
from semel.testing.proxy import FaultProxy
from semel.values.errors import LedgerUnavailable

OPTIONS = "?timeout=2&connect_timeout=2&pool_wait=2&pool=4&transactions=4"
HASTY = "?timeout=0.3&connect_timeout=2&pool=4&transactions=4"
TABLE = "create table call (effect text, event text, key text, token bigint, attempt int, applied boolean, n serial)"
CALLS = "select effect, event, key, token, attempt, applied from call order by n"
LEASE_S = 1.5
AGAIN_S = 0.05
CROWD = 50
JUMP_S = 20  # longer than leases, shorter than the window of a key; a lease may last so much longer when it goes back


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not pytest's: the next run of pytest takes away the rights of others, and a server of root's is one of those."""
    with TemporaryDirectory(prefix="semel-faults-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PostgresServer]:
    server = PostgresServer.given() or PostgresServer(folder / "postgres")
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    """A fresh one, migrated, with the table that handlers write to."""
    name = f"faults_{uuid4().hex}"
    url = server.database(name)
    server.execute(TABLE, database=name)
    asyncio.run(migrate(url))
    yield name
    server.drop(name)


async def migrate(url: str) -> None:
    ledger = PostgresLedger.from_url(url)
    await ledger.migrate()
    await ledger.close()


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[FaultProxy]:
    place = urlsplit(server.url())
    with FaultProxy(place.hostname or "127.0.0.1", place.port or 5432) as proxy:
        yield proxy


def calls_in(server: PostgresServer, database: str) -> list[Happened]:
    return [
        Happened(effect, event, key, int(token), int(attempt), applied == "t")
        for effect, event, key, token, attempt, applied in server.execute(CALLS, database=database)
    ]


class TestPostgres(StoreFaultLaws):
    @pytest.fixture
    def harness(self, tmp_path: Path, server: PostgresServer, database: str, proxy: FaultProxy) -> FaultHarness:
        return harness_of(
            tmp_path,
            proxy,
            proxy.url(server.url(database)) + OPTIONS,
            hasty=proxy.url(server.url(database)) + HASTY,
            server=None if server.is_given else server.process,
            in_store=lambda: calls_in(server, database),
        )


# ------------------------------------------------------------------------------------------- what only PostgreSQL has


def app_on(url: str, handle: Callable[[Event, Context], Awaitable[None]], observe: Observer | None = None) -> Semel:
    app = Semel(url, lease=LEASE_S, concurrency=CROWD, observe=observe)
    app.on("transaction", effect="transaction", name="transaction", max_attempts=NEVER)(handle)
    return app


async def until_final(app: Semel, event: str) -> str:
    """Delivered again until it is acknowledged."""
    ends = time.monotonic() + SOON_S
    while time.monotonic() < ends:
        with suppress(LedgerUnavailable):
            outcome = await app.process(document(event))
            if outcome.final:
                return outcome.status
        await asyncio.sleep(AGAIN_S)
    raise AssertionError(f"{event} does not come to an end")


INSERT = "insert into call values ('transaction', $1, $2, $3, $4, true)"


@pytest.mark.parametrize("moment", ["in the handler", "before_settle"])
def test_a_backend_that_is_terminated_mid_transaction_takes_its_writes_along(
    server: PostgresServer, database: str, moment: str
) -> None:
    """The connection of the first attempt is shot, with the handler's writes in it; the next attempt happens once."""
    url = server.url(database) + OPTIONS
    backends: list[str] = []
    shot: list[str] = []

    def shoot() -> None:
        ((answer,),) = server.execute(f"select pg_terminate_backend({backends[0]}, 5000)")
        shot.append(answer)

    def observe(boundary: str) -> None:
        if boundary == moment and backends and not shot:
            shoot()

    async def handle(event: Event, ctx: Context) -> None:
        await ctx.tx.execute(INSERT, event.document["id"], ctx.key, ctx.token, ctx.attempt)
        backends.append(str(await ctx.tx.fetchval("select pg_backend_pid()")))
        if moment == "in the handler" and not shot:
            await asyncio.to_thread(shoot)

    async def deliver() -> str:
        async with app_on(url, handle, observe) as app:
            return await until_final(app, "transaction-1")

    assert asyncio.run(deliver()) in ("done", "duplicate")
    assert shot == ["t"], "inconclusive: nobody was terminated"
    assert len(backends) == 2, "it ran again"
    assert [call.event for call in calls_in(server, database)] == ["transaction-1"]


def test_a_pool_of_two_serves_a_crowd(server: PostgresServer, database: str) -> None:
    """Fifty transactions at once, two connections for them: they wait for each other, and all are served once."""
    url = server.url(database) + "?pool=2&transactions=2&group=1"
    inside = most = 0

    async def handle(event: Event, ctx: Context) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await ctx.tx.execute(INSERT, event.document["id"], ctx.key, ctx.token, ctx.attempt)
        await asyncio.sleep(0.01)
        inside -= 1

    async def deliver() -> list[str]:
        async with app_on(url, handle) as app:
            return await asyncio.gather(*(until_final(app, event) for event in events))

    events = [f"transaction-{number}" for number in range(CROWD)]
    assert set(asyncio.run(deliver())) <= {"done", "duplicate"}
    assert most == 2, "inconclusive: the pool was never exhausted"
    assert sorted(call.event for call in calls_in(server, database)) == sorted(events)


@pytest.fixture(scope="module")
def clocked_server(folder: Path) -> Iterator[PostgresServer]:
    """Its own: the others keep their time."""
    server = PostgresServer(folder / "clocked")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in moved_by(folder / "clock").items():
            environment.setenv(name, value)
        move(folder / "clock", 0)
        try:
            server.start()
        except NoServer as error:
            not_here(error)
    yield server
    server.stop()


class TestMovedClock(FaultBinding):
    """The server's clock jumps ahead under load, and back."""

    @pytest.fixture
    def server(self, clocked_server: PostgresServer) -> PostgresServer:
        return clocked_server

    @pytest.fixture
    def harness(self, tmp_path: Path, server: PostgresServer, database: str, proxy: FaultProxy) -> FaultHarness:
        return harness_of(
            tmp_path,
            proxy,
            proxy.url(server.url(database)) + OPTIONS,
            in_store=lambda: calls_in(server, database),
        )

    @pytest.mark.long
    def test_a_clock_that_jumps_under_load_loses_and_doubles_nothing(
        self, harness: FaultHarness, server: PostgresServer, folder: Path
    ) -> None:
        with FaultStorm(harness) as storm:
            for off_s in (JUMP_S, 0, -JUMP_S, 0):
                move(folder / "clock", off_s)
                ((told,),) = server.execute("select extract(epoch from clock_timestamp())::bigint")
                if abs(int(told) - time.time() - off_s) > JUMP_S / 2:
                    inconclusive(f"the server's clock was to be {off_s} s off, and says {told}")
                storm.goes_on()


def move(clock: Path, off_s: int) -> None:
    """At once: it is read at every moment."""
    next_one = clock.with_suffix(".next")
    next_one.write_text(f"{off_s:+}\n")
    next_one.chmod(0o644)
    next_one.replace(clock)


def moved_by(clock: Path) -> dict[str, str]:
    """The environment of a process whose wall clock follows this file."""
    spec = find_spec("libfaketime")
    library = (
        next(Path(spec.submodule_search_locations[0]).rglob("libfaketime.so*"), None)
        if (spec and spec.submodule_search_locations)
        else None
    )
    if library is None:
        not_here("libfaketime is not here: pip install libfaketime")
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
