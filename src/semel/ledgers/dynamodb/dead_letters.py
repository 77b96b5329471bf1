"""The decisions of operators about dead letters. Each decision is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Expression, Item, Request, load_item
from semel.ports import Clock
from semel.values.claim_rules import KeyState
from semel.values.errors import LedgerUnavailable

ROUNDS_MAX = 20


class DeadLetterDecisions:
    """Records decisions about dead letters."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def replay(self, digest: bytes, reason: str, by: str, *, force: bool = False) -> bool:
        """Free the key, so that its next claim is granted. There is no inbox for the event. A key with a newer outcome
        is not replayed; with `force` a done key is freed too."""
        return await self._decide(digest, "replayed", reason, by, force)

    async def discard(self, digest: bytes, reason: str, by: str) -> bool:
        """Keep the outcome of the key, which still answers duplicates."""
        return await self._decide(digest, "discarded", reason, by)

    async def _decide(self, digest: bytes, decision: str, reason: str, by: str, force: bool = False) -> bool:
        for _ in range(ROUNDS_MAX):
            now = self._clock()
            own, dead_letters = await read(self._client, digest)
            dead_letter = next((item for item in dead_letters if "dead_letter" in item), None)
            done = own if force and own is not None and _is_done(own, now) else None
            is_replay = decision == "replayed"
            if dead_letter is not None and done is None and is_replay and _has_newer_outcome(own, dead_letter, now):
                return False
            replayed = [item for item in (dead_letter, done) if item is not None]
            if not replayed:
                return False
            writes = [] if dead_letter is None else [self._mark_decided(dead_letter, decision, reason, by, now)]
            if done is not None:
                text = _describe("replayed, though it was done,", by, now, reason)
                history = items.done_before(done, now) | {"decided": "replayed", "decision": text}
                writes.append(("Put", expressions.put(self._client.table, history, None)))
            if is_replay:
                writes += await self._free_keys(digest, own, replayed, now)
            if await self._client.write_together(writes) is None:
                return True
        raise LedgerUnavailable(
            f"{self._client.address}: the key {digest.hex()} changed {ROUNDS_MAX} times meanwhile; try again"
        )

    def _mark_decided(self, dead_letter: Item, decision: str, reason: str, by: str, now: int) -> tuple[str, Request]:
        """Remove the dead letter from the index. It stays in the history of its key for its retention."""
        changes = {
            "dead_letter": None,
            "decided": decision,
            "decision": _describe(decision, by, now, reason),
            **items.expiry(now + dead_letter["retention_ms"], now),
        }
        key = {"pk": dead_letter["pk"], "sk": dead_letter["sk"]}
        return "Update", expressions.update(
            self._client.table, key, changes, items.version(dead_letter), present=["dead_letter"]
        )

    async def _free_keys(
        self, digest: bytes, own: Item | None, replayed: Sequence[Item], now: int
    ) -> list[tuple[str, Request]]:
        """The writes that free the key and its aliases, unless they have a lease or, for an alias, another outcome."""
        generation = max(
            [1 if own is None else own.get("generation", 1), *[item.get("generation", 1) + 1 for item in replayed]]
        )
        tokens, retention_ms = [item["token"] for item in replayed], max([item["retention_ms"] for item in replayed])
        keys = {digest: own, **await self._aliases(replayed)}
        writes: list[tuple[str, Request]] = []
        for key, item in keys.items():
            if item is not None and item["state"] not in (items.FREE, KeyState.SETTLED):
                continue  # it has a lease
            if key != digest and (item is None or item["token"] not in tokens):
                continue  # the alias has another outcome
            old = item or {**items.key_of(key), "token": max(tokens), "version": 0}
            freed = items.freed(old, now, generation if key == digest else None)
            freed |= items.expiry(now + retention_ms, now) if key == digest else {}  # as long as its history
            expected = None if item is None else items.version(item)
            writes.append(("Put", expressions.put(self._client.table, freed, expected)))
        return writes

    async def _aliases(self, replayed: Sequence[Item]) -> dict[bytes, Item | None]:
        digests: list[bytes] = list(dict.fromkeys([digest for item in replayed for digest in item.get("aliases", [])]))
        found = await self._client.get([items.key_of(digest) for digest in digests])
        return {digest: found.get((digest, items.KEY)) for digest in digests}


async def read(client: DynamoClient, digest: bytes) -> tuple[Item | None, list[Item]]:
    """Read a key and its dead letters, newest first."""
    expr = Expression()
    request = {
        "TableName": client.table,
        "KeyConditionExpression": f"{expr.name('pk')} = {expr.value(digest)}",
        "ConsistentRead": True,
        "ScanIndexForward": False,
    }
    expr.add_to(request)
    found: list[Item] = []
    while True:
        answer = await client.ask("query", **request)
        found += [load_item(stored) for stored in answer["Items"]]
        if "LastEvaluatedKey" not in answer:
            break
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
    own = next((item for item in found if item["sk"] == items.KEY), None)
    return own, [item for item in found if item["sk"].startswith(items.DEAD_LETTER)]


def _describe(decision: str, by: str, now: int, reason: str) -> str:
    at = datetime.fromtimestamp(now / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return items.shorten(f"{decision} by {by} at {at} UTC: {reason}")


def _is_done(own: Item, now: int) -> bool:
    """Return whether a key is done. Aliases are excluded: the key of their owner counts."""
    return bool(own["state"] == KeyState.SETTLED and own["outcome"] == items.DONE and own["until_ms"] > now) and (
        "owner" not in own
    )


def _has_newer_outcome(own: Item | None, dead_letter: Item, now: int) -> bool:
    is_settled = own is not None and own["state"] == KeyState.SETTLED and own["until_ms"] > now
    return is_settled and own is not None and own["token"] != dead_letter["token"]
