"""Which server has a key now: one fixed server, the master that Sentinel names, or the nodes of a Cluster."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from redis.asyncio.connection import Connection, SSLConnection

from semel.adapters.ledgers.redis.address import Address
from semel.adapters.ledgers.redis.node import Node, RedisError
from semel.adapters.ledgers.redis.placement import SLOTS
from semel.adapters.ledgers.redis.resp import command
from semel.values.errors import LedgerUnavailable

PATIENCE = 4  # who hangs may use up so much of the deadline: others know too


class Topology(Protocol):
    """Nodes, and the way to find them again when they have moved."""

    async def node(self, bucket: int) -> Node:
        """The server that has the keys of this tag."""

    async def all_masters(self) -> list[Node]: ...

    async def look_again(self) -> None:
        """What is known of the servers may be wrong."""

    def moved(self, bucket: int, host: str, port: int) -> None:
        """A server has said who has the keys of this tag now."""

    def at(self, host: str, port: int) -> Node:
        """A server that another has named."""

    async def close(self) -> None: ...


class OneServer:
    """Always the same."""

    def __init__(self, address: Address) -> None:
        host, port = address.hosts[0] if address.hosts else ("", 0)
        self._node = Node(address, host, port)

    async def node(self, bucket: int) -> Node:
        return self._node

    async def all_masters(self) -> list[Node]:
        return [self._node]

    async def look_again(self) -> None:
        await self._node.drop_idle()

    def moved(self, bucket: int, host: str, port: int) -> None:
        """Only servers of a Cluster say so."""

    def at(self, host: str, port: int) -> Node:
        return self._node

    async def close(self) -> None:
        await self._node.close()


class SentinelMaster:
    """Whoever the Sentinels call the master; asked again whenever it does not answer, or is none any more."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._node: Node | None = None

    async def node(self, bucket: int) -> Node:
        if self._node is None:
            host, port = await self._discover()
            self._node = Node(self._address, host, port)
        return self._node

    async def all_masters(self) -> list[Node]:
        return [await self.node(0)]

    def moved(self, bucket: int, host: str, port: int) -> None:
        """Only servers of a Cluster say so."""

    async def look_again(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await node.drop_idle()

    def at(self, host: str, port: int) -> Node:
        assert self._node is not None
        return self._node

    async def close(self) -> None:
        if self._node is not None:
            await self._node.close()

    async def _discover(self) -> tuple[str, int]:
        trouble = "none of them answered"
        for host, port in self._address.hosts:
            connection = self._connection(host, port)
            try:
                await connection.connect()
                await connection.send_packed_command(
                    command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.master), check_health=False
                )
                found = await connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                trouble = f"{host}:{port}: {str(error) or 'no answer in time'}"
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found:
                return found[0].decode(), int(found[1])
            trouble = f"{host}:{port} knows no master of that name"
        raise LedgerUnavailable(f"{self._address.shown}: no master to be found ({trouble})")

    def _connection(self, host: str, port: int) -> Any:
        address = self._address
        shared: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": address.sentinel_username,
            "password": address.sentinel_password,
            "socket_timeout": address.timeout_s / PATIENCE,
            "socket_connect_timeout": address.timeout_s / PATIENCE,
            "protocol": 2,
        }
        return SSLConnection(**shared, **address.tls) if address.tls is not None else Connection(**shared)


class Cluster:
    """The nodes of a Cluster by their slots, learnt from any node that answers."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._nodes: dict[tuple[str, int], Node] = {}
        self._slots: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}  # what was heard since; the others may not know it yet

    async def node(self, bucket: int) -> Node:
        if bucket in self._moved:
            return self._moved[bucket]
        slot = SLOTS[bucket]
        for first, last, node in await self._known():
            if first <= slot <= last:
                return node
        self._slots = []
        raise LedgerUnavailable(f"{self._address.shown}: no node serves slot {slot} now")

    async def all_masters(self) -> list[Node]:
        ranges = await self._known()
        return list(dict.fromkeys([*[node for _, _, node in ranges], *self._moved.values()]))

    async def look_again(self) -> None:
        self._slots = []
        self._moved.clear()

    def moved(self, bucket: int, host: str, port: int) -> None:
        self._moved[bucket] = self.at(host, port)

    def at(self, host: str, port: int) -> Node:
        key = (host, port)
        if key not in self._nodes:
            self._nodes[key] = Node(self._address, host, port)
        return self._nodes[key]

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()

    async def _known(self) -> list[tuple[int, int, Node]]:
        if not self._slots:
            self._slots = await self._learn()
        return self._slots

    async def _learn(self) -> list[tuple[int, int, Node]]:
        """Nodes that were there before are asked first: the names in the URL may be gone."""
        trouble = "no node answered"
        for host, port in dict.fromkeys((*self._nodes, *self._address.hosts)):
            node = self.at(host, port)
            try:
                async with asyncio.timeout(self._address.timeout_s / PATIENCE):
                    ranges = await node.ask("CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:  # a timeout is an OSError
                trouble = f"{host}:{port}: {str(error) or 'no answer in time'}"
                await node.drop_idle()
                continue
            if ranges:
                return [
                    (first, last, self.at(master[0].decode() or host, int(master[1])))
                    for first, last, master, *_ in ranges
                ]
            trouble = f"{host}:{port} knows no slots"
        raise LedgerUnavailable(f"{self._address.shown}: {trouble}")


def topology_of(address: Address) -> Topology:
    match address.kind:
        case "cluster":
            return Cluster(address)
        case "sentinel":
            return SentinelMaster(address)
    return OneServer(address)
