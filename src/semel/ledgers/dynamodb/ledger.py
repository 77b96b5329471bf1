"""The face of the ledger in DynamoDB: what a worker, a person and an operator can ask of one table."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from msgspec.structs import replace

from semel.ledgers.dynamodb import doctor as diagnosis
from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.catalog import Catalog, digest_of
from semel.ledgers.dynamodb.claims import Claims, Settles, all_or_raise, granted_among, in_turns
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.dead_letters import Decisions
from semel.ledgers.dynamodb.expressions import Words
from semel.ledgers.dynamodb.items import KEPT_MS, Item, Tokens, WallClock, dump_item, load_item
from semel.ledgers.dynamodb.schema import Schema
from semel.ledgers.dynamodb.transaction import DynamoTransaction
from semel.ledgers.dynamodb.url import DynamoAddress, parse
from semel.ports import Clock, DataLoss, Entry, EntryQuery, Fact, Traits
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Release

# What DynamoDB may forget. Its machines are AWS's: a write is in two zones of three before it is answered.

TRAITS = Traits(name="DynamoDB", durable=True, transactional=True, loses=DataLoss(failover=""))


def profiles() -> list[Traits]:
    """Everything that a ledger in DynamoDB can be. Whether a table is a global one is AWS's setting, not the URL's:
    `semel doctor` tells."""
    return [
        TRAITS,
        replace(
            TRAITS,
            name="DynamoDB, global table",
            caveat="the last writer wins between regions: let all workers use one of them",
            loses=DataLoss(
                failover="the newest answers of the region that was left, about a second of them, and where two "
                "regions wrote the same key all but the last (not with multi-Region strong consistency)"
            ),
        ),
    ]


# Purge: DynamoDB's own sweeper does most of it, up to two days late; this is for whoever wants it now.

LOOKED_AT = 10  # items read for each key that a purge may forget: what is not over is passed over
LOOKED_AT_LEAST = 1_000
PAGE = 1_000  # items of one read; the service ends a page at 1 MB


class Sweep:
    """Goes through the table, a bounded step at a time, and begins again at its end."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
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


GIVE_BACK_S = 1.0  # for leases of a batch that failed: they lapse by themselves as well


class DynamoLedger:
    """One table of DynamoDB, for any number of machines of one region. An object belongs to one event loop.

    A worker needs these IAM actions on the table: dynamodb:BatchGetItem, PutItem, UpdateItem, DeleteItem, Scan (purge),
    ConditionCheckItem (a handler's `ctx.tx.check`; on the handler's own tables whatever it writes); for people also
    Query on the table and on table/…/index/letters. `semel migrate` needs CreateTable, UpdateTable, DescribeTable,
    UpdateTimeToLive, DescribeTimeToLive, UpdateContinuousBackups, DescribeContinuousBackups; `semel doctor` the three
    Describe… of them.

    A claim or settle without alias and order is one request and one write unit for each 1 KB; with them it is a read
    and a transaction, which costs twice the units.
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
        self._settles = Settles(self._client, self._clock)
        self._claims = Claims(self._client, self._clock, Tokens(random.getrandbits), address.margin_ms)
        self._sweep = Sweep(self._client, self._clock)
        self._decisions = Decisions(self._client, self._clock)
        self._catalog = Catalog(self._client, self._clock)
        self._schema = Schema(self._client)

    @classmethod
    def from_url(
        cls, url: str, *, clock: Clock | None = None, observe: Callable[[str], None] | None = None
    ) -> DynamoLedger:
        """`dynamodb://table?region=eu-central-1&endpoint=http://127.0.0.1:8000&concurrency=16&margin_ms=1000`"""
        return cls(parse(url), clock=clock, observe=observe)

    # ------------------------------------------------------------------------------------------------------ ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if not claims:
            await self._client.get([items.key_of(b"\0")])  # a table that can be read can be written
            return []
        verdicts = await in_turns(claims, _keys_of, self._claims.one)
        try:
            return all_or_raise(verdicts)
        except BaseException:
            await self._give_back(granted_among(verdicts))
            raise

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        self._at("before_commit")
        answers = all_or_raise(await in_turns(settlements, lambda s: _keys_of(s.lease.claim), self._settles.one))
        self._at("after_commit")
        return answers

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        return all_or_raise(await in_turns(leases, lambda lease: _keys_of(lease.claim), self._settles.renew))

    async def purge(self, limit: int) -> int:
        return await self._sweep.step(limit)

    async def close(self) -> None:
        await self._client.close()

    @asynccontextmanager
    async def transaction(self, lease: Lease) -> AsyncIterator[DynamoTransaction]:
        """Collects a handler's writes, and sends them with the settle when the block has ended."""
        transaction = DynamoTransaction(self._client, self._settles, lease, self._at)
        try:
            yield transaction
        except BaseException:
            transaction.handle.close()
            raise
        # Once the end is said, the commit is on its way: its answer is awaited whatever happens to the caller.
        commit = asyncio.ensure_future(transaction.commit())
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            with suppress(Exception):
                await commit
            raise

    # ----------------------------------------------------------------------------------------- letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        return await self._decisions.replay(digest_of(key), reason, by, force=force)

    async def discard(self, key: str, reason: str, by: str) -> bool:
        return await self._decisions.discard(digest_of(key), reason, by)

    async def entries(
        self,
        state: str | None = None,
        limit: int = 100,
        *,
        handler: str = "",
        tenant: str | None = None,
        reason: str = "",
        since_ms: int = 0,
        until_ms: int | None = None,
    ) -> list[Entry]:
        """Dead and uncertain ones by an index; others by a look through the table, which costs (see `catalog`)."""
        asked = EntryQuery(
            state=state,
            limit=limit,
            handler=handler,
            tenant=tenant,
            reason=reason,
            since_ms=since_ms,
            until_ms=until_ms,
        )
        return await self._catalog.entries(asked)

    async def history(self, key: str) -> list[Entry]:
        return await self._catalog.history(digest_of(key))

    async def counts(self) -> dict[str, int]:
        return await self._catalog.counts()

    # -------------------------------------------------------------------------------------------------- operations

    async def pending(self) -> list[str]:
        return await self._schema.pending()

    async def migrate(self) -> list[str]:
        return await self._schema.migrate()

    async def diagnose(self) -> list[Fact]:
        return await diagnosis.facts(self._client, self._schema, WallClock())

    # --------------------------------------------------------------------------------------------------- its parts

    async def _give_back(self, granted: Sequence[Granted]) -> None:
        """Nobody will hear of these leases."""
        with suppress(LedgerUnavailable, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                unused = [Settlement(one.lease, Release()) for one in granted]
                await in_turns(unused, lambda s: _keys_of(s.lease.claim), self._settles.one)

    def _at(self, boundary: str) -> None:
        if self._observe is not None:
            self._observe(boundary)


def _keys_of(claim: Claim) -> tuple[bytes, ...]:
    """Everything that a claim may have in common with another one."""
    digests = items.digests_of(claim)
    return digests if claim.order is None else (*digests, b"s" + claim.order.subject)
