"""The guarantees of Redis and Valkey by configuration. Listing them needs no driver, so this module imports none."""

from __future__ import annotations

from semel.ledgers.redis.url import RedisAddress
from semel.ports import DataLoss, Traits

# Guarantees of each Redis configuration. `semel doctor` and the docs show them, and tests/ledgers/redis prove them.
#
# A key that the store has lost is claimed as new, so its event runs twice. A failover that loses writes can also grant
# a key twice at the same time. Tokens do not decrease after a failover, because they start at the server's time.

ALL = "all data"
SNAPSHOT = "writes after the last snapshot"
SECOND = "about the last second (appendfsync everysec)"
SLOW_DISK = "writes that waited for a running sync, at most two seconds (appendfsync everysec)"
UNREPLICATED = "writes that its replicas did not have yet"
CAVEAT = "its persistence and its replicas decide which data it may lose (docs/guarantees.md)"


def profiles() -> list[Traits]:
    """The traits of every configuration that Semel distinguishes."""
    nothing = DataLoss(store_killed=ALL, power_loss=ALL)
    every_second = DataLoss(store_killed=SLOW_DISK, power_loss=SECOND)
    always = DataLoss()
    return [
        _traits("Redis, no persistence", nothing, caveat="loses all data at a restart"),
        _traits(
            "Redis, snapshots only",
            DataLoss(store_killed=SNAPSHOT, power_loss=SNAPSHOT),
            caveat="a restart loses the writes after its last snapshot",
        ),
        _traits("Redis, appendfsync everysec", every_second, caveat="may lose the last second on power loss"),
        _traits("Redis, appendfsync always", always),
        _traits(
            "Redis with Sentinel",
            _with(every_second, UNREPLICATED),
            caveat=FAILOVER,
        ),
        _traits("Redis with Sentinel, strict", _with(every_second, ""), caveat=STRICTLY),
        _traits("Redis Cluster", _with(every_second, UNREPLICATED), caveat=FAILOVER),
        _traits("Redis Cluster, strict", _with(every_second, ""), caveat=STRICTLY),
        _traits("Redis Cluster, strict and fsync", _with(always, ""), caveat=STRICTLY),
    ]


FAILOVER = "a failover may lose writes, and grant twice"
STRICTLY = "safe across a failover if strict is the number of replicas of each master"


def traits_of(address: RedisAddress) -> Traits:
    """The traits that follow from the URL alone, before a server is asked."""
    name = {"one": "Redis", "sentinel": "Redis with Sentinel", "cluster": "Redis Cluster"}[address.kind]
    failover = None if address.kind == "one" else UNREPLICATED
    unknown = "writes that are not on its disk: persistence is a setting of the server"
    if address.strict:
        name, failover = f"{name}, strict", "" if failover is not None else None
    if address.fsync:
        name, unknown = f"{name} and fsync" if address.strict else f"{name}, fsync", ""
    return _traits(name, DataLoss(store_killed=unknown, power_loss=unknown, failover=failover), caveat=CAVEAT)


def _traits(name: str, loses: DataLoss, *, durable: bool = True, caveat: str = "") -> Traits:
    return Traits(name=name, durable=durable, transactional=False, caveat=caveat, loses=loses)


def _with(loses: DataLoss, failover: str) -> DataLoss:
    return DataLoss(loses.store_killed, loses.power_loss, failover)
