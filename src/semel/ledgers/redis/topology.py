"""Connections to Redis servers, and the lookup of the server that has a key.

The server is fixed, the master that Sentinel names, or a node of a Cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError, ResponseError

from semel.ledgers.redis.codec import SCRIPTS, command
from semel.ledgers.redis.placement import SLOTS
from semel.ledgers.redis.url import RedisAddress
from semel.values.errors import ConfigError, LedgerUnavailable

MIN_VERSION = (7, 0)  # older versions get no fixes, and Semel is not tested with them
LOAD = b"".join([command("SCRIPT", "LOAD", script.source) for script in SCRIPTS.values()])


class Node:
    """A few connections to one server, opened when needed. Each exchange sends many commands in one round trip.

    The client library provides the connections: TLS, authentication and parsing. Its pipeline packs every argument
    separately, which is slow, so `codec` packs whole commands.
    """

    def __init__(self, address: RedisAddress, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._address = address
        self._idle: list[Any] = []
        self._slots = asyncio.Semaphore(address.pool)

    @property
    def shown(self) -> str:
        return f"Redis at {self._address.path or f'{self.host}:{self.port}'}"

    async def exchange(self, packed: Iterable[bytes], count: int) -> list[Any]:
        """Write commands and read `count` replies. A reply may be a ResponseError. Raises if the connection fails: it
        is then unknown which commands the server ran."""
        async with self._slots:
            connection = self._idle.pop() if self._idle else await self._connect()
            clean = False
            try:
                replies = await _exchange(connection, packed, count)
                clean = True
                return replies
            finally:
                if clean:
                    self._idle.append(connection)
                else:  # a partial reply may still arrive, and the next user must not read it
                    await connection.disconnect(nowait=True)

    async def exchange_in_time(self, packed: Iterable[bytes], count: int) -> list[Any]:
        """`exchange` with the deadline, for callers without one. A server may stop replying without a disconnect."""
        limit_s = self._address.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self.exchange(packed, count)
        except TimeoutError:
            await self.drop_idle()
            raise TimeoutError(f"no reply within {limit_s:g} s") from None

    async def ask(self, *parts: bytes | str | int) -> Any:
        """Run one command. Raises the reply if it is an error."""
        (reply,) = await self.exchange_in_time((command(*parts),), 1)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def load_scripts(self) -> None:
        await self.exchange((LOAD,), len(SCRIPTS))

    async def drop_idle(self) -> None:
        """Close idle connections after a failure: they may lead to a server that is gone."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()
        self._slots = asyncio.Semaphore(self._address.pool)  # the old semaphore may be bound to an event loop

    async def _connect(self) -> Any:
        connection = _connection(self._address, self.host, self.port)
        try:
            await connection.connect()
            (info,) = await _exchange(connection, (command("INFO"),), 1)
            if isinstance(info, ResponseError):
                raise info
            check_server(parse_info(info), self._address, self.shown)  # a name may lead to another server each time
            await _exchange(connection, (LOAD,), len(SCRIPTS))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


async def _exchange(connection: Any, packed: Iterable[bytes], count: int) -> list[Any]:
    for part in packed:
        try:
            await connection.send_packed_command(part, check_health=False)
        except AttributeError as error:  # from asyncio in Python 3.13.0 after a disconnect
            raise NotConnected("the server has closed the connection") from error
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)
    return replies


def _connection(address: RedisAddress, host: str, port: int) -> Any:
    shared: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": None,  # `ScriptDispatcher` has one deadline for everything
        "socket_connect_timeout": address.timeout_s,
        "protocol": 2,
    }
    if address.path:
        return UnixDomainSocketConnection(path=address.path, **shared)
    if address.tls is not None:
        return SSLConnection(host=host, port=port, **shared, **address.tls)
    return Connection(host=host, port=port, **shared)


def parse_info(info: bytes) -> dict[str, str]:
    """The names and values of an INFO reply."""
    lines = [line.partition(":") for line in info.decode(errors="replace").splitlines() if ":" in line]
    return {name: value for name, _, value in lines}


def check_server(info: dict[str, str], address: RedisAddress, shown: str) -> None:
    """Raises ConfigError for a server that may evict keys or cannot run the scripts: Semel does not use it at all."""
    version = info.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < MIN_VERSION:
        raise ConfigError(f"{shown} is version {version}: Semel needs Redis 7.0 or Valkey")
    in_cluster = info.get("cluster_enabled", "0") == "1"
    if in_cluster and address.kind != "cluster":
        raise ConfigError(f"{shown} is a node of a Cluster: use redis+cluster:// in the ledger's URL")
    if not in_cluster and address.kind == "cluster":
        raise ConfigError(f"{shown} is not a node of a Cluster: use redis:// in the ledger's URL")
    policy = eviction_policy(info)
    if policy:
        raise ConfigError(
            f"{shown} evicts keys when its memory is full (maxmemory-policy {policy}), and the events of evicted keys "
            "would run twice: set maxmemory-policy noeviction, or use a server that has it"
        )


