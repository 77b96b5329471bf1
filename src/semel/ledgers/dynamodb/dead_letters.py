"""What a person decides about a letter. Each decision is one transaction: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Request, Words
from semel.ledgers.dynamodb.items import Item, load_item
from semel.ports import Clock
from semel.values.claim_rules import State
from semel.values.errors import LedgerUnavailable

TURNS = 20


class Decisions:
    """Takes decisions about letters."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def replay(self, digest: bytes, reason: str, by: str, *, force: bool = False) -> bool:
        """The record steps back, and the next claim of its key is granted: there is no inbox here to put the event
        into. A key that another record answers by now is not dead; with `force` one of success steps back too."""
        return await self._decide(digest, "replayed", reason, by, force)

    async def discard(self, digest: bytes, reason: str, by: str) -> bool:
        """Its record stays, and answers."""
        return await self._decide(digest, "discarded", reason, by)

    async def _decide(self, digest: bytes, what: str, reason: str, by: str, force: bool = False) -> bool:
        for _ in range(TURNS):
            now = self._clock()
            own, dead_letters = await read(self._client, digest)
            dead_letter = next((one for one in dead_letters if "letter" in one), None)
            done = own if force and own is not None and _is_done(own, now) else None
            if (
                dead_letter is not None
                and done is None
                and what == "replayed"
                and _answered_by_another(own, dead_letter, now)
            ):
                return False
            gone = [one for one in (dead_letter, done) if one is not None]
            if not gone:
                return False
            writes = [] if dead_letter is None else [self._note(dead_letter, what, reason, by, now)]
            if done is not None:
                writes.append(self._remember(done, reason, by, now))
            if what == "replayed":
                writes += await self._step_back(digest, own, gone, now)
            if await self._client.write_together(writes) is None:
                return True
        raise LedgerUnavailable(f"{self._client.address}: the key {digest.hex()} changes all the time; try again")

    def _note(self, dead_letter: Item, what: str, reason: str, by: str, now: int) -> tuple[str, Request]:
        """From here on the letter is history, for its retention."""
        sets = {
            "letter": None,
            "decided": what,
            "decision": _told(what, by, now, reason),
            **items.sweeping(now + dead_letter["keep"], now),
        }
        key = {"pk": dead_letter["pk"], "sk": dead_letter["sk"]}
        return "Update", expressions.update(
            self._client.table, key, sets, items.version(dead_letter), present=["letter"]
        )

    def _remember(self, done: Item, reason: str, by: str, now: int) -> tuple[str, Request]:
        """What was done becomes history, like a letter that was decided about."""
        told = {"decided": "replayed", "decision": _told("replayed, though it was done,", by, now, reason)}
        return "Put", expressions.put(self._client.table, items.done_before(done, now) | told, None)

    async def _step_back(
        self, digest: bytes, own: Item | None, gone: Sequence[Item], now: int
    ) -> list[tuple[str, Request]]:
        """The key and its aliases, where they still answer with what is gone, or with nothing."""
        generation = max([1 if own is None else own.get("gen", 1), *[one.get("gen", 1) + 1 for one in gone]])
        tokens, keep_ms = [one["token"] for one in gone], max([one["keep"] for one in gone])
        keys = {digest: own, **await self._aliases(gone)}
        writes: list[tuple[str, Request]] = []
        for one, item in keys.items():
            if item is not None and item["state"] not in (items.FREE, State.SETTLED):
                continue  # someone acts on it: the lease holds
            if one != digest and (item is None or item["token"] not in tokens):
                continue  # the alias has moved on
            old = item or {**items.key_of(one), "token": max(tokens), "v": 0}
            freed = items.freed(old, now, generation if one == digest else None)
            freed |= items.sweeping(now + keep_ms, now) if one == digest else {}  # as long as its history
            over = None if item is None else items.version(item)
            writes.append(("Put", expressions.put(self._client.table, freed, over)))
        return writes

    async def _aliases(self, gone: Sequence[Item]) -> dict[bytes, Item | None]:
        digests: list[bytes] = list(dict.fromkeys([digest for one in gone for digest in one.get("aliases", [])]))
        found = await self._client.get([items.key_of(digest) for digest in digests])
        return {digest: found.get((digest, items.KEY)) for digest in digests}


async def read(client: DynamoClient, digest: bytes) -> tuple[Item | None, list[Item]]:
    """A key, and its letters, the newest first."""
    words = Words()
    request = {
        "TableName": client.table,
        "KeyConditionExpression": f"{words.name('pk')} = {words.value(digest)}",
        "ConsistentRead": True,
        "ScanIndexForward": False,
    }
    words.add_to(request)
    found: list[Item] = []
    while True:
        answer = await client.ask("query", **request)
        found += [load_item(stored) for stored in answer["Items"]]
        if "LastEvaluatedKey" not in answer:
            break
        request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
    own = next((item for item in found if item["sk"] == items.KEY), None)
    return own, [item for item in found if item["sk"].startswith(items.LETTER)]


def _told(what: str, by: str, now: int, reason: str) -> str:
    at = datetime.fromtimestamp(now / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    return items.short(f"{what} by {by} at {at} UTC: {reason}")


def _is_done(own: Item, now: int) -> bool:
    """By its own name; an alias is known by its owner."""
    return bool(own["state"] == State.SETTLED and own["outcome"] == items.DONE and own["until"] > now) and (
        "owner" not in own
    )


def _answered_by_another(own: Item | None, dead_letter: Item, now: int) -> bool:
    answers = own is not None and own["state"] == State.SETTLED and own["until"] > now
    return answers and own is not None and own["token"] != dead_letter["token"]
