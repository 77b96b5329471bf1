"""The read side: SCAN through the records, a page at a time, and the indexes of the letters. Never KEYS.

What is leased, waiting and done is found by walking all names, so that a question costs the more the more is known:
about a second for a million keys. Dead and uncertain have indexes. Nothing here writes.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from semel.adapters.ledgers.redis.codec import DONE, DONE_NULL
from semel.adapters.ledgers.redis.letters import Letter, generation, letters_of
from semel.adapters.ledgers.redis.node import Node, ResponseError
from semel.adapters.ledgers.redis.placement import BUCKETS, LETTERS, RECORD, Places
from semel.adapters.ledgers.redis.resp import command
from semel.adapters.ledgers.redis.topology import Topology
from semel.ports import STATES, Asked, Entry
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.key import DIGEST_BYTES
from semel.values.tried import load

PAGE = 500
INDEXED = ("dead", "uncertain")
LIVE_STATES = {1: "leased", 2: "waiting", DONE_NULL: "done", DONE: "done"}
PRINTED, ALIAS, TRIED, COPIED = 16, 32, 64, 128


class Reader:
    def __init__(self, places: Places, topology: Topology) -> None:
        self._places = places
        self._topology = topology

    async def entries(self, asked: Asked) -> list[Entry]:
        if asked.limit <= 0:
            return []
        newest = _Newest(asked.limit)
        if asked.state in (None, "leased", "waiting", "done"):
            async for page in self.records():
                for name, record in page:
                    entry = entry_of(name[-DIGEST_BYTES:], record)
                    if entry is not None and asked.state in (None, entry.state) and asked.wants(entry):
                        newest.add(entry, record[1:8])
        for state in INDEXED:
            if asked.state in (None, state):
                async for entry, token in self._letter_entries(state, asked):
                    newest.add(entry, token)
        return await self._with_generations(newest.sorted())

    async def history(self, digest: bytes) -> list[Entry]:
        key = digest.hex()
        records, letters = await self._all_of(digest)
        found = [
            (record[1:8], replace(entry, generation=generation(letters, record[1:8])))
            for record in records
            if (entry := entry_of(digest, record, aliases=True)) is not None
        ]
        found += [(letter.token, letter.entry(key, generation(letters, letter.token))) for letter in letters]
        found.sort(key=lambda pair: (pair[1].generation, pair[0]), reverse=True)
        return [entry for _, entry in found]

    async def counts(self) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        async for page in self.records():
            for _, record in page:
                if record[0] & ALIAS == 0 and (state := LIVE_STATES.get(record[0] & 7)) is not None:
                    found[state] += 1
        return found | await self.letter_counts()

    async def letter_counts(self) -> dict[str, int]:
        return {state: sum(await self._of_each_tag("ZCARD", self._index(state))) for state in INDEXED}

    async def letters_of(self, digest: bytes) -> tuple[int, list[Letter]]:
        """The tag that a key's letters have, and the letters; the tag is -1 where there are none."""
        found = await self._of_each_tag("HGETALL", self._places.everywhere(LETTERS, digest))
        for bucket, fields in enumerate(found):
            if fields:
                return bucket, letters_of(fields)
        return -1, []

    async def done_of(self, digest: bytes) -> tuple[int, bytes] | None:
        """The record of a key that is done, and its tag; None: it is not, or known as an alias only."""
        for bucket, record in enumerate(await self._of_each_tag("GET", self._places.everywhere(RECORD, digest))):
            if record is not None and record[0] & 7 in (DONE, DONE_NULL) and not record[0] & ALIAS:
                return bucket, record
        return None

    async def copies_of(self, record: bytes) -> list[bytes]:
        """The names of its copies under aliases. Nothing but a walk through all names finds them."""
        if not record[0] & COPIED:
            return []
        return [
            name async for page in self.records() for name, copy in page if copy[1:8] == record[1:8] and copy[0] & ALIAS
        ]

    # ------------------------------------------------------------------------------------------------- its parts

    async def names(self, node: Node, cursor: bytes, kind: bytes, count: int = PAGE) -> tuple[bytes, list[bytes]]:
        """A page of one server's names of a kind, and the cursor of the next. Walking begins and ends at 0."""
        pattern = self._places.pattern(kind)
        cursor, names = await node.ask("SCAN", cursor, "MATCH", pattern, "COUNT", count)
        return cursor, [name for name in names if self._places.bucket_of_name(name) is not None]

    async def records(self) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        seen: set[bytes] = set()  # SCAN may tell a name twice, and two nodes may while a slot moves
        for node in await self._topology.all_masters():
            cursor = b"0"
            while True:
                cursor, names = await self.names(node, cursor, RECORD)
                fresh = [name for name in dict.fromkeys(names) if name not in seen]
                seen.update(fresh)
                if fresh:
                    values = await _answers(node, [command("GET", name) for name in fresh])
                    yield [(name, value) for name, value in zip(fresh, values, strict=True) if isinstance(value, bytes)]
                if cursor == b"0":
                    break

    async def _letter_entries(self, state: str, asked: Asked) -> AsyncIterator[tuple[Entry, bytes]]:
        """Those that are wanted of what waits for a person, the newest first in each tag, and no more than are asked
        for, but for those of one millisecond: whoever reads all of them in pages does not pay for all with each."""
        until = b"+inf" if asked.until_ms is None else b"(%d" % asked.until_ms
        for bucket, index in enumerate(self._index(state)):
            node = await self._topology.node(bucket)
            members: list[bytes] = await node.ask("ZREVRANGEBYSCORE", index, until, asked.since_ms)
            wanted = 0
            enough_ms = -1  # at this time there were as many as are asked for
            for at in range(0, len(members), PAGE):
                page = members[at : at + PAGE]
                names = [self._places.heads[bucket] + LETTERS + member[:DIGEST_BYTES] for member in page]
                stored = await _answers(
                    node, [command("HGET", name, member[16:]) for name, member in zip(names, page, strict=True)]
                )
                oldest_ms = enough_ms
                for member, letter in zip(page, stored, strict=True):
                    if isinstance(letter, bytes):
                        (read,) = letters_of([member[16:], letter])
                        entry, oldest_ms = read.entry(member[:DIGEST_BYTES].hex(), 1), read.at_ms
                        if asked.wants(entry):
                            wanted += 1
                            enough_ms = read.at_ms if wanted == asked.limit else enough_ms
                            yield entry, read.token
                if oldest_ms < enough_ms:
                    break

    async def _with_generations(self, found: Sequence[tuple[Entry, bytes]]) -> list[Entry]:
        """Only a key with letters can have been replayed."""
        keys = list(dict.fromkeys(entry.key for entry, _ in found))
        replayed: dict[str, list[Letter]] = {}
        for bucket in range(BUCKETS):
            node = await self._topology.node(bucket)
            head = self._places.heads[bucket] + LETTERS
            for at in range(0, len(keys), PAGE):
                page = keys[at : at + PAGE]
                fields = await _answers(node, [command("HGETALL", head + bytes.fromhex(key)) for key in page])
                replayed.update({key: letters_of(own) for key, own in zip(page, fields, strict=True) if own})
        return [
            replace(entry, generation=generation(replayed[entry.key], token)) if entry.key in replayed else entry
            for entry, token in found
        ]

    async def _all_of(self, digest: bytes) -> tuple[list[bytes], list[Letter]]:
        records = await self._of_each_tag("GET", self._places.everywhere(RECORD, digest))
        _, letters = await self.letters_of(digest)
        return [record for record in records if record is not None], letters

    async def _of_each_tag(self, what: str, names: Iterable[bytes]) -> list[Any]:
        """One question about a name of each tag."""
        asked: dict[Node, list[tuple[int, bytes]]] = {}
        for bucket, name in enumerate(names):
            asked.setdefault(await self._topology.node(bucket), []).append((bucket, name))
        answers: list[Any] = [None] * BUCKETS
        for node, some in asked.items():
            for (bucket, _), answer in zip(
                some, await _answers(node, [command(what, name) for _, name in some]), strict=True
            ):
                answers[bucket] = answer
        return answers

    def _index(self, state: str) -> list[bytes]:
        return self._places.dead if state == "dead" else self._places.uncertain


