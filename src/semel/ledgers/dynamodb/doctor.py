"""Facts about the table, for `semel doctor`."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.schema import INDEX, TTL, TableSchema, is_ready
from semel.ports import Fact
from semel.values.errors import ConfigError, LedgerUnavailable

DATE_STEP_MS = 1_000  # the service reports its time in whole seconds


async def facts(client: DynamoClient, schema: TableSchema, wall_ms: Callable[[], int]) -> list[Fact]:
    address = client.address
    facts = [Fact("table", address.table), Fact("region", address.region or "from the environment")]
    if address.endpoint is not None:
        facts.append(Fact("endpoint", f"{address.endpoint}: not the service itself", "warning"))
    try:
        before = wall_ms()
        response = await client.ask("describe_table", TableName=address.table)
        facts.append(_clock(response, before, wall_ms(), address.margin_ms))
        described: dict[str, Any] = response["Table"]
        facts += _table(described)
        if await schema.ttl_on():
            facts.append(Fact("time to live", f"by {TTL}"))
        else:
            facts.append(Fact("time to live", "off, expired items are never deleted: run `semel migrate`", "warning"))
        if await schema.backups_on():
            facts.append(Fact("point-in-time recovery", "on"))
        else:
            facts.append(Fact("point-in-time recovery", "off: run `semel migrate`", "warning"))
    except (ConfigError, LedgerUnavailable) as error:
        facts.append(Fact("readable", str(error), "error"))
    return facts


def _table(described: dict[str, Any]) -> list[Fact]:
    status = described["TableStatus"]
    indexes = [index["IndexName"] for index in described.get("GlobalSecondaryIndexes", [])]
    mode = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    facts = [
        Fact("status", status)
        if is_ready(described)
        else Fact("status", f"{status}: wait until it is active", "error"),
        Fact("index", INDEX)
        if INDEX in indexes
        else Fact("index", f"{INDEX} is missing: run `semel migrate`", "error"),
        Fact("billing", "on demand")
        if mode == "PAY_PER_REQUEST"
        else Fact("billing", "provisioned: a burst is throttled", "warning"),
        Fact("size", f"{described.get('ItemCount', 0):,} items, {described.get('TableSizeBytes', 0):,} bytes"),
    ]
    replicas = [replica["RegionName"] for replica in described.get("Replicas", [])]
    if replicas and described.get("MultiRegionConsistency") != "STRONG":
        regions = ", ".join(replicas)
        facts.append(
            Fact(
                "replicas",
                f"{regions}: the last writer wins; let all workers use one region, or events act twice",
                "warning",
            )
        )
    return facts


def _clock(response: dict[str, Any], before_ms: int, after_ms: int, margin_ms: int) -> Fact:
    """Compare this machine's clock with the service's, which reports whole seconds."""
    date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
    if not date:
        return Fact("clock", "unknown: the service does not report its time")
    service_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
    ahead_ms = before_ms - (service_ms + DATE_STEP_MS)  # at least so much
    behind_ms = service_ms - after_ms
    off_ms = max(ahead_ms, behind_ms, 0)
    if off_ms <= margin_ms:
        return Fact("clock", f"within the margin of {margin_ms} ms")
    way = "ahead of" if ahead_ms > behind_ms else "behind"
    return Fact(
        "clock",
        f"{off_ms} ms {way} the service's, and the margin is {margin_ms} ms: leases are taken over too early or "
        "too late; set the clock (NTP), or raise margin_ms in the ledger's URL",
        "error",
    )