def eviction_policy(info: dict[str, str]) -> str:
    """The policy by which the server may evict keys; empty if it does not evict."""
    policy = info.get("maxmemory_policy", "noeviction")
    return "" if info.get("maxmemory", "0") == "0" or policy == "noeviction" else policy


__all__ = ["Node", "RedisError", "ResponseError", "check_server", "eviction_policy", "parse_info"]


DISCOVERY_SHARE = 4  # a server that hangs gets this fraction of the deadline; others have the same information


class Topology(Protocol):
    """The servers of a ledger, and their discovery."""

    async def node(self, bucket: int) -> Node:
        """The server that has the keys of a tag."""

    async def all_masters(self) -> list[Node]: ...

    async def rediscover(self) -> None:
        """Discard what is known of the servers, because it may be outdated."""

    def moved(self, bucket: int, host: str, port: int) -> None:
        """Record the server that has the keys of a tag, as a redirect reported it."""

    def at(self, host: str, port: int) -> Node:
        """The node for an address in a redirect."""

    async def close(self) -> None: ...


class OneServer:
    """A single fixed server."""

    def __init__(self, address: RedisAddress) -> None:
        host, port = address.hosts[0] if address.hosts else ("", 0)
        self._node = Node(address, host, port)

    async def node(self, bucket: int) -> Node:
        return self._node

    async def all_masters(self) -> list[Node]:
        return [self._node]

    async def rediscover(self) -> None:
        await self._node.drop_idle()

    def moved(self, bucket: int, host: str, port: int) -> None:
        """Only a Cluster redirects."""

    def at(self, host: str, port: int) -> Node:
        return self._node

    async def close(self) -> None:
        await self._node.close()


class SentinelMaster:
    """The master that the Sentinels name. They are asked again when it does not reply or is no longer a master."""

    def __init__(self, address: RedisAddress) -> None:
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
        """Only a Cluster redirects."""

    async def rediscover(self) -> None:
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
        failure = "no Sentinel replied"
        for host, port in self._address.hosts:
            connection = self._connection(host, port)
            try:
                await connection.connect()
                await connection.send_packed_command(
                    command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.master), check_health=False
                )
                found = await connection.read_response(disable_decoding=True)
            except (RedisError, OSError) as error:
                failure = f"{host}:{port}: {str(error) or 'no reply in time'}"
                continue
            finally:
                await connection.disconnect(nowait=True)
            if found:
                return found[0].decode(), int(found[1])
            failure = f"{host}:{port} has no master of that name"
        raise LedgerUnavailable(f"{self._address.shown}: no master found ({failure})")

    def _connection(self, host: str, port: int) -> Any:
        address = self._address
        shared: dict[str, Any] = {
            "host": host,
            "port": port,
            "username": address.sentinel_username,
            "password": address.sentinel_password,
            "socket_timeout": address.timeout_s / DISCOVERY_SHARE,
            "socket_connect_timeout": address.timeout_s / DISCOVERY_SHARE,
            "protocol": 2,
        }
        return SSLConnection(**shared, **address.tls) if address.tls is not None else Connection(**shared)


class Cluster:
    """The nodes of a Cluster by their slots, read from any node that replies."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._nodes: dict[tuple[str, int], Node] = {}
        self._slots: list[tuple[int, int, Node]] = []
        self._moved: dict[int, Node] = {}  # redirects since then; other nodes may not know them yet

    async def node(self, bucket: int) -> Node:
        if bucket in self._moved:
            return self._moved[bucket]
        slot = SLOTS[bucket]
        for first, last, node in await self._slot_ranges():
            if first <= slot <= last:
                return node
        self._slots = []
        raise LedgerUnavailable(f"{self._address.shown}: no node serves slot {slot} now")

    async def all_masters(self) -> list[Node]:
        ranges = await self._slot_ranges()
        return list(dict.fromkeys([*[node for _, _, node in ranges], *self._moved.values()]))

    async def rediscover(self) -> None:
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

    async def _slot_ranges(self) -> list[tuple[int, int, Node]]:
        if not self._slots:
            self._slots = await self._load_slots()
        return self._slots

    async def _load_slots(self) -> list[tuple[int, int, Node]]:
        """Read the slots. Known nodes are asked first, because the hosts in the URL may be gone."""
        failure = "no node replied"
        for host, port in dict.fromkeys((*self._nodes, *self._address.hosts)):
            node = self.at(host, port)
            try:
                async with asyncio.timeout(self._address.timeout_s / DISCOVERY_SHARE):
                    ranges = await node.ask("CLUSTER", "SLOTS")
            except (RedisError, OSError) as error:  # a timeout is an OSError
                failure = f"{host}:{port}: {str(error) or 'no reply in time'}"
                await node.drop_idle()
                continue
            if ranges:
                return [
                    (first, last, self.at(master[0].decode() or host, int(master[1])))
                    for first, last, master, *_ in ranges
                ]
            failure = f"{host}:{port} reports no slots"
        raise LedgerUnavailable(f"{self._address.shown}: {failure}")


def topology_of(address: RedisAddress) -> Topology:
    match address.kind:
        case "cluster":
            return Cluster(address)
        case "sentinel":
            return SentinelMaster(address)
    return OneServer(address)
