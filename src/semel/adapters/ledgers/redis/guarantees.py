"""What Redis promises, by how it is run: declared here, said by doctor and docs, and shown by tests/ledgers/redis.

A key that the store has forgotten is claimed as new, so what is lost is done twice. A failover that loses writes can
also grant a key twice at the same time. Tokens do not go back with it: they begin at the server's time.
"""

from __future__ import annotations

from semel.adapters.ledgers.redis.address import Address
from semel.ports import Loses, Traits

ALL = "everything it knew"
SECOND = "about the last second (appendfsync everysec)"
SLOW_DISK = "what waited for a sync that was under way, at most two seconds (appendfsync everysec)"
IN_FLIGHT = "what its replicas did not have yet"
CAVEAT = "its persistence and its replicas decide what it forgets (docs/guarantees.md)"


def profiles() -> list[Traits]:
    """Every way of running it that is told apart."""
    nothing = Loses(store_killed=ALL, power_loss=ALL)
    every_second = Loses(store_killed=SLOW_DISK, power_loss=SECOND)
    always = Loses()
    return [
        _traits("Redis, no persistence", nothing, caveat="forgets everything when it is restarted"),
        _traits(
            "Redis, snapshots only",
            _both("what came after the last snapshot"),
            caveat="forgets back to its last snapshot",
        ),
        _traits("Redis, appendfsync everysec", every_second, caveat="may forget the last second on power loss"),
        _traits("Redis, appendfsync always", always),
        _traits("Redis with Sentinel", _with(every_second, IN_FLIGHT), caveat="a failover may forget, and grant twice"),
        _traits("Redis with Sentinel, strict", _with(every_second, ""), caveat=STRICTLY),
        _traits("Redis Cluster", _with(every_second, IN_FLIGHT), caveat="a failover may forget, and grant twice"),
        _traits("Redis Cluster, strict", _with(every_second, ""), caveat=STRICTLY),
        _traits("Redis Cluster, strict and fsync", _with(always, ""), caveat=STRICTLY),
    ]


STRICTLY = "safe over a failover when strict names all replicas of a master"


def traits_of(address: Address) -> Traits:
    """What can be said before the server is asked: the URL's own part."""
    name = {"one": "Redis", "sentinel": "Redis with Sentinel", "cluster": "Redis Cluster"}[address.kind]
    failover = None if address.kind == "one" else IN_FLIGHT
    unknown = "what it has not written to its disk: persistence is the server's own setting"
    if address.strict:
        name, failover = f"{name}, strict", "" if failover is not None else None
    if address.fsync:
        name, unknown = f"{name} and fsync" if address.strict else f"{name}, fsync", ""
    return _traits(name, Loses(store_killed=unknown, power_loss=unknown, failover=failover), caveat=CAVEAT)


def _traits(name: str, loses: Loses, *, durable: bool = True, caveat: str = "") -> Traits:
    return Traits(name=name, durable=durable, transactional=False, caveat=caveat, loses=loses)


def _both(what: str) -> Loses:
    return Loses(store_killed=what, power_loss=what)


def _with(loses: Loses, failover: str) -> Loses:
    return Loses(loses.store_killed, loses.power_loss, failover)
