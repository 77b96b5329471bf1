"""One server: a few connections, and an exchange of many commands for many answers in one round trip.

The client library brings connections (TLS, passwords, parsing). Its pipeline packs each argument by itself, so commands
are packed by `resp` and written as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError, ResponseError

from semel.adapters.ledgers.redis.address import Address
from semel.adapters.ledgers.redis.resp import command
from semel.adapters.ledgers.redis.scripts import SCRIPTS
from semel.values.errors import ConfigError

OLDEST = (7, 0)  # older ones get no fixes any more, and nobody has tried them
LOAD = b"".join([command("SCRIPT", "LOAD", script.source) for script in SCRIPTS.values()])


class Node:
    """Connections to one host and port (or socket), made when needed."""

    def __init__(self, address: Address, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._address = address
        self._idle: list[Any] = []
        self._room = asyncio.Semaphore(address.pool)

    @property
    def shown(self) -> str:
        return f"Redis at {self._address.path or f'{self.host}:{self.port}'}"

    async def exchange(self, packed: Iterable[bytes], count: int) -> list[Any]:
        """Write commands, read as many answers. An answer may be a ResponseError. Raises when the connection fails:
        then nobody knows which of them were carried out."""
        async with self._room:
            connection = self._idle.pop() if self._idle else await self._connect()
            clean = False
            try:
                replies = await _exchange(connection, packed, count)
                clean = True
                return replies
            finally:
                if clean:
                    self._idle.append(connection)
                else:  # half an answer may be on its way: nobody else may read it
                    await connection.disconnect(nowait=True)

    async def answers(self, packed: Iterable[bytes], count: int) -> list[Any]:
        """As `exchange`, within the deadline: for whoever keeps none. A server may fall silent without hanging up."""
        limit_s = self._address.timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self.exchange(packed, count)
        except TimeoutError:
            await self.drop_idle()
            raise TimeoutError(f"no answer within {limit_s:g} s") from None

    async def ask(self, *parts: bytes | str | int) -> Any:
        """One command; raises what it is answered with, where that is an error."""
        (reply,) = await self.answers((command(*parts),), 1)
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    async def load_scripts(self) -> None:
        await self.exchange((LOAD,), len(SCRIPTS))

    async def drop_idle(self) -> None:
        """The server has gone, or its connections lead to one that has: the next is new."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()
        self._room = asyncio.Semaphore(self._address.pool)  # whoever waited at the old one tied it to a loop

    async def _connect(self) -> Any:
        connection = _connection(self._address, self.host, self.port)
        try:
            await connection.connect()
            (told,) = await _exchange(connection, (command("INFO"),), 1)
            if isinstance(told, ResponseError):
                raise told
            check(facts_of(told), self._address, self.shown)  # behind a name there may be another server each time
            await _exchange(connection, (LOAD,), len(SCRIPTS))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


async def _exchange(connection: Any, packed: Iterable[bytes], count: int) -> list[Any]:
    for part in packed:
        try:
            await connection.send_packed_command(part, check_health=False)
        except AttributeError as error:  # of asyncio in some Pythons (3.13.0), where the server has hung up before
            raise NotConnected("the server has closed the connection") from error
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(await connection.read_response(disable_decoding=True))
        except ResponseError as error:
            replies.append(error)
    return replies


def _connection(address: Address, host: str, port: int) -> Any:
    shared: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": None,  # one deadline for all, kept by `Dispatch`
        "socket_connect_timeout": address.timeout_s,
        "protocol": 2,
    }
    if address.path:
        return UnixDomainSocketConnection(path=address.path, **shared)
    if address.tls is not None:
        return SSLConnection(host=host, port=port, **shared, **address.tls)
    return Connection(host=host, port=port, **shared)


def facts_of(told: bytes) -> dict[str, str]:
    """INFO as names and values."""
    lines = [line.partition(":") for line in told.decode(errors="replace").splitlines() if ":" in line]
    return {name: value for name, _, value in lines}


def check(facts: dict[str, str], address: Address, shown: str) -> None:
    """Fail closed: a server that may forget keys, or that cannot run the scripts, is not used at all."""
    version = facts.get("redis_version", "0")
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        raise ConfigError(f"{shown} is version {version}: Semel needs Redis 7.0 or Valkey")
    in_cluster = facts.get("cluster_enabled", "0") == "1"
    if in_cluster and address.kind != "cluster":
        raise ConfigError(f"{shown} is a node of a Cluster: use redis+cluster:// in the ledger's URL")
    if not in_cluster and address.kind == "cluster":
        raise ConfigError(f"{shown} is no node of a Cluster: use redis:// in the ledger's URL")
    evicts = eviction(facts)
    if evicts:
        raise ConfigError(
            f"{shown} forgets keys when its memory is full (maxmemory-policy {evicts}), and what is forgotten is done "
            "twice: set maxmemory-policy noeviction, or use a server that has it"
        )


def eviction(facts: dict[str, str]) -> str:
    """The policy by which the server may forget keys; empty when it does not."""
    policy = facts.get("maxmemory_policy", "noeviction")
    return "" if facts.get("maxmemory", "0") == "0" or policy == "noeviction" else policy


__all__ = ["Node", "RedisError", "ResponseError", "check", "eviction", "facts_of"]
