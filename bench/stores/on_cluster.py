"""Cluster: three masters compared with one node on the same machine, with the same client processes.

One node already keeps one client busy, so only several clients can show the gain of three nodes. The clients use half
of the processors, and the servers use the others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from bench.stores import on_semel
from bench.stores.clients import clients
from bench.stores.plan import LARGE_BATCH, Line, Sample, Scenario, Sizes
from bench.stores.servers import running
from bench.stores.supply import Supply
from bench.stores.timing import Watch, of_redis
from tests.support.servers.valkey import Valkey
from tests.support.servers.valkey_cluster import ValkeyCluster, until

from semel.wiring import open_ledger

WARM = 3  # batches before the clock runs: every node is known, scripts are loaded
MASTERS = 3
CLIENTS = max(2, (os.cpu_count() or 1) // 2)
ENOUGH = MASTERS + CLIENTS  # processors: each server and each client works all the time


@contextmanager
def opened(folder: Path, sizes: Sizes) -> Iterator[OnCluster]:
    with running(Valkey(folder / "one")) as one, running(Masters(folder, MASTERS, replicas=0)) as three:
        yield OnCluster(one.url, three, sizes)


class Masters(ValkeyCluster):
    """Without replicas, which would only take time from the masters: well as soon as all slots are served."""

    def wait_until_well(self) -> None:
        until(lambda: all(_serves(node) for node in self.nodes), "all slots are served")


class OnCluster:
    name = "cluster"
    title = f"Semel on {MASTERS} masters beside one node"

    def __init__(self, one: str, three: ValkeyCluster, sizes: Sizes) -> None:
        self._nodes = [one, *[node.url for node in three.nodes]]
        self._sizes = sizes
        self._supply = Supply()
        self._watch = Watch(of_redis(self._nodes))
        processors = os.cpu_count() or 1
        few = f"{processors} processors for {MASTERS} servers and {CLIENTS} clients" if processors < ENOUGH else ""
        self.lines: Sequence[Line] = [
            Line("clients_on_three", "clients_on_one", at_least=1.5, unjudged=few),
            Line("clients_on_one"),
            Line("ledger_on_three", "ledger_on_one"),
            Line("ledger_on_one"),
        ]
        phases = "claims, then settles, by the ledger, 500 at a time"
        many = f"process_many of 100 in {CLIENTS} processes"
        self.scenarios = [
            Scenario("ledger_on_one", "ledger, one node", phases, self._ledger(one)),
            Scenario("ledger_on_three", "ledger, three", f"{phases}, grouped by node", self._ledger(three.url)),
            Scenario("clients_on_one", "clients, one node", f"{many}, on one node", self._clients(one)),
            Scenario("clients_on_three", "clients, three", f"{many}, on three masters", self._clients(three.url)),
        ]

    def prepare(self, advance: Callable[[int], None]) -> None:
        """Nothing: clients make their own events."""

    def remarks(self) -> list[str]:
        return [f"{MASTERS + 1} servers and up to {CLIENTS} clients on {os.cpu_count() or 1} processors; no replicas"]

    def _ledger(self, url: str) -> Callable[[], Sample]:
        async def measure() -> Sample:
            warm = self._supply.batches_of_claims(WARM, LARGE_BATCH)
            batches = self._supply.batches_of_claims(self._sizes.claims // LARGE_BATCH, LARGE_BATCH)
            return await on_semel.on_ledger(self._watch, open_ledger(url), warm, batches)

        return lambda: self._on_empty(lambda: asyncio.run(measure()))

    def _clients(self, url: str) -> Callable[[], Sample]:
        return lambda: self._on_empty(lambda: clients(self._watch, url, CLIENTS, self._sizes.events))

    def _on_empty(self, measure: Callable[[], Sample]) -> Sample:
        for node in self._nodes:
            with redis.Redis.from_url(node) as client:
                client.flushall()
        return measure()


def _serves(node: Valkey) -> bool:
    told = node.ask("CLUSTER", "INFO")
    return isinstance(told, bytes) and b"cluster_state:ok" in told
