"""The face of the ledger in DynamoDB: what a worker, a person and an operator can ask of one table."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from semel.adapters.ledgers.dynamodb import diagnosis, items
from semel.adapters.ledgers.dynamodb.address import Address, parse
from semel.adapters.ledgers.dynamodb.batches import all_or_raise, in_turns
from semel.adapters.ledgers.dynamodb.catalog import Catalog, digest_of
from semel.adapters.ledgers.dynamodb.claiming import Claims, granted_among
from semel.adapters.ledgers.dynamodb.client import Client
from semel.adapters.ledgers.dynamodb.letters import Decisions
from semel.adapters.ledgers.dynamodb.promises import TRAITS
from semel.adapters.ledgers.dynamodb.schema import Schema
from semel.adapters.ledgers.dynamodb.settling import Settles
from semel.adapters.ledgers.dynamodb.sweeping import Sweep
from semel.adapters.ledgers.dynamodb.tokens import Tokens, WallClock
from semel.adapters.ledgers.dynamodb.transaction import DynamoTransaction
from semel.ports import Asked, Clock, Entry
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Release

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
        address: Address,
        *,
        clock: Clock | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.traits = TRAITS
        self._clock = clock or WallClock()
        self._observe = observe
        self._client = Client(address)
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
        asked = Asked(
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

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the table, for `semel doctor`. A value that begins with "error: " or "warning: " is one."""
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
