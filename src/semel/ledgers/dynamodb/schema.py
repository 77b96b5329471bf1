"""The table, its index, its time to live and its backups: the steps of `semel migrate`.

Each step checks the table, makes the missing change, and accepts that another process has just made it. Migrations may
therefore run repeatedly, concurrently, and while the table is in use.
"""

from __future__ import annotations

import asyncio
from typing import Any

from semel.ledgers.dynamodb.client import DynamoClient, NoTable
from semel.values.errors import ConfigError, LedgerUnavailable

INDEX = "dead_letters"
TTL = "ttl"
READY_S = 600.0  # an index of an existing table is filled before it is ready
ROUNDS_MAX = 100  # of steps, including those that another process makes meanwhile
POLL_S = 0.2  # between two checks of the table, at first; later up to POLL_MAX_S
POLL_MAX_S = 5.0

ATTRIBUTES = [
    {"AttributeName": "pk", "AttributeType": "B"},
    {"AttributeName": "sk", "AttributeType": "B"},
    {"AttributeName": "dead_letter", "AttributeType": "S"},
    {"AttributeName": "at_ms", "AttributeType": "N"},
]
KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
DEAD_LETTERS_INDEX = {
    "IndexName": INDEX,
    "KeySchema": [{"AttributeName": "dead_letter", "KeyType": "HASH"}, {"AttributeName": "at_ms", "KeyType": "RANGE"}],
    # without the events: a listing is filtered by these attributes and then reads the items it shows
    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["handler", "tenant", "reason"]},
}

SchemaStep = tuple[str, str, dict[str, Any]]  # its name, the operation and its request


class TableSchema:
    """Checks and migrates the table."""

    def __init__(self, client: DynamoClient) -> None:
        self._client = client
        self._table = client.table

    async def pending(self) -> list[str]:
        return [name for name, _, _ in await self._steps()]

    async def migrate(self) -> list[str]:
        """Run the missing steps. Returns those that this call made."""
        done: list[str] = []
        for _ in range(ROUNDS_MAX):
            steps = await self._steps()
            if not steps:
                return done
            name, operation, request = steps[0]
            if await self._change(operation, request):
                done.append(name)
            await self._until_ready()
        raise LedgerUnavailable(f"{self._client.address}: other processes keep changing it; run `semel migrate` again")

    async def describe(self) -> dict[str, Any] | None:
        """Describe the table. Returns None if it does not exist."""
        try:
            answer = await self._client.ask("describe_table", TableName=self._table)
        except NoTable:
            return None
        described: dict[str, Any] = answer["Table"]
        return described

    async def ttl_on(self) -> bool:
        answer = await self._client.ask("describe_time_to_live", TableName=self._table)
        found = answer["TimeToLiveDescription"]
        return found["TimeToLiveStatus"] in ("ENABLED", "ENABLING") and found.get("AttributeName") == TTL

    async def backups_on(self) -> bool:
        answer = await self._client.ask("describe_continuous_backups", TableName=self._table)
        found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        return bool(found.get("PointInTimeRecoveryStatus") == "ENABLED")

    async def _steps(self) -> list[SchemaStep]:
        """The missing steps, in order."""
        table: SchemaStep = (
            f"create the table {self._table}, on demand, with the index {INDEX}",
            "create_table",
            {
                "KeySchema": KEYS,
                "AttributeDefinitions": ATTRIBUTES,
                "BillingMode": "PAY_PER_REQUEST",
                "GlobalSecondaryIndexes": [DEAD_LETTERS_INDEX],
            },
        )
        ttl: SchemaStep = (
            f"turn on time to live by the attribute {TTL}",
            "update_time_to_live",
            {"TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL}},
        )
        backups: SchemaStep = (
            "turn on point-in-time recovery",
            "update_continuous_backups",
            {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}},
        )
        described = await self.describe()
        if described is None:
            return [table, ttl, backups]
        types = {
            attribute["AttributeName"]: attribute["AttributeType"]
            for attribute in described.get("AttributeDefinitions", [])
        }
        if described["KeySchema"] != KEYS or (types.get("pk"), types.get("sk")) != ("B", "B"):
            raise ConfigError(
                f"{self._client.address}: this table is not a ledger, because it has other keys; use a separate table"
            )
        steps: list[SchemaStep] = []
        if INDEX not in [index["IndexName"] for index in described.get("GlobalSecondaryIndexes", [])]:
            index = {"GlobalSecondaryIndexUpdates": [{"Create": DEAD_LETTERS_INDEX}]}
            request = {"AttributeDefinitions": ATTRIBUTES, **index}
            steps.append((f"add the index {INDEX}", "update_table", request))
        if not await self.ttl_on():
            steps.append(ttl)
        if not await self.backups_on():
            steps.append(backups)
        return steps

    async def _change(self, operation: str, request: dict[str, Any]) -> bool:
        """Make a change. Returns False if another process has made it or is changing the table."""
        try:
            await self._client.ask(operation, TableName=self._table, **request)
        except LedgerUnavailable as error:
            if any(word in str(error) for word in _CONCURRENT_CHANGES):
                await asyncio.sleep(POLL_S)
                return False
            raise
        return True

    async def _until_ready(self) -> None:
        """Wait until the table and its index accept writes."""
        loop = asyncio.get_running_loop()
        ends, pause_s = loop.time() + READY_S, POLL_S
        while loop.time() < ends:
            described = await self.describe()
            if described is not None and is_ready(described):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_MAX_S)
        raise LedgerUnavailable(f"{self._client.address}: not ready after {READY_S:g} s; run `semel migrate` again")


# ResourceInUse: the table exists or is being changed. LimitExceeded: DynamoDB allows one change of a table at a time.
# ContinuousBackupsUnavailable: the table was just created.
_CONCURRENT_CHANGES = (
    "ResourceInUseException",
    "TimeToLive is already enabled",
    "Time to live has been modified multiple times",
    "already exists",
    "LimitExceededException",
    "ContinuousBackupsUnavailableException",
)


def is_ready(described: dict[str, Any]) -> bool:
    indexes = described.get("GlobalSecondaryIndexes", [])
    return described["TableStatus"] == "ACTIVE" and all(
        index.get("IndexStatus", "ACTIVE") == "ACTIVE" for index in indexes
    )
