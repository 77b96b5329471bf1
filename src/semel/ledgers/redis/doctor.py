"""Facts about the store, for `semel doctor`. A value that begins with "error: " or "warning: " is one."""

from __future__ import annotations

import asyncio
import time

from redis.exceptions import RedisError, ResponseError

from semel.ledgers.redis.catalog import INDEXED, CatalogReader
from semel.ledgers.redis.dispatch import describe_error
from semel.ledgers.redis.topology import Node, Topology, check_server, eviction_policy, parse_info
from semel.ledgers.redis.url import RedisAddress
from semel.values.errors import ConfigError, LedgerUnavailable

Fact = tuple[str, str]
SKEW_MAX_S = 2.0  # tokens begin at the server's time: two servers should agree on it


async def diagnose(address: RedisAddress, topology: Topology, reader: CatalogReader) -> list[Fact]:
    facts: list[Fact] = [("store", address.shown)]
    try:
        async with asyncio.timeout(max(4 * address.timeout_s, 10)):
            masters = await topology.all_masters()
            for node in masters:
                name = "" if len(masters) == 1 else f" {node.host}:{node.port}"
                facts += [(what + name, fact) for what, fact in await _of_node(address, node)]
            if address.kind == "cluster":
                facts.append(("cluster", await _cluster_state(masters[0], len(masters))))
            facts += await _dead_letters(reader)
    except (RedisError, OSError, LedgerUnavailable, ConfigError, TimeoutError) as error:
        facts.append(("reachable", f"error: {describe_error(address, error)}"))
    return facts


async def _of_node(address: RedisAddress, node: Node) -> list[Fact]:
    info = parse_info(await node.ask("INFO"))
    facts = [("version", _version(info)), ("memory policy", _memory(info))]
    try:
        check_server(info, address, node.shown)
    except ConfigError as error:
        facts.append(("usable", f"error: {error}"))
    facts += [("persistence", await _persistence(node, info)), ("replicas", await _replicas(address, node, info))]
    return [*facts, ("clock", await _clock(node))]


def _version(info: dict[str, str]) -> str:
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version', 'unknown')}"


def _memory(info: dict[str, str]) -> str:
    used, most = info.get("used_memory_human", "?"), info.get("maxmemory_human", "?")
    if evicts := eviction_policy(info):
        return f"error: {evicts}: known keys are forgotten when memory is full, and done twice; set noeviction"
    if info.get("maxmemory", "0") == "0":
        return f"no limit, {used} used: nothing is forgotten, and the machine's memory is the limit"
    return f"noeviction, {used} of {most} used: when it is full nothing is granted, and nothing forgotten"


async def _persistence(node: Node, info: dict[str, str]) -> str:
    """AOF and snapshots. Managed services may refuse CONFIG: then only what INFO says."""
    settings = await _config(node, "appendfsync", "save")
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok":
            return "error: the append-only file cannot be written: free its disk"
        match settings.get("appendfsync"):
            case "always":
                return "append-only file, fsync always: loses nothing when killed or on power loss"
            case "no":
                return "warning: append-only file, fsync left to the system: power loss may forget the last 30 seconds"
            case None:
                return "append-only file; appendfsync is not info: everysec may forget the last second on power loss"
        return "append-only file, fsync every second: power loss may forget the last second, and do it twice"
    if settings.get("save", "") not in ("", None):
        return f"warning: snapshots only (save {settings['save']}): a restart forgets what came after the last one"
    if not settings:
        return "warning: no append-only file; a restart forgets what came after the last snapshot, if there is one"
    return "warning: none: a restart forgets every key, and every duplicate is done again; set appendonly yes"


async def _replicas(address: RedisAddress, node: Node, info: dict[str, str]) -> str:
    connected = int(info.get("connected_slaves", "0"))
    least = (await _config(node, "min-replicas-to-write")).get("min-replicas-to-write", "?")
    replicas = f"{connected} connected, min-replicas-to-write {least}"
    if info.get("role") == "slave":
        return "error: this server is a read-only replica: name its master"
    if address.strict > connected:
        return f"error: {replicas}, and strict={address.strict} asks for more: nothing will be granted"
    if address.strict and address.strict < connected:
        return f"warning: {replicas}; strict={address.strict} leaves some out: a failover to one of those may forget"
    if address.strict:
        return f"{replicas}; strict={address.strict}: an answer counts when they have it, and survives a failover"
    if connected:
        loses = "a failover forgets what they had not yet, and may grant a key twice"
        return f"warning: {replicas}; {loses}: use strict={connected}"
    return f"{replicas}: no failover"


async def _cluster_state(node: Node, masters: int) -> str:
    info = parse_info(await node.ask("CLUSTER", "INFO"))
    state = info.get("cluster_state", "unknown")
    slots = info.get("cluster_slots_ok", "?")
    if state != "ok":
        return f"error: {state}, {slots} of 16384 slots served"
    return f"ok, {masters} masters"


async def _dead_letters(reader: CatalogReader) -> list[Fact]:
    counted = await reader.count_dead_letters()
    waiting = sum(counted.values())
    info = ", ".join(f"{counted[state]} {state}" for state in INDEXED)
    if not waiting:
        return [("dead_letters", "none waiting; Redis keeps them as long as its data: name a dead-letter target")]
    return [
        (
            "dead_letters",
            f"warning: {info} wait for a person, in memory that only persistence keeps: decide about them, "
            "and name a dead-letter target",
        )
    ]


async def _clock(node: Node) -> str:
    before = time.time()
    seconds, micros = await node.ask("TIME")
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    if abs(skew) > SKEW_MAX_S:
        return f"warning: {skew:+.1f} s from this machine's: after a failover between such clocks tokens may go back"
    return f"{skew:+.3f} s from this machine's"


async def _config(node: Node, *names: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            pair = await node.ask("CONFIG", "GET", name)
        except ResponseError:
            return {}
        if len(pair) == 2:
            found[pair[0].decode()] = pair[1].decode()
    return found