class _Newest:
    """The newest entries, as many as are asked for."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[tuple[int, bytes, str, Entry]] = []

    def add(self, entry: Entry, token: bytes) -> None:
        item = (entry.at_ms, token, entry.key, entry)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, item)
        elif item[:3] > self._heap[0][:3]:
            heapq.heapreplace(self._heap, item)

    def sorted(self) -> list[tuple[Entry, bytes]]:
        return [(item[3], item[1]) for item in sorted(self._heap, key=lambda item: item[:3], reverse=True)]


async def _answers(node: Node, commands: list[bytes]) -> list[Any]:
    """In one round trip. A slot that moves away meanwhile is an error here: people ask again."""
    replies = await node.answers((b"".join(commands),), len(commands))
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise LedgerUnavailable(f"{node.shown}: {reply}; ask again")
    return replies


def entry_of(digest: bytes, record: bytes, aliases: bool = False) -> Entry | None:
    """The line of a record; None where it has none: a copy under an alias, or what a letter tells."""
    state = LIVE_STATES.get(record[0] & 7)
    if state is None or (record[0] & ALIAS and not aliases):
        return None
    body = 22 if state == "done" else 42
    at = body + (16 if record[0] & PRINTED else 0)
    texts = []
    for _ in range(3):
        size = int.from_bytes(record[at : at + 2], "big")
        texts.append(record[at + 2 : at + 2 + size].decode())
        at += 2 + size
    text, tenant, handler = texts
    payload = record[at:]
    tried = load(payload) if record[0] & TRIED else ()
    reason = tried[-1].reason if tried else payload.decode()
    result = (payload if record[0] & 7 == DONE else b"null") if state == "done" else None
    return Entry(
        key=digest.hex(),
        handler=handler,
        text=text,
        tenant=tenant,
        state=state,
        reason=reason if state == "waiting" else "",
        attempts=int.from_bytes(record[body - 2 : body], "big"),
        at_ms=int.from_bytes(record[14:20], "big"),
        event=None,
        result=result,
        tried=tried,
    )


def key_of(text: str) -> bytes:
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
