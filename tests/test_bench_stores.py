"""`python -m bench.stores`: every scenario runs, and says what it is compared with. No test looks at a time or a rate:
they are the machine's."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from bench.stores import loops, on_semel, raw_redis
from bench.stores.plan import Line, Sample, Sizes
from bench.stores.report import Report, as_json, as_table, finding, legend
from bench.stores.rounds import STORES, run
from bench.stores.servers import running
from bench.stores.supply import Supply
from rich.console import Console
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey
from tests.wording import lacks

from semel.ledgers.memory import MemoryLedger

TINY = Sizes(rounds=1, claims=500, events=300, singly=40, keys=1_000, store_s=600)
ROOT = Path(__file__).parent.parent


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    try:
        with running(Valkey(tmp_path)) as server:
            yield server.url
    except NoServer as error:
        not_here(error)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: each of its sessions takes the rights of others away there, also of a PostgreSQL that is not
    root's, in the middle of another session."""
    with TemporaryDirectory(prefix="semel-test-") as made:
        yield Path(made)


def measured(store: str, folder: Path) -> Report:
    try:
        return run(TINY, [store], folder, Console(file=StringIO()))
    except NoServer as error:
        not_here(error)


def shown(report: Report) -> str:
    console = Console(file=StringIO(), width=200)
    for store in report.stores:
        console.print(as_table(store))
    console.print(legend(report))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("name", STORES)
def test_every_scenario_of_a_store_runs_once_in_every_round_and_shows_its_ratio(name: str, folder: Path) -> None:
    report = measured(name, folder)
    (store,) = report.stores
    assert all(len(samples) == TINY.rounds for samples in store.samples.values())
    assert all(one.rate > 0 and one.cpu_us > 0 for samples in store.samples.values() for one in samples)
    assert {line.scenario for line in store.findings} == set(store.samples), "measured, and not in the table"
    text = shown(report)
    for line in store.findings:
        assert line.label in text
        assert (line.ratio is not None) == (line.by_cpu is not None) == bool(line.against)
        assert (line.verdict != "") == (line.aim != "")
    assert any(line.verdict for line in store.findings), "a store without an aim"
    assert json.loads(as_json(report))["stores"][0]["findings"][0]["ratio"] == store.findings[0].ratio
    assert not list(folder.iterdir()), "something of the run was left over"


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (Line("own", "floor", at_least=1.9), "ok"),
        (Line("own", "floor", at_least=2.1), "below"),
        (Line("own", "floor", at_least=2.1, unjudged="too few processors"), "unjudged"),
        (Line("own", "floor"), ""),
        (Line("own", cpu_at_most=5), "ok"),
        (Line("own", cpu_at_most=4), "below"),
    ],
)
def test_an_aim_is_judged_by_the_median_of_the_rounds(line: Line, verdict: str) -> None:
    samples = {
        "own": [Sample(20, 1, 1), Sample(400, 5, 6), Sample(9_000, 9, 9)],
        "floor": [Sample(10, 1, 1), Sample(200, 1, 1), Sample(3_000, 1, 1)],  # the rounds' ratios are 2, 2 and 3
    }
    found = finding(line, {"own": "mine", "floor": "theirs"}, samples)
    assert (found.rate, found.cpu_us, found.server_us, found.verdict) == (400, 5, 6, verdict)
    assert found.ratio == (2 if line.against else None)
    assert found.by_cpu == (2 / 11 if line.against else None)  # the rounds' own are 1, 2 / 11 and 2 / 18


def test_a_floor_that_loses_a_key_is_no_measure(server: str) -> None:
    parts = urlsplit(server)
    keys = [[claim.digest for claim in Supply().claims(10)]]
    phases = raw_redis.Phases(8)

    async def over_asyncio() -> None:
        connection = await raw_redis.RawRedis.connect("127.0.0.1", parts.port or 0)
        try:
            await connection.two_phases(phases, keys)
            with pytest.raises(AssertionError, match="key"):
                await connection.two_phases(phases, keys)  # the same keys again are not granted
        finally:
            connection.close()

    asyncio.run(over_asyncio())
    with socket.create_connection(("127.0.0.1", parts.port or 0)) as connection:
        with pytest.raises(AssertionError, match="key"):
            raw_redis.two_phases_blocking(connection, phases, keys)


def test_a_ledger_that_refuses_a_claim_is_no_measure() -> None:
    claims = Supply().claims(10)

    async def twice() -> None:
        ledger = MemoryLedger()
        await on_semel.claim_and_settle(ledger, [claims])
        with pytest.raises(AssertionError, match="keys"):
            await on_semel.claim_and_settle(ledger, [claims])

    asyncio.run(twice())


def test_peers_and_semel_take_the_same_deliveries_for_copies(server: str) -> None:
    """Also a producer's retry, which has another envelope: otherwise they would be compared over different work."""
    import redis

    storm = Supply().half_copies(200)
    assert storm.producer_retries > 0
    assert len(storm.deliveries) == 2 * storm.distinct == 200
    with redis.Redis.from_url(server, decode_responses=True) as client:
        assert loops.set_nx_loop(client, storm.deliveries) == storm.distinct
        client.flushall()
        assert loops.Powertools(client).loop(storm.deliveries) == storm.distinct


def test_the_command_refuses_a_store_it_does_not_know() -> None:
    asked = [sys.executable, "-m", "bench.stores", "--only", "redis,oracle"]
    ran = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert lacks(ran.stderr, "oracle redis postgres cluster") == []
