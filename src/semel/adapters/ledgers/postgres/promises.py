"""What a PostgreSQL ledger promises, by how the server is set up."""

from __future__ import annotations

from semel.ports import Loses, Traits

SYNCHRONOUS = Traits(
    name="PostgreSQL, synchronous replica",
    durable=True,
    transactional=True,
    async_handle=True,
    loses=Loses(failover=""),
)
ALONE = Traits(
    name="PostgreSQL",
    durable=True,
    transactional=True,
    async_handle=True,
    loses=Loses(
        failover="the newest commits, when the replica that takes over is an asynchronous one",
        tokens_go_back=True,
    ),
)
FORGETFUL = Traits(
    name="PostgreSQL, synchronous_commit=off",
    durable=True,
    transactional=True,
    async_handle=True,
    caveat="synchronous_commit=off may forget the answers of the last moments when the server crashes",
    loses=Loses(
        store_killed="the commits of the last moments (three times wal_writer_delay)",
        power_loss="the commits of the last moments (three times wal_writer_delay)",
        failover="the newest commits, when the replica that takes over is an asynchronous one",
        tokens_go_back=True,
    ),
)


def profiles() -> list[Traits]:
    """Every way in which a server can be set up that makes a difference."""
    return [ALONE, SYNCHRONOUS, FORGETFUL]
