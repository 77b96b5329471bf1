"""The transaction of one handler, and the handle that the handler gets as `ctx.tx`.

DynamoDB has no open transactions: what the handler writes is collected, and sent with the settle in one
TransactWriteItems when the handler has returned. Nothing is seen before, and there is nothing to roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_bytes
from threading import Lock
from typing import Any

from semel.ledgers.dynamodb import items
from semel.ledgers.dynamodb.claims import NONCE_BYTES, TURNS, Settles
from semel.ledgers.dynamodb.client import DynamoClient, InvalidRequest, NoTable
from semel.ledgers.dynamodb.expressions import Request
from semel.ledgers.dynamodb.items import dump_item, load_item
from semel.values.claim import Lease, Settlement
from semel.values.errors import TransactionOver

WRITES_MAX = 100  # of one TransactWriteItems, the settle among them
Values = Mapping[str, Any]


class ConditionFailed(TransactionOver):
    """A condition of the handler's own writes did not hold when they were to be written. Nothing was."""


class WritesRefused(TransactionOver):
    """DynamoDB can make no sense of the handler's writes: no such table, two writes of one item. Nothing was done."""


class Handle:
    """What a handler may do: put, update, delete and check items of its own tables. Nothing is sent before it returns.

        ctx.tx.put("orders", {"id": "7", "total": 12}, condition="attribute_not_exists(id)")
        ctx.tx.update("stock", {"id": "7"}, "SET n = n - :one", condition="n >= :one", values={":one": 1})
        ctx.tx.delete("baskets", {"id": "7"})
        ctx.tx.check("customers", {"id": "9"}, "attribute_exists(id)")
        found = await ctx.tx.get("orders", {"id": "7"})

    Values are Python's: str, int, Decimal, float, bool, bytes, None, list, dict, set. `names` and `values` are the
    placeholders of DynamoDB's expressions (`#name`, `:value`). At most 99 writes, one for each item; 4 MB in all.
    Safe to use from the thread of a sync handler. Reads are ordinary ones: to be sure of what was read, say so in a
    condition. When the handler's time is over the handle refuses.
    """

    def __init__(self, client: DynamoClient, room: int) -> None:
        self._client = client
        self._room = room
        self._lock = Lock()
        self._open = True
        self._writes: list[tuple[str, Request]] = []

    def put(
        self,
        table: str,
        item: Values,
        *,
        condition: str = "",
        names: Mapping[str, str] | None = None,
        values: Values | None = None,
    ) -> None:
        """Write a whole item, in place of the one that was there."""
        self._add("Put", table, {"Item": dump_item(item)}, condition, names, values)

    def update(
        self,
        table: str,
        key: Values,
        expression: str,
        *,
        condition: str = "",
        names: Mapping[str, str] | None = None,
        values: Values | None = None,
    ) -> None:
        """Change an item by an update expression: `SET …`, `REMOVE …`, `ADD …`."""
        request = {"Key": dump_item(key), "UpdateExpression": expression}
        self._add("Update", table, request, condition, names, values)

    def delete(
        self,
        table: str,
        key: Values,
        *,
        condition: str = "",
        names: Mapping[str, str] | None = None,
        values: Values | None = None,
    ) -> None:
        self._add("Delete", table, {"Key": dump_item(key)}, condition, names, values)

    def check(
        self,
        table: str,
        key: Values,
        condition: str,
        *,
        names: Mapping[str, str] | None = None,
        values: Values | None = None,
    ) -> None:
        """Write nothing, and let nothing be written unless the condition holds."""
        self._add("ConditionCheck", table, {"Key": dump_item(key)}, condition, names, values)

    async def get(self, table: str, key: Values) -> dict[str, Any] | None:
        """An item as it is now, without what this handler is about to write; None: there is none."""
        with self._lock:
            self._check()
        try:
            answer = await self._client.ask("get_item", TableName=table, Key=dump_item(key), ConsistentRead=True)
        except (InvalidRequest, NoTable) as error:
            why = "there is no such table" if isinstance(error, NoTable) else str(error)
            raise WritesRefused(f"ctx.tx.get({table!r}, …): {why}") from None
        return load_item(answer["Item"]) if "Item" in answer else None

    def _add(
        self,
        kind: str,
        table: str,
        request: Request,
        condition: str,
        names: Mapping[str, str] | None,
        values: Values | None,
    ) -> None:
        if table == self._client.table or table.endswith(f":table/{self._client.table}"):
            raise ValueError(f"ctx.tx: {table!r} is the ledger's own table; keep your items in another one")
        request |= {"TableName": table}
        if condition:
            request["ConditionExpression"] = condition
        if names:
            request["ExpressionAttributeNames"] = dict(names)
        if values:
            request["ExpressionAttributeValues"] = dump_item(values)
        with self._lock:
            self._check()
            if len(self._writes) >= self._room:
                raise ValueError(
                    f"ctx.tx: more than {self._room} writes; DynamoDB takes 100 in all, the settle included"
                )
            self._writes.append((kind, request))

    def last_words(self) -> list[tuple[str, Request]]:
        """All writes; from here on there are no more."""
        with self._lock:
            self._check()
            self._open = False
            return self._writes

    def close(self) -> None:
        with self._lock:
            self._open = False

    def _check(self) -> None:
        if not self._open:
            raise TransactionOver("ctx.tx was used after its transaction ended")


