"""The read side, for people. Letters come from an index; everything else is looked for through the whole table.

An index follows its table within milliseconds, so the newest letter may be missing from a list for a moment, and never
from the history of its key. Looking through the table costs about 130 read units for each megabyte, and stops at
`PAGES_MAX`: in a larger table the newest entries of what was looked at are listed, and a warning says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from operator import itemgetter
from typing import Any

from semel.ledgers.dynamodb import dead_letters, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Words
from semel.ledgers.dynamodb.items import Item, load_item
from semel.ledgers.dynamodb.schema import INDEX
from semel.ports import STATES, Clock, Entry, EntryQuery
from semel.values.claim_rules import State
from semel.values.errors import ConfigError
from semel.values.key import DIGEST_BYTES
from semel.values.log import log

PAGES_MAX = 256  # of 1 MB each: about 33,000 read units, a cent
LETTERS = ("dead", "uncertain")
_STATES = {int(State.LEASED): "leased", int(State.WAITING): "waiting", int(State.SETTLED): "done"}


class Catalog:
    """Reads, and changes nothing."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def entries(self, asked: EntryQuery) -> list[Entry]:
        if asked.limit <= 0:
            return []
        found: list[Entry] = []
        for state in LETTERS:
            if asked.state in (None, state):
                found += await self._dead_letters(state, asked)
        if asked.state not in (*LETTERS, "accepted"):
            found += await self._keys(asked)
        found.sort(key=lambda entry: entry.at_ms, reverse=True)
        return found[: asked.limit]

    async def history(self, digest: bytes) -> list[Entry]:
        own, kept = await dead_letters.read(self._client, digest)
        now = self._clock()
        found = [items.entry_of_letter(item) for item in kept if item.get("over", now + 1) > now]
        if own is not None and _state_of(own, now) is not None:
            found.append(items.entry_of_key(own))
        found.sort(key=lambda entry: (entry.generation, entry.at_ms), reverse=True)
        return found

    async def counts(self) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        now = self._clock()
        async for item in self._scanned(("pk", "sk", "state", "outcome", "owner", "until")):
            if (state := _state_of(item, now)) is not None:
                found[state] += 1
        for state in LETTERS:
            found[state] = sum(await asyncio.gather(*[self._count(shard) for shard in items.shards(state)]))
        return found

    # ----------------------------------------------------------------------------------------------------- letters

    async def _dead_letters(self, state: str, asked: EntryQuery) -> list[Entry]:
        """The newest of each shard by the index, then the items themselves: what is decided meanwhile is not listed."""
        several = await asyncio.gather(*[self._of_shard(shard, asked) for shard in items.shards(state)])
        newest = _newest([item for some in several for item in some], asked.limit)
        keys = [{"pk": item["pk"], "sk": item["sk"]} for item in newest]
        whole = await self._client.get(keys)
        return [items.entry_of_letter(item) for item in whole.values() if "letter" in item]

    async def _of_shard(self, shard: str, asked: EntryQuery) -> list[Item]:
        found: list[Item] = []
        async for item in self._indexed(shard, asked.since_ms, asked.until_ms):
            if _wants(asked, item):
                found.append(item)
                if len(found) == asked.limit:
                    break
        return found

    async def _indexed(self, shard: str, since_ms: int, until_ms: int | None) -> AsyncIterator[Item]:
        words = Words()
        condition = f"{words.name('letter')} = {words.value(shard)} AND {words.name('at')} "
        if until_ms is None:
            condition += f">= {words.value(since_ms)}"
        else:
            condition += f"BETWEEN {words.value(min(since_ms, until_ms))} AND {words.value(until_ms)}"
        request = {"IndexName": INDEX, "KeyConditionExpression": condition, "ScanIndexForward": False}
        async for page in self._pages("query", words.add_to(request)):
            for stored in page["Items"]:
                yield load_item(stored)

    async def _count(self, shard: str) -> int:
        words = Words()
        condition = f"{words.name('letter')} = {words.value(shard)}"
        request = {"IndexName": INDEX, "KeyConditionExpression": condition, "Select": "COUNT"}
        return sum([page["Count"] async for page in self._pages("query", words.add_to(request))])

    # -------------------------------------------------------------------------------------------------------- keys

    async def _keys(self, asked: EntryQuery) -> list[Entry]:
        now = self._clock()
        found: list[Item] = []
        async for item in self._scanned():
            state = _state_of(item, now)
            if state is None or asked.state not in (None, state):
                continue
            if asked.reason and state != "waiting":
                continue  # only what waits has one
            if _wants(asked, item):
                found.append(item)
                if len(found) > 2 * asked.limit + 1000:
                    found = _newest(found, asked.limit)
        return [items.entry_of_key(item) for item in _newest(found, asked.limit)]

    async def _scanned(self, names: Iterable[str] = ()) -> AsyncIterator[Item]:
        """All keys, aliases left out."""
        words = Words()
        request: dict[str, Any] = {"FilterExpression": f"{words.name('sk')} = {words.value(items.KEY)}"}
        if names:
            request["ProjectionExpression"] = ", ".join(map(words.name, names))
        number = 0
        async for page in self._pages("scan", words.add_to(request)):
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
    """What a key's own item says; None where it says nothing, or a letter says it."""
    state = item["state"]
    if state == items.FREE or "owner" in item:
        return None
    if state == State.SETTLED and (item["outcome"] != items.DONE or item["until"] <= now):
        return None
    return _STATES[state]


def _newest(found: list[Item], limit: int) -> list[Item]:
    return sorted(found, key=itemgetter("at"), reverse=True)[:limit]


def digest_of(text: str) -> bytes:
    """The digest that a person wrote."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_BYTES:
        raise ConfigError(
            f"key {text[:80]!r}: expected {2 * DIGEST_BYTES} hexadecimal digits, as `semel events list` shows them"
        )
    return digest


def _wants(asked: EntryQuery, item: Item) -> bool:
    """As `EntryQuery.wants`, before an entry is made of it."""
    return (
        asked.handler in ("", item["handler"])
        and asked.tenant in (None, item["tenant"])
        and asked.reason.casefold() in item.get("reason", "").casefold()
        and asked.since_ms <= item["at"]
        and (asked.until_ms is None or item["at"] < asked.until_ms)
    )
