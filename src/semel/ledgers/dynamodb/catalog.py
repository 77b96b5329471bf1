"""The catalog: dead letters are read from an index, other entries by a scan of the table.

The index follows the table within milliseconds, so the newest dead letter may be missing from a list for a moment, but
never from the history of its key. A scan costs about 130 read units per megabyte and stops at `PAGES_MAX`. In a larger
table the newest of the scanned entries are listed, and a warning is logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from operator import itemgetter
from typing import Any

from semel.ledgers.dynamodb import dead_letters, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Expression, Item, load_item
from semel.ledgers.dynamodb.schema import INDEX
from semel.ports import STATES, Clock, Entry, EntryQuery
from semel.values.claim_rules import KeyState
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES
from semel.values.log import log

PAGES_MAX = 256  # of 1 MB each: about 33,000 read units, a cent
INDEXED = ("dead", "uncertain")
_STATES = {int(KeyState.LEASED): "leased", int(KeyState.WAITING): "waiting", int(KeyState.SETTLED): "done"}


class DynamoCatalog:
    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def entries(self, query: EntryQuery) -> list[Entry]:
        if query.limit <= 0:
            return []
        entries: list[Entry] = []
        for state in INDEXED:
            if query.state in (None, state):
                entries += await self._dead_letters(state, query)
        if query.state not in (*INDEXED, "accepted"):
            entries += await self._keys(query)
        entries.sort(key=lambda entry: entry.at_ms, reverse=True)
        return entries[: query.limit]

    async def history(self, digest: bytes) -> list[Entry]:
        own, dead_letter_items = await dead_letters.read(self._client, digest)
        now = self._clock()
        entries = [
            items.entry_of_dead_letter(item) for item in dead_letter_items if item.get("expires_ms", now + 1) > now
        ]
        if own is not None and _state_of(own, now) is not None:
            entries.append(items.entry_of_key(own))
        entries.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
        return entries

    async def counts(self) -> dict[str, int]:
        counts = dict.fromkeys(STATES, 0)
        now = self._clock()
        async for item in self._scanned(("pk", "sk", "state", "outcome", "owner", "until_ms")):
            if (state := _state_of(item, now)) is not None:
                counts[state] += 1
        for state in INDEXED:
            counts[state] = sum(await asyncio.gather(*[self._count(shard) for shard in items.shards(state)]))
        return counts

    # ------------------------------------------------------------------------------------------------ dead letters

    async def _dead_letters(self, state: str, query: EntryQuery) -> list[Entry]:
        """Read the newest of each shard from the index, then the items: those decided meanwhile are omitted."""
        pages = await asyncio.gather(*[self._of_shard(shard, query) for shard in items.shards(state)])
        newest = _newest([item for page in pages for item in page], query.limit)
        keys = [{"pk": item["pk"], "sk": item["sk"]} for item in newest]
        stored = await self._client.get(keys)
        return [items.entry_of_dead_letter(item) for item in stored.values() if "dead_letter" in item]

    async def _of_shard(self, shard: str, query: EntryQuery) -> list[Item]:
        found: list[Item] = []
        async for item in self._indexed(shard, query.since_ms, query.until_ms):
            if _wants(query, item):
                found.append(item)
                if len(found) == query.limit:
                    break
        return found

    async def _indexed(self, shard: str, since_ms: int, until_ms: int | None) -> AsyncIterator[Item]:
        expr = Expression()
        condition = f"{expr.name('dead_letter')} = {expr.value(shard)} AND {expr.name('at_ms')} "
        if until_ms is None:
            condition += f">= {expr.value(since_ms)}"
        else:
            condition += f"BETWEEN {expr.value(min(since_ms, until_ms))} AND {expr.value(until_ms)}"
        request = {"IndexName": INDEX, "KeyConditionExpression": condition, "ScanIndexForward": False}
        async for page in self._pages("query", expr.add_to(request)):
            for stored in page["Items"]:
                yield load_item(stored)

    async def _count(self, shard: str) -> int:
        expr = Expression()
        condition = f"{expr.name('dead_letter')} = {expr.value(shard)}"
        request = {"IndexName": INDEX, "KeyConditionExpression": condition, "Select": "COUNT"}
        return sum([page["Count"] async for page in self._pages("query", expr.add_to(request))])

    # -------------------------------------------------------------------------------------------------------- keys

    async def _keys(self, query: EntryQuery) -> list[Entry]:
        now = self._clock()
        found: list[Item] = []
        async for item in self._scanned():
            state = _state_of(item, now)
            if state is None or query.state not in (None, state):
                continue
            if query.reason and state != "waiting":
                continue  # only waiting keys have a reason
            if _wants(query, item):
                found.append(item)
                if len(found) > 2 * query.limit + 1000:
                    found = _newest(found, query.limit)
        return [items.entry_of_key(item) for item in _newest(found, query.limit)]

    async def _scanned(self, names: Iterable[str] = ()) -> AsyncIterator[Item]:
        """Scan all keys, without aliases."""
        expr = Expression()
        request: dict[str, Any] = {"FilterExpression": f"{expr.name('sk')} = {expr.value(items.KEY)}"}
        if names:
            request["ProjectionExpression"] = ", ".join(map(expr.name, names))
        number = 0
        async for page in self._pages("scan", expr.add_to(request)):
            number += 1
            for stored in page["Items"]:
                if "owner" not in stored:
                    yield load_item(stored)
            if number == PAGES_MAX and "LastEvaluatedKey" in page:
                log.warning("listing_truncated", ledger=self._client.address, scanned_mb=PAGES_MAX)
                return

    async def _pages(self, operation: str, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        while True:
            page = await self._client.ask(operation, TableName=self._client.table, **request)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            request = {**request, "ExclusiveStartKey": page["LastEvaluatedKey"]}


def _state_of(item: Item, now: int) -> str | None:
    """The state of a key's item; None if it is unknown, expired, an alias, or represented by a dead letter."""
    state = item["state"]
    if state == items.FREE or "owner" in item:
        return None
    if state == KeyState.SETTLED and (item["outcome"] != items.DONE or item["until_ms"] <= now):
        return None
    return _STATES[state]


def _newest(found: list[Item], limit: int) -> list[Item]:
    return sorted(found, key=itemgetter("at_ms"), reverse=True)[:limit]


def parse_key(text: str) -> bytes:
    """Parse a key that an operator entered. Raises ConfigError."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise ConfigError(
            f"key {text[:80]!r}: expected {2 * DIGEST_BYTES} hexadecimal digits, as `semel events list` shows them"
        )
    return digest


def _wants(query: EntryQuery, item: Item) -> bool:
    """As `EntryQuery.wants`, for an item."""
    return (
        query.handler in ("", item["handler"])
        and query.tenant in (None, item["tenant"])
        and query.reason.casefold() in item.get("reason", "").casefold()
        and query.since_ms <= item["at_ms"]
        and (query.until_ms is None or item["at_ms"] < query.until_ms)
    )