class DynamoTransaction:
    """The handler's writes and its settle, sent together at the end of the block."""

    def __init__(self, client: DynamoClient, settles: Settles, lease: Lease, at: Callable[[str], None]) -> None:
        claim = lease.claim
        needed = len(items.digests_of(claim)) + (claim.order is not None)
        self.handle = Handle(client, WRITES_MAX - needed)
        self._client = client
        self._settles = settles
        self._lease = lease
        self._at = at
        self._nonce = token_bytes(NONCE_BYTES)
        self._settlement: Settlement | None = None
        self._writes: list[tuple[str, Request]] = []
        self._mine: list[tuple[str, Request]] = []  # what the settle itself writes

    async def settle(self, settlement: Settlement) -> bool:
        """Add the settlement to the handler's writes. From here on the handler cannot write any more."""
        if settlement.lease != self._lease:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        self._writes = self.handle.last_words()
        plan = await self._settles.plan(settlement, self._nonce)
        if plan.answer is not None:
            return False  # lost, or ended by somebody else: these writes are not part of that
        if len(plan.writes) + len(self._writes) > WRITES_MAX:
            raise WritesRefused(f"{len(self._writes)} writes and a letter are more than DynamoDB takes at once")
        self._settlement, self._mine = settlement, plan.writes
        return True

    def abandon(self) -> None:
        """Nothing was sent yet: without a settle nothing will be."""
        self.handle.close()

    async def commit(self) -> None:
        """Send everything, if there was a settle. Raises when nothing was written."""
        self.handle.close()
        if self._settlement is None:
            return
        self._at("before_commit")
        for _ in range(TURNS):
            try:
                refused = await self._client.write_together([*self._mine, *self._writes])
            except InvalidRequest as error:
                raise WritesRefused(f"DynamoDB refuses the handler's writes: {error}") from error
            if refused is None or await self._happened():
                self._at("after_commit")
                return
            if any(refused.failed[len(self._mine) :]):
                raise self._condition_failed(refused.failed[len(self._mine) :])
            plan = await self._settles.plan(self._settlement, self._nonce)  # its subject may have moved on meanwhile
            if plan.answer is not None:
                break
            self._mine = plan.writes
        raise TransactionOver("the lease was lost before its transaction could be committed: nothing was written")

    async def _happened(self) -> bool:
        """The reply of an earlier try was lost: this very transaction is what refuses its repetition."""
        found = await self._client.get([items.key_of(self._lease.claim.digest)])
        return any(item.get("nonce") == self._nonce for item in found.values())

    def _condition_failed(self, failed: tuple[bool, ...]) -> ConditionFailed:
        at = failed.index(True)
        kind, request = self._writes[at]
        key = load_item(request.get("Key") or request["Item"])
        shown = ", ".join(f"{name}={value!r}" for name, value in list(key.items())[:2])
        return ConditionFailed(
            f"write {at + 1} of the handler ({kind} {request['TableName']}: {shown[:200]}): its condition failed: "
            f"{request.get('ConditionExpression', '')[:200]}; nothing was written"
        )
