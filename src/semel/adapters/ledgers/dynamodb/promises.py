"""What DynamoDB may forget. Its machines are AWS's: a write is in two zones of three before it is answered."""

from __future__ import annotations

from msgspec.structs import replace

from semel.ports import Loses, Traits

TRAITS = Traits(name="DynamoDB", durable=True, transactional=True, loses=Loses(failover=""))


def profiles() -> list[Traits]:
    """Everything that a ledger in DynamoDB can be. Whether a table is a global one is AWS's setting, not the URL's:
    `semel doctor` tells."""
    return [
        TRAITS,
        replace(
            TRAITS,
            name="DynamoDB, global table",
            caveat="the last writer wins between regions: let all workers use one of them",
            loses=Loses(
                failover="the newest answers of the region that was left, about a second of them, and where two "
                "regions wrote the same key all but the last (not with multi-Region strong consistency)"
            ),
        ),
    ]
