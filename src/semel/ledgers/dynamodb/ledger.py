"""The DynamoDB ledger, its traits and its purge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from semel.ledgers.dynamodb import doctor as diagnosis
from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.catalog import DynamoCatalog, parse_key
from semel.ledgers.dynamodb.claims import Claimer, Settler, all_or_raise, run_batch
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.dead_letters import DeadLetterDecisions
from semel.ledgers.dynamodb.expressions import Expression, Item, dump_item, load_item
from semel.ledgers.dynamodb.items import TOKEN_KEPT_MS, Tokens, WallClock
from semel.ledgers.dynamodb.schema import TableSchema
from semel.ledgers.dynamodb.transaction import DynamoTransaction
from semel.ledgers.dynamodb.url import DynamoAddress, parse
from semel.ports import Clock, DataLoss, Entry, EntryQuery, Fact, Traits
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Release

# A write is stored in two of three availability zones before it is acknowledged.

TRAITS = Traits(name="DynamoDB", durable=True, transactional=True, loses=DataLoss(failover=""))


def profiles() -> list[Traits]:
    """The traits of every configuration. The URL does not show whether a table is global; `semel doctor` reports it."""
    return [
        TRAITS,
        replace(
            TRAITS,
            name="DynamoDB, global table",
            caveat="the last writer wins between regions: let all workers use one region",
            loses=DataLoss(
                failover="about the last second of writes in the failed region, and all but the last write of a key "
                "that two regions wrote (not with multi-Region strong consistency)"
            ),
        ),
    ]


# DynamoDB's time to live deletes most expired items, up to two days late. A purge deletes them now.

SCANNED_PER_KEY = 10  # items that a purge reads for each key of its limit, and at least:
SCANNED_MIN = 1_000
PAGE = 1_000  # items of one read; the service ends a page at 1 MB


class DynamoPurge:
    """Scans the table in bounded steps and deletes expired items. The next purge continues from there."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._after: Any = None  # the position of the scan

    async def purge(self, limit: int) -> int:
        """Delete at most `limit` expired keys and return their number. Items that change meanwhile stay."""
        if limit <= 0:
            return 0
        now = self._clock()
        expired: list[Item] = []
        async for page in self._pages(max(limit * SCANNED_PER_KEY, SCANNED_MIN), now):
            expired += page
            if len(expired) >= limit:
                break
        deleted = await asyncio.gather(*[self._delete(item, now) for item in expired[:limit]])
        if len(expired) > limit:  # the next purge starts with the rest of the last page
            self._after = dump_item({name: expired[limit - 1][name] for name in ("pk", "sk")})
        return sum(deleted)

    async def _pages(self, budget: int, now: int) -> AsyncIterator[list[Item]]:
        while budget > 0:
            expr = Expression()
            request: dict[str, Any] = {
                "TableName": self._client.table,
                "Limit": min(PAGE, budget),
                "FilterExpression": f"{expr.name('expires_ms')} <= {expr.value(now)}",
                "ProjectionExpression": ", ".join(
                    map(expr.name, ("pk", "sk", "token", "version", "state", "at_ms", "generation"))
                ),
            }
            if self._after is not None:
                request["ExclusiveStartKey"] = self._after
            response = await self._client.ask("scan", **expr.add_to(request))
            budget -= response["ScannedCount"]
            self._after = response.get("LastEvaluatedKey")
            yield [load_item(stored) for stored in response["Items"]]
            if self._after is None:
                return

    async def _delete(self, item: Item, now: int) -> bool:
        """Delete an item; True for a key. The last token of a key is kept for an hour, so that the next is higher."""
        table, key = self._client.table, {"pk": item["pk"], "sk": item["sk"]}
        is_key = item["sk"] == items.KEY and item["state"] != items.FREE
        if is_key and item["at_ms"] + TOKEN_KEPT_MS > now:
            freed = items.freed(item, now)
            refused = await self._client.write("put_item", expressions.put(table, freed, items.version(item)))
        else:
            refused = await self._client.write("delete_item", expressions.delete(table, key, items.version(item)))
        return is_key and refused is None


RELEASE_S = 1.0  # for the leases of a batch that failed; they also expire by themselves


