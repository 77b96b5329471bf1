"""The table, its index, its sweeper and its backups: what `semel migrate` makes, and what is still to be made.

Each step looks at what is there, does what is missing, and takes "somebody else has just done it" for an answer. So it
may run twice, twice at once, and while others use the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from semel.ledgers.dynamodb.client import DynamoClient, NoTable
from semel.values.errors import ConfigError, LedgerUnavailable

INDEX = "letters"
TTL = "ttl"
READY_S = 600.0  # an index of an existing table is filled before it is ready
TURNS = 100  # steps, and looks at what somebody else does at the same time
LOOK_S = 0.2  # between looks at the table, at first; later up to LOOK_MAX_S
LOOK_MAX_S = 5.0

ATTRIBUTES = [
    {"AttributeName": "pk", "AttributeType": "B"},
    {"AttributeName": "sk", "AttributeType": "B"},
    {"AttributeName": "letter", "AttributeType": "S"},
    {"AttributeName": "at", "AttributeType": "N"},
]
KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}, {"AttributeName": "sk", "KeyType": "RANGE"}]
LETTERS = {
    "IndexName": INDEX,
    "KeySchema": [{"AttributeName": "letter", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}],
    # without the events: a list is filtered by the rest, and reads the events of what it shows
    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["handler", "tenant", "reason"]},
}

Step = tuple[str, Callable[[], Awaitable[bool]]]


class Schema:
    """Looks at the table and makes it ready."""

    def __init__(self, client: DynamoClient) -> None:
        self._client = client
        self._table = client.table

    async def pending(self) -> list[str]:
        return [name for name, _ in await self._steps()]

    async def migrate(self) -> list[str]:
        """Returns what this call did; what another one did at the same time is not in it."""
        done: list[str] = []
        for _ in range(TURNS):
            steps = await self._steps()
            if not steps:
                return done
            name, do = steps[0]
            if await do():
                done.append(name)
            await self._until_ready()
        raise LedgerUnavailable(f"{self._client.address}: others change it all the time; run `semel migrate` again")

    async def describe(self) -> dict[str, Any] | None:
        """None: there is no such table."""
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

    async def _steps(self) -> list[Step]:
        """What is missing, in order."""
        table: Step = (f"create the table {self._table}, on demand, with the index {INDEX}", self._create_table)
        ttl: Step = (f"let DynamoDB sweep by the attribute {TTL}", self._turn_ttl_on)
        backups: Step = ("turn point-in-time recovery on", self._turn_backups_on)
        described = await self.describe()
        if described is None:
            return [table, ttl, backups]
        types = {one["AttributeName"]: one["AttributeType"] for one in described.get("AttributeDefinitions", [])}
        if described["KeySchema"] != KEYS or (types.get("pk"), types.get("sk")) != ("B", "B"):
            raise ConfigError(
                f"{self._client.address}: this table is not a ledger, its keys are others; name a table of its own"
            )
        steps: list[Step] = []
        if INDEX not in [index["IndexName"] for index in described.get("GlobalSecondaryIndexes", [])]:
            steps.append((f"add the index {INDEX}", self._add_index))
        if not await self.ttl_on():
            steps.append(ttl)
        if not await self.backups_on():
            steps.append(backups)
        return steps

    async def _create_table(self) -> bool:
        return await self._do(
            "create_table",
            KeySchema=KEYS,
            AttributeDefinitions=ATTRIBUTES,
            BillingMode="PAY_PER_REQUEST",
            GlobalSecondaryIndexes=[LETTERS],
        )

    async def _add_index(self) -> bool:
        return await self._do(
            "update_table",
            AttributeDefinitions=ATTRIBUTES,
            GlobalSecondaryIndexUpdates=[{"Create": LETTERS}],
        )

    async def _turn_ttl_on(self) -> bool:
        return await self._do("update_time_to_live", TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL})

    async def _turn_backups_on(self) -> bool:
        return await self._do(
            "update_continuous_backups", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )

    async def _do(self, operation: str, **request: Any) -> bool:
        """False: it was in somebody's way, or somebody was quicker. The next look at the table tells."""
        try:
            await self._client.ask(operation, TableName=self._table, **request)
        except LedgerUnavailable as error:
            if any(word in str(error) for word in _SOMEBODY_ELSE):
                await asyncio.sleep(LOOK_S)
                return False
            raise
        return True

    async def _until_ready(self) -> None:
        """The table and its index take writes."""
        loop = asyncio.get_running_loop()
        ends, pause_s = loop.time() + READY_S, LOOK_S
        while loop.time() < ends:
            described = await self.describe()
            if described is not None and is_ready(described):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MAX_S)
        raise LedgerUnavailable(f"{self._client.address}: not ready after {READY_S:g} s; run `semel migrate` again")


# ResourceInUse: it is there, or being changed; TimeToLive: "is already enabled", "has been modified multiple times";
# LimitExceeded: one change of a table at a time; ContinuousBackupsUnavailable: right after the table was created
_SOMEBODY_ELSE = (
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
