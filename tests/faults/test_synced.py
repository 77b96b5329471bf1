"""A power loss of a server cannot be brought about here. What can be seen: that an answer comes after its sync."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.test_postgres_faults import migrate
from tests.faults.test_redis_faults import SYNCED
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey

from semel import wiring
from semel.ports import Ledger
from semel.testing.harness import Harness
from semel.testing.laws.faults import wait_until
from semel.values.claim import Claim, Granted, Settlement
from semel.values.outcome import Done

ROUNDS = 40
SYNCS = "select coalesce(sum(fsyncs), 0)::bigint from pg_stat_io where object = 'wal'"


def claim_of(number: int) -> Claim:
    return Harness(open=lambda: wiring.open_ledger("memory://"), namespace="synced").claim(f"event {number}")


async def answers(url: str) -> int:
    """Claims and settles one after the other, so that no two can share a sync. Returns how many there were."""
    ledger: Ledger = wiring.open_ledger(url)
    try:
        for number in range(ROUNDS):
            (granted,) = await ledger.claim([claim_of(number)])
            assert isinstance(granted, Granted)
            assert await ledger.settle([Settlement(granted.lease, Done())]) == [True]
    finally:
        await ledger.close()
    return 2 * ROUNDS


@contextmanager
def postgres(**settings: str) -> Iterator[tuple[PostgresServer, str]]:
    with TemporaryDirectory(prefix="semel-synced-") as folder:
        server = PostgresServer(Path(folder) / "postgres", fsync=True, settings=settings)
        try:
            server.start()
        except NoServer as error:
            not_here(error)
        try:
            url = server.database("synced")
            asyncio.run(migrate(url))
            yield server, url
        finally:
            server.stop()


def syncs(server: PostgresServer) -> int:
    ((count,),) = server.execute(SYNCS)
    return int(count)


def test_postgres_syncs_its_log_for_each_answer() -> None:
    with postgres() as (server, url):
        names = ("fsync", "full_page_writes", "synchronous_commit")
        assert server.execute(*[f"show {name}" for name in names]) == [["on"], ["on"], ["on"]]
        before = syncs(server)
        count = asyncio.run(answers(url))
        wait_until(lambda: syncs(server) - before >= count, f"{count} syncs")  # they are counted with a delay


def test_postgres_without_synchronous_commit_does_not() -> None:
    """The control: the count can be smaller, so that a large one means something."""
    with postgres(synchronous_commit="off", wal_writer_delay="10s") as (server, url):
        before = syncs(server)
        count = asyncio.run(answers(url))
        server.execute("select pg_stat_force_next_flush()")
        assert syncs(server) - before < count


def test_redis_writes_each_answer_to_its_log_and_is_configured_to_sync_it(tmp_path: Path) -> None:
    """Whether it does sync is the server's own affair: it cannot be asked for that."""
    server = _valkey(tmp_path)
    try:
        assert server.ask("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]
        info = server.ask("INFO", "persistence")
        assert isinstance(info, bytes)
        assert b"aof_enabled:1" in info
        sizes = [logged(tmp_path)]
        for number in range(3):
            asyncio.run(one_claim(f"{server.url}?prefix=synced", number))
            sizes.append(logged(tmp_path))
        assert sizes == sorted(set(sizes)), "longer after each answer"
    finally:
        server.stop()


async def one_claim(url: str, number: int) -> None:
    ledger: Ledger = wiring.open_ledger(url)
    (granted,) = await ledger.claim([claim_of(number)])
    assert isinstance(granted, Granted)
    await ledger.close()


def _valkey(folder: Path) -> Valkey:
    try:
        server = Valkey(folder / "valkey", SYNCED)
        server.start()
    except NoServer as error:
        not_here(error)
    return server


def logged(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "valkey").rglob("*.aof"))