class DynamoLedger:
    """A ledger in one DynamoDB table, for any number of machines of one region. An object belongs to one event loop.

    A worker needs these IAM actions on the table: dynamodb:BatchGetItem, PutItem, UpdateItem, DeleteItem, Scan (purge),
    ConditionCheckItem (for `ctx.tx.check`), and the actions of the handler's writes on its own tables; for operators
    also Query on the table and on table/…/index/dead_letters. `semel migrate` needs CreateTable, UpdateTable,
    DescribeTable, UpdateTimeToLive, DescribeTimeToLive, UpdateContinuousBackups, DescribeContinuousBackups; `semel
    doctor` needs the three Describe actions.

    A claim or settle without aliases and order is one request and one write unit per KB; with them it is a read and a
    transaction, which costs twice the units.
    """

    def __init__(
        self,
        address: DynamoAddress,
        *,
        clock: Clock | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.traits = TRAITS
        self._clock = clock or WallClock()
        self._observe = observe
        self._client = DynamoClient(address)
        self._settler = Settler(self._client, self._clock)
        self._claimer = Claimer(self._client, self._clock, Tokens(random.getrandbits), address.margin_ms)
        self._purge = DynamoPurge(self._client, self._clock)
        self._decisions = DeadLetterDecisions(self._client, self._clock)
        self._catalog = DynamoCatalog(self._client, self._clock)
        self._schema = TableSchema(self._client)

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, observe: Callable[[str], None] | None = None
    ) -> DynamoLedger:
        """`dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:8000&concurrency=16&margin_ms=1000`"""
        return cls(parse(url), clock=clock, observe=observe)

    # ------------------------------------------------------------------------------------------------------ ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if not claims:
            await self._client.get([items.key_of(b"\0")])  # a readable table also accepts writes
            return []
        verdicts = await run_batch(claims, _keys_of, self._claimer.claim)
        try:
            return all_or_raise(verdicts)
        except BaseException:
            await self._release([verdict for verdict in verdicts if isinstance(verdict, Granted)])
            raise

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._at("before_commit")
        results = all_or_raise(await run_batch(settlements, _keys_of_settlement, self._settler.settle))
        self._at("after_commit")
        return results

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return all_or_raise(await run_batch(leases, lambda lease: _keys_of(lease.claim), self._settler.renew))

    async def purge(self, limit: int) -> int:
        return await self._purge.purge(limit)

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[DynamoTransaction]:
        """Collect the handler's writes, and send them with the settlement at the end of the block."""
        transaction = DynamoTransaction(self._client, self._settler, lease, self._at)
        try:
            yield transaction
        except BaseException:
            transaction.handle.close()
            raise
        # The commit may be under way, so its result is awaited even if the caller is cancelled.
        commit = asyncio.ensure_future(transaction.commit())
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            with suppress(Exception):
                await commit
            raise

    # ------------------------------------------------------------------------------------ dead letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        return await self._decisions.replay(parse_key(key), reason, by, force=force)

    async def discard(self, key: str, reason: str, by: str) -> bool:
        return await self._decisions.discard(parse_key(key), reason, by)

    async def entries(self, query: EntryQuery) -> list[Entry]:
        """Dead and uncertain entries are read from an index; others need a scan, which costs (see `catalog`)."""
        return await self._catalog.entries(query)

    async def history(self, key: str) -> list[Entry]:
        return await self._catalog.history(parse_key(key))

    async def counts(self) -> dict[str, int]:
        return await self._catalog.counts()

    # -------------------------------------------------------------------------------------------------- operations

    async def pending(self) -> list[str]:
        return await self._schema.pending()

    async def migrate(self) -> list[str]:
        return await self._schema.migrate()

    async def diagnose(self) -> list[Fact]:
        return await diagnosis.facts(self._client, self._schema, WallClock())

    # --------------------------------------------------------------------------------------------------- internals

    async def _release(self, granted: Sequence[Granted]) -> None:
        """Release grants of a failed batch, whose callers get an exception instead."""
        with suppress(LedgerUnavailable, TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                unused = [Settlement(grant.lease, Release()) for grant in granted]
                await run_batch(unused, _keys_of_settlement, self._settler.settle)

    def _at(self, boundary: str) -> None:
        if self._observe is not None:
            self._observe(boundary)


def _keys_of(claim: Claim) -> tuple[bytes, ...]:
    """The keys and the subject, which a claim may have in common with another."""
    digests = items.digests_of(claim)
    return digests if claim.order is None else (*digests, b"s" + claim.order.subject)


def _keys_of_settlement(settlement: Settlement) -> tuple[bytes, ...]:
    return _keys_of(settlement.lease.claim)
