"""The transaction of one handler, and its handle, `ctx.tx`.

DynamoDB has no open transactions. The writes of the handler are collected, and sent with the settlement in one
TransactWriteItems after the handler has returned. They are not visible before, and there is nothing to roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from secrets import token_bytes
from threading import Lock
from typing import Any

from semel.ledgers.dynamodb import items
from semel.ledgers.dynamodb.claims import NONCE_BYTES, ROUNDS_MAX, Settler
from semel.ledgers.dynamodb.client import DynamoClient, InvalidRequest, NoTable
from semel.ledgers.dynamodb.expressions import Request, dump_item, load_item
from semel.values.claim import Lease, Settlement
from semel.values.errors import TransactionOver

WRITES_MAX = 100  # of one TransactWriteItems, including the settlement
Values = Mapping[str, Any]


class ConditionFailed(TransactionOver):
    """A condition of the handler's own writes did not hold at the commit. Nothing was written."""


class WritesRefused(TransactionOver):
    """DynamoDB refuses the handler's writes: a missing table, two writes of one item. Nothing was written."""


class DynamoHandle:
    """Collects the handler's writes to its own tables. They are sent after the handler has returned.

        ctx.tx.put("orders", {"id": "7", "total": 12}, condition="attribute_not_exists(id)")
        ctx.tx.update("stock", {"id": "7"}, "SET n = n - :one", condition="n >= :one", values={":one": 1})
        ctx.tx.delete("baskets", {"id": "7"})
        ctx.tx.check("customers", {"id": "9"}, "attribute_exists(id)")
        found = await ctx.tx.get("orders", {"id": "7"})

    Values are Python values: str, int, Decimal, float, bool, bytes, None, list, dict, set. `names` and `values` are the
    placeholders of DynamoDB's expressions (`#name`, `:value`). At most 99 writes, one per item, 4 MB in all. The handle
    may be used from the thread of a sync handler. Reads are ordinary reads: use a condition to be sure that an item has
    not changed. The handle refuses further use after the handler's timeout.
    """

    def __init__(self, client: DynamoClient, writes_max: int) -> None:
        self._client = client
        self._writes_max = writes_max
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
        """Write a whole item, replacing an existing one."""
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
        """Write nothing, but let the transaction fail unless the condition holds."""
        self._add("ConditionCheck", table, {"Key": dump_item(key)}, condition, names, values)

    async def get(self, table: str, key: Values) -> dict[str, Any] | None:
        """Read an item, without the writes of this handler. Returns None if it does not exist."""
        with self._lock:
            self._check()
        try:
            answer = await self._client.ask("get_item", TableName=table, Key=dump_item(key), ConsistentRead=True)
        except (InvalidRequest, NoTable) as error:
            reason = "the table does not exist" if isinstance(error, NoTable) else str(error)
            raise WritesRefused(f"ctx.tx.get({table!r}, …): {reason}") from None
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
            raise ValueError(f"ctx.tx: {table!r} is the ledger's own table; use another table for your items")
        request |= {"TableName": table}
        if condition:
            request["ConditionExpression"] = condition
        if names:
            request["ExpressionAttributeNames"] = dict(names)
        if values:
            request["ExpressionAttributeValues"] = dump_item(values)
        with self._lock:
            self._check()
            if len(self._writes) >= self._writes_max:
                raise ValueError(
                    f"ctx.tx: more than {self._writes_max} writes; DynamoDB accepts 100, including the settlement"
                )
            self._writes.append((kind, request))

    def finish(self) -> list[tuple[str, Request]]:
        """Return all writes and refuse further ones."""
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
    """The handler's writes and its settlement, sent together at the end of the block."""

    def __init__(self, client: DynamoClient, settler: Settler, lease: Lease, at: Callable[[str], None]) -> None:
        claim = lease.claim
        needed = len(items.digests_of(claim)) + (claim.order is not None)
        self.handle = DynamoHandle(client, WRITES_MAX - needed)
        self._client = client
        self._settler = settler
        self._lease = lease
        self._at = at
        self._nonce = token_bytes(NONCE_BYTES)
        self._settlement: Settlement | None = None
        self._writes: list[tuple[str, Request]] = []
        self._own_writes: list[tuple[str, Request]] = []  # of the settlement

    async def settle(self, settlement: Settlement) -> bool:
        """Add the settlement to the handler's writes. The handler cannot write any more."""
        if settlement.lease != self._lease:
            raise TransactionOver("a transaction settles the lease that it was opened for")
        self._writes = self.handle.finish()
        plan = await self._settler.plan(settlement, self._nonce)
        if plan.result is not None:
            return False  # the lease was lost or is settled already, without these writes
        if len(plan.writes) + len(self._writes) > WRITES_MAX:
            raise WritesRefused(
                f"{len(self._writes)} writes and a dead letter are more than DynamoDB accepts in one transaction"
            )
        self._settlement, self._own_writes = settlement, plan.writes
        return True

    def abandon(self) -> None:
        """Refuse further use. Nothing was sent, and without a settlement nothing will be."""
        self.handle.close()

    async def commit(self) -> None:
        """Send the writes, if there is a settlement. Raises if nothing was written."""
        self.handle.close()
        if self._settlement is None:
            return
        self._at("before_commit")
        for _ in range(ROUNDS_MAX):
            try:
                refused = await self._client.write_together([*self._own_writes, *self._writes])
            except InvalidRequest as error:
                raise WritesRefused(f"DynamoDB refuses the handler's writes: {error}") from error
            if refused is None or await self._is_committed():
                self._at("after_commit")
                return
            if any(refused.failed[len(self._own_writes) :]):
                raise self._condition_failed(refused.failed[len(self._own_writes) :])
            plan = await self._settler.plan(self._settlement, self._nonce)  # its subject may have changed
            if plan.result is not None:
                break
            self._own_writes = plan.writes
        raise TransactionOver("the lease was lost before its transaction could be committed: nothing was written")

    async def _is_committed(self) -> bool:
        """Return whether an earlier attempt, whose reply was lost, has committed this transaction."""
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
