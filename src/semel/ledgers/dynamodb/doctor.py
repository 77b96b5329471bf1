"""Facts about the table, for `semel doctor`. A value that begins with "error: " or "warning: " is one."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from semel.ledgers.dynamodb.client import Client
from semel.ledgers.dynamodb.schema import INDEX, TTL, Schema, is_ready
from semel.values.errors import ConfigError, LedgerUnavailable

DATE_STEP_MS = 1_000  # the service tells its time in whole seconds

Fact = tuple[str, str]


async def facts(client: Client, schema: Schema, wall_ms: Callable[[], int]) -> list[Fact]:
    address = client.address
    said = [("table", address.table), ("region", address.region or "by the environment")]
    if address.endpoint is not None:
        said.append(("endpoint", f"warning: {address.endpoint}: not the service itself"))
    try:
        before = wall_ms()
        answer = await client.ask("describe_table", TableName=address.table)
        said.append(("clock", _clock(answer, before, wall_ms(), address.margin_ms)))
        described: dict[str, Any] = answer["Table"]
        said += _table(described)
        ttl = f"by {TTL}" if await schema.ttl_on() else "warning: off, nothing is ever swept: run `semel migrate`"
        said.append(("sweeping", ttl))
        backups = "on" if await schema.backups_on() else "warning: off: run `semel migrate`"
        said.append(("point-in-time recovery", backups))
    except (ConfigError, LedgerUnavailable) as error:
        said.append(("readable", f"error: {error}"))
    return said


def _table(described: dict[str, Any]) -> list[Fact]:
    ready = is_ready(described)
    indexes = [index["IndexName"] for index in described.get("GlobalSecondaryIndexes", [])]
    mode = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    said = [
        (
            "status",
            described["TableStatus"] if ready else f"error: {described['TableStatus']}: wait until it is active",
        ),
        ("index", INDEX if INDEX in indexes else f"error: {INDEX} is missing: run `semel migrate`"),
        ("billing", "on demand" if mode == "PAY_PER_REQUEST" else "warning: provisioned: a burst is throttled"),
        ("size", f"{described.get('ItemCount', 0):,} items, {described.get('TableSizeBytes', 0):,} bytes"),
    ]
    replicas = [replica["RegionName"] for replica in described.get("Replicas", [])]
    if replicas and described.get("MultiRegionConsistency") != "STRONG":
        regions = ", ".join(replicas)
        said.append(
            (
                "replicas",
                f"warning: {regions}: the last writer wins; let all workers use one region, or events act twice",
            )
        )
    return said


def _clock(answer: dict[str, Any], before_ms: int, after_ms: int, margin_ms: int) -> str:
    """How far this machine's clock is from the service's, as far as whole seconds can tell."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not date:
        return "unknown: the service does not tell its time"
    service_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
    ahead_ms = before_ms - (service_ms + DATE_STEP_MS)  # at least so much
    behind_ms = service_ms - after_ms
    off_ms = max(ahead_ms, behind_ms, 0)
    if off_ms <= margin_ms:
        return f"within the margin of {margin_ms} ms"
    way = "ahead of" if ahead_ms > behind_ms else "behind"
    return (
        f"error: {off_ms} ms {way} the service's, and the margin is {margin_ms} ms: leases are taken over too early or "
        "too late; set the clock (NTP), or raise margin_ms in the ledger's URL"
    )
