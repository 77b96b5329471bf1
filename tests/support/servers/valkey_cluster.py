"""A Valkey Cluster of our own: three masters, each with a replica, on loopback. Made without any tool of the server's.

Failovers, slots that move and masters that die are commands here; each returns when the Cluster has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.support.servers.process import NoServer, free_port
from tests.support.servers.valkey import ServerError, Valkey

SLOTS = 16384
NODE_TIMEOUT_MS = 1500  # a dead master is replaced after about twice this
READY_S = 60.0
MOVE_AT_ONCE = 50  # keys


class ClusterNode(Valkey):
    """One of its servers."""

    id = ""

    @property
    def is_master(self) -> bool:
        return self._told().get("role") == "master"

    @property
    def replicas_online(self) -> int:
        return sum("state=online" in told for name, told in self._told().items() if name.startswith("slave"))

    @property
    def is_linked(self) -> bool:
        """As a replica: it follows its master."""
        return self._told().get("master_link_status") == "up"

    def _told(self) -> dict[str, str]:
        told = self.ask("INFO", "replication")
        assert isinstance(told, bytes)
        return {name: value for name, _, value in (line.partition(":") for line in told.decode().splitlines())}


class ValkeyCluster:
    """Masters first, then their replicas in the same order."""

    def __init__(self, folder: Path, masters: int = 3, replicas: int = 1) -> None:
        self._masters = masters
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(NODE_TIMEOUT_MS),
            "cluster-replica-validity-factor": "0",  # a replica may take over however long its master is gone
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
        }
        self._bus = [free_port() for _ in range(masters * (1 + replicas))]  # where they talk to each other
        self.nodes = [
            ClusterNode(folder / f"node{at}", {**settings, "cluster-port": str(port)})
            for at, port in enumerate(self._bus)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{node.host}:{node.port}" for node in self.nodes[: self._masters])

    def start(self) -> None:
        """Start all, introduce them to each other, give out the slots. Raises NoServer."""
        with ThreadPoolExecutor(len(self.nodes)) as threads:
            list(threads.map(lambda node: node.start(), self.nodes))
        for at, node in enumerate(self.nodes):
            told = node.ask("CLUSTER", "MYID")
            assert isinstance(told, bytes)
            node.id = told.decode()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for at in range(self._masters):
            first, last = at * SLOTS // self._masters, (at + 1) * SLOTS // self._masters - 1
            self.nodes[at].ask("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            node.ask("CLUSTER", "MEET", self.nodes[0].host, self.nodes[0].port, self._bus[0])
        until(lambda: all(len(list(self._lines(node))) == len(self.nodes) for node in self.nodes), "all have met")
        for at, node in enumerate(self.nodes[self._masters :]):
            self._replicate(node, self.nodes[at % self._masters])
        self.wait_until_well()

    def wait_until_well(self) -> None:
        """All slots are served, and every replica follows its master."""
        until(self._is_well, "the cluster is well", self._state)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()

    # --------------------------------------------------------------------------------------------------- who has what

    def master_of(self, slot: int) -> ClusterNode:
        for line in self._lines(self._anyone()):
            fields = line.split()
            if "master" in fields[2] and "fail" not in fields[2] and any(_holds(part, slot) for part in fields[8:]):
                return self._by_id(fields[0])
        raise NoServer(f"nobody serves slot {slot}")

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        for line in self._lines(self._anyone()):
            fields = line.split()
            if fields[3] == master.id and "fail" not in fields[2]:
                return self._by_id(fields[0])
        raise NoServer("that master has no replica")

    # ----------------------------------------------------------------------------------------------- what is done to it

    def fail_over(self, master: ClusterNode) -> ClusterNode:
        """A graceful failover: its replica becomes the master, and nothing is lost. Returns the new one."""
        replica = self.replica_of(master)
        replica.ask("CLUSTER", "FAILOVER")
        until(lambda: replica.is_master and not master.is_master, "the replica is the master")
        return replica

    def move_slot(self, slot: int, to: ClusterNode, between: Callable[[], None] = lambda: None) -> int:
        """Move a slot and all of its keys, as an operator's tool would. `between` is called while it is half moved.
        Returns how many keys have moved."""
        source = self.master_of(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        moved = 0
        while keys := source.ask("CLUSTER", "GETKEYSINSLOT", slot, MOVE_AT_ONCE):
            assert isinstance(keys, list)
            names = [key for key in keys if isinstance(key, bytes)]
            half = names[: max(1, len(names) // 2)]
            source.ask("MIGRATE", to.host, to.port, "", 0, 5000, "KEYS", *half)
            moved += len(half)
            between()
        masters = [node for node in self.nodes if node.running and node.is_master]
        for node in sorted(masters, key=lambda one: one is not to):  # the new owner first: nobody says "not mine" twice
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        until(lambda: self.master_of(slot) is to, "the slot has moved")
        return moved

    # ------------------------------------------------------------------------------------------------------ its parts

    def _replicate(self, node: ClusterNode, master: ClusterNode) -> None:
        def replicating() -> bool:
            try:
                return node.ask("CLUSTER", "REPLICATE", master.id) == b"OK"
            except ServerError:  # it has not heard of that master yet
                return False

        until(replicating, "a replica knows its master")

    def _is_well(self) -> bool:
        for node in self.nodes:
            if not node.running:
                continue
            told = node.ask("CLUSTER", "INFO")
            assert isinstance(told, bytes)
            if b"cluster_state:ok" not in told or b"cluster_slots_ok:16384" not in told:
                return False
            if not (node.is_linked or (node.is_master and node.replicas_online)):
                return False
        return True

    def _state(self) -> str:
        return "\n".join(self._lines(self._anyone()))

    def _anyone(self) -> ClusterNode:
        for node in self.nodes:
            with suppress(OSError):
                if node.running and node.ask("PING") == b"PONG":
                    return node
        raise NoServer("no node answers")

    def _by_id(self, id: str) -> ClusterNode:
        return next(node for node in self.nodes if node.id == id)

    @staticmethod
    def _lines(node: ClusterNode) -> Iterator[str]:
        told = node.ask("CLUSTER", "NODES")
        assert isinstance(told, bytes)
        return iter(told.decode().splitlines())


def _holds(part: str, slot: int) -> bool:
    if part.startswith("["):
        return False  # on its way
    first, _, last = part.partition("-")
    return int(first) <= slot <= int(last or first)


def until(is_so: Callable[[], bool], what: str, otherwise: Callable[[], str] = lambda: "") -> None:
    """Wait for it. A server that does not answer yet has not said no."""
    ends = time.monotonic() + READY_S
    while True:
        with suppress(OSError):
            if is_so():
                return
        if time.monotonic() > ends:
            raise NoServer(f"waited {READY_S:g} s, and not: {what}\n{otherwise()}")
        time.sleep(0.02)
