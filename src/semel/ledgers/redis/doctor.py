"""Facts about the store, for `semel doctor`."""

from __future__ import annotations

import asyncio
import time

from msgspec import structs
from redis.exceptions import RedisError, ResponseError

from semel.ledgers.redis.catalog import INDEXED, RedisCatalog
from semel.ledgers.redis.dispatch import describe_error
from semel.ledgers.redis.topology import Node, Topology, check_server, eviction_policy, parse_info
from semel.ledgers.redis.url import RedisAddress
from semel.ports import Fact
from semel.values.errors import ConfigError, LedgerUnavailable

SKEW_MAX_S = 2.0  # tokens start at the server's time, so the clocks of two servers should agree


async def diagnose(address: RedisAddress, topology: Topology, reader: RedisCatalog) -> list[Fact]:
    facts: list[Fact] = [Fact("store", address.shown)]
    try:
        async with asyncio.timeout(max(4 * address.timeout_s, 10)):
            masters = await topology.all_masters()
            for node in masters:
                name = "" if len(masters) == 1 else f" {node.host}:{node.port}"
                facts += [structs.replace(fact, name=fact.name + name) for fact in await _of_node(address, node)]
            if address.kind == "cluster":
                facts.append(await _cluster_state(masters[0], len(masters)))
            facts += await _dead_letters(reader)
    except (RedisError, OSError, LedgerUnavailable, ConfigError, TimeoutError) as error:
        facts.append(Fact("reachable", describe_error(address, error), "error"))
    return facts


async def _of_node(address: RedisAddress, node: Node) -> list[Fact]:
    info = parse_info(await node.ask("INFO"))
    version = f"Redis {info.get('redis_version', 'unknown')}"
    if "valkey_version" in info:
        version = f"Valkey {info['valkey_version']}"
    facts = [Fact("version", version), _memory(info)]
    try:
        check_server(info, address, node.shown)
    except ConfigError as error:
        facts.append(Fact("usable", str(error), "error"))
    return [*facts, await _persistence(node, info), await _replicas(address, node, info), await _clock(node)]


def _memory(info: dict[str, str]) -> Fact:
    name = "memory policy"
    used, most = info.get("used_memory_human", "?"), info.get("maxmemory_human", "?")
    if evicts := eviction_policy(info):
        return Fact(
            name, f"{evicts}: keys are evicted when memory is full, and their events run twice; set noeviction", "error"
        )
    if info.get("maxmemory", "0") == "0":
        return Fact(name, f"no limit, {used} used: nothing is evicted, and the memory of the machine is the limit")
    return Fact(name, f"noeviction, {used} of {most} used: when it is full, nothing is evicted and nothing is granted")


async def _persistence(node: Node, info: dict[str, str]) -> Fact:
    """Append-only file and snapshots. Managed services may refuse CONFIG; INFO shows less."""
    name = "persistence"
    settings = await _config(node, "appendfsync", "save")
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            return Fact(name, "the append-only file cannot be written: free its disk", "error")
        match settings.get("appendfsync"):
            case "always":
                return Fact(name, "append-only file, fsync always: loses nothing when killed or on power loss")
            case "no":
                return Fact(
                    name,
                    "append-only file, fsync left to the system: power loss may lose the last 30 seconds",
                    "warning",
                )
            case None:
                return Fact(
                    name,
                    "append-only file; appendfsync is not shown: everysec may lose the last second on power loss",
                )
        return Fact(
            name, "append-only file, fsync every second: power loss may lose the last second, whose events run twice"
        )
    if settings.get("save", "") not in ("", None):
        snapshots = f"snapshots only (save {settings['save']}): a restart loses the writes after the last one"
        return Fact(name, snapshots, "warning")
    if not settings:
        unknown = "no append-only file; a restart loses the writes after the last snapshot, if there is one"
        return Fact(name, unknown, "warning")
    none = "none: a restart loses every key, and every duplicate runs again; set appendonly yes"
    return Fact(name, none, "warning")


async def _replicas(address: RedisAddress, node: Node, info: dict[str, str]) -> Fact:
    name = "replicas"
    connected = int(info.get("connected_slaves", "0"))
    least = (await _config(node, "min-replicas-to-write")).get("min-replicas-to-write", "?")
    replicas = f"{connected} connected, min-replicas-to-write {least}"
    if info.get("role") == "slave":
        return Fact(name, "this server is a read-only replica: use its master", "error")
    if address.strict > connected:
        return Fact(name, f"{replicas}, and strict={address.strict} requires more: nothing will be granted", "error")
    if address.strict and address.strict < connected:
        return Fact(
            name,
            f"{replicas}; strict={address.strict} is less: a failover to another replica may lose writes",
            "warning",
        )
    if address.strict:
        return Fact(
            name,
            f"{replicas}; strict={address.strict}: a write is acknowledged when they have it",
        )
    if connected:
        loses = "a failover loses writes that they did not have yet, and may grant a key twice"
        return Fact(name, f"{replicas}; {loses}: use strict={connected}", "warning")
    return Fact(name, f"{replicas}: no failover")


async def _cluster_state(node: Node, masters: int) -> Fact:
    info = parse_info(await node.ask("CLUSTER", "INFO"))
    state = info.get("cluster_state", "unknown")
    slots = info.get("cluster_slots_ok", "?")
    if state != "ok":
        return Fact("cluster", f"{state}, {slots} of 16384 slots served", "error")
    return Fact("cluster", f"ok, {masters} masters")


async def _dead_letters(reader: RedisCatalog) -> list[Fact]:
    counted = await reader.count_dead_letters()
    waiting = sum(counted.values())
    info = ", ".join(f"{counted[state]} {state}" for state in INDEXED)
    if not waiting:
        return [Fact("dead_letters", "none; Redis may lose dead letters with its data: set dead_letters")]
    return [
        Fact(
            "dead_letters",
            f"{info} need attention, and Redis may lose them with its data: decide about them, and set dead_letters",
            "warning",
        )
    ]


async def _clock(node: Node) -> Fact:
    before = time.time()
    seconds, micros = await node.ask("TIME")
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    if abs(skew) > SKEW_MAX_S:
        apart = f"{skew:+.1f} s from this machine's: after a failover between such clocks tokens may decrease"
        return Fact("clock", apart, "warning")
    return Fact("clock", f"{skew:+.3f} s from this machine's")


async def _config(node: Node, *names: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name in names:
        try:
            pair = await node.ask("CONFIG", "GET", name)
        except ResponseError:
            return {}
        if len(pair) == 2:
            settings[pair[0].decode()] = pair[1].decode()
    return settings
