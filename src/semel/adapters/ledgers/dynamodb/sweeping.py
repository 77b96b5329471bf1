"""Purge: DynamoDB's own sweeper does most of it, up to two days late; this is for whoever wants it now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from semel.adapters.ledgers.dynamodb import expressions, items
from semel.adapters.ledgers.dynamodb.attributes import Item, dump_item, load_item
from semel.adapters.ledgers.dynamodb.client import Client
from semel.adapters.ledgers.dynamodb.expressions import Words
from semel.adapters.ledgers.dynamodb.tokens import KEPT_MS
from semel.ports import Clock

LOOKED_AT = 10  # items read for each key that a purge may forget: what is not over is passed over
LOOKED_AT_LEAST = 1_000
PAGE = 1_000  # items of one read; the service ends a page at 1 MB


class Sweep:
    """Goes through the table, a bounded step at a time, and begins again at its end."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._after: Any = None  # where the step before stopped

    async def step(self, limit: int) -> int:
        """Forget at most `limit` keys. Returns how many. What changes meanwhile stays."""
        if limit <= 0:
            return 0
        now = self._clock()
        over: list[Item] = []
        async for page in self._pages(max(limit * LOOKED_AT, LOOKED_AT_LEAST), now):
            over += page
            if len(over) >= limit:
                break
        gone = await asyncio.gather(*[self._forget(item, now) for item in over[:limit]])
        if len(over) > limit:  # the rest of the last page is still there
            self._after = dump_item({name: over[limit - 1][name] for name in ("pk", "sk")})
        return sum(gone)

    async def _pages(self, budget: int, now: int) -> AsyncIterator[list[Item]]:
        while budget > 0:
            words = Words()
            request: dict[str, Any] = {
                "TableName": self._client.table,
                "Limit": min(PAGE, budget),
                "FilterExpression": f"{words.name('over')} <= {words.value(now)}",
                "ProjectionExpression": ", ".join(map(words.name, ("pk", "sk", "token", "v", "state", "at", "gen"))),
            }
            if self._after is not None:
                request["ExclusiveStartKey"] = self._after
            answer = await self._client.ask("scan", **words.add_to(request))
            budget -= answer["ScannedCount"]
            self._after = answer.get("LastEvaluatedKey")
            yield [load_item(stored) for stored in answer["Items"]]
            if self._after is None:
                return

    async def _forget(self, item: Item, now: int) -> bool:
        """True for a key. Its last token is remembered for an hour, so that the next one is higher."""
        table, key = self._client.table, {"pk": item["pk"], "sk": item["sk"]}
        is_key = item["sk"] == items.KEY and item["state"] != items.FREE
        if is_key and item["at"] + KEPT_MS > now:
            freed = items.freed(item, now)
            refused = await self._client.write("put_item", expressions.put(table, freed, items.version(item)))
        else:
            refused = await self._client.write("delete_item", expressions.delete(table, key, items.version(item)))
        return is_key and refused is None
