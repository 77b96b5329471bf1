"""A PostgreSQL server dies under load and its replica takes over: what a synchronous one keeps, and another forgets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.faults.bindings import EVERY_EFFECT, harness_of
from tests.faults.standby import Standby
from tests.faults.test_postgres_faults import OPTIONS, TABLE, calls_in, migrate
from tests.faults.worker_process import Plan, app_of, calls_outside
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, not_here

from semel.testing.fault_laws import Happened
from semel.testing.laws.faults import EventRecord, FaultStorm, check_kept, document, wait_until
from semel.testing.proxy import PARTITION, FaultProxy

DATABASE = "failover"
BEFORE = [f"{effect}-before" for effect in EVERY_EFFECT]
EVENTS = [f"{effect}-{number}" for effect in EVERY_EFFECT for number in range(3)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: see test_postgres_faults.py."""
    with TemporaryDirectory(prefix="semel-failover-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def primary(folder: Path) -> Iterator[PostgresServer]:
    server = PostgresServer(folder / "primary")
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    url = server.database(DATABASE)
    server.execute(TABLE, database=DATABASE)
    asyncio.run(migrate(url))
    yield server
    server.stop()


@pytest.fixture
def replication(primary: PostgresServer) -> Iterator[FaultProxy]:
    """The link between the two."""
    with FaultProxy("127.0.0.1", primary.port) as proxy:
        yield proxy


@pytest.fixture
def standby(folder: Path, primary: PostgresServer, replication: FaultProxy) -> Iterator[Standby]:
    standby = Standby(folder / "standby", primary, replication.url(primary.url()))
    yield standby
    standby.stop()


@pytest.fixture
def proxy(primary: PostgresServer) -> Iterator[FaultProxy]:
    """The way of the workers."""
    with FaultProxy("127.0.0.1", primary.port) as proxy:
        yield proxy


@pytest.mark.long
def test_a_synchronous_replica_takes_over_under_load_and_has_everything(
    tmp_path: Path, primary: PostgresServer, standby: Standby, proxy: FaultProxy
) -> None:
    standby.follow(synchronous=True)
    harness = harness_of(
        tmp_path, proxy, proxy.url(primary.url(DATABASE)) + OPTIONS, in_store=lambda: calls_in(standby, DATABASE)
    )
    with FaultStorm(harness) as storm:
        storm.goes_on()
        missed = proxy.seen.unreachable
        primary.process.kill()
        wait_until(lambda: proxy.seen.unreachable > missed, "a worker that misses the primary")
        standby.promote()
        proxy.leads_to("127.0.0.1", standby.port)
        storm.goes_on()
    assert calls_in(standby, DATABASE), "the storm went over to the replica"


@pytest.fixture
def forgotten(
    tmp_path: Path, primary: PostgresServer, standby: Standby, replication: FaultProxy, proxy: FaultProxy
) -> tuple[list[Happened], list[Happened]]:
    """Events are done while the link to an asynchronous replica is cut, and delivered again when it has taken over: all
    calls of their handlers, and of what transactions wrote that which is left right after the failover."""
    plan = Plan(str(tmp_path), proxy.url(primary.url(DATABASE)) + OPTIONS, EVERY_EFFECT)

    async def deliver(events: list[str]) -> set[str]:
        async with app_of(plan) as app:
            return {outcome.status for outcome in await app.process_many([document(event) for event in events])}

    standby.follow(synchronous=False)
    assert asyncio.run(deliver(BEFORE)) == {"done"}
    caught_up = "select 1 from pg_stat_replication where replay_lsn = pg_current_wal_lsn()"
    wait_until(lambda: bool(primary.execute(caught_up)), "a replica that has caught up")
    with replication.fault(PARTITION):
        assert asyncio.run(deliver(EVENTS)) == {"done"}
        primary.process.kill()
        replication.reset()
    standby.promote()
    proxy.leads_to("127.0.0.1", standby.port)
    kept = calls_in(standby, DATABASE)
    assert asyncio.run(deliver(BEFORE)) == {"duplicate"}, "what the replica had is not forgotten"
    assert asyncio.run(deliver(EVENTS)) == {"done"}, "inconclusive: nothing was forgotten"
    return calls_outside(tmp_path), kept


@pytest.mark.long
def test_an_asynchronous_replica_loses_transactions_doubles_park_and_repeats_keyed_with_the_same_key(
    forgotten: tuple[list[Happened], list[Happened]],
) -> None:
    """The positive control, and what holds nevertheless."""
    calls, kept = forgotten
    assert {call.event for call in kept} == {"transaction-before"}, "acknowledged, and gone"
    times = Counter(call.event for call in calls)
    assert all(times[event] == 2 for event in EVENTS if event.startswith(("park", "keyed", "retry")))
    assert all(times[event] == 1 for event in BEFORE if not event.startswith("transaction"))
    for effect in ("keyed", "retry"):
        mine = [call for call in calls if call.effect == effect]
        check_kept(effect, mine, {call.event: EventRecord("done", None) for call in mine})
