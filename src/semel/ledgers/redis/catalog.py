"""The catalog: read-only queries with SCAN, a page at a time, and the indexes of dead letters. Never KEYS.

Leased, waiting and done entries are found by scanning all names, so the cost of a query grows with the number of keys:
about a second for a million. Dead and uncertain entries have indexes.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from semel.ledgers.redis.codec import DONE, DONE_NULL, command
from semel.ledgers.redis.dead_letters import StoredDeadLetter, dead_letters_of, generation
from semel.ledgers.redis.placement import BUCKETS, DEAD_LETTERS, RECORD, KeyNames
from semel.ledgers.redis.topology import Node, ResponseError, Topology
from semel.ports import STATES, Entry, EntryQuery
from semel.values.attempts import load
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.key import DIGEST_BYTES

PAGE = 500
INDEXED = ("dead", "uncertain")
RECORD_STATES = {1: "leased", 2: "waiting", DONE_NULL: "done", DONE: "done"}
PRINTED, ALIAS, HAS_ATTEMPTS, COPIED = 16, 32, 64, 128


class RedisCatalog:
    def __init__(self, names: KeyNames, topology: Topology) -> None:
        self._names = names
        self._topology = topology

    async def entries(self, query: EntryQuery) -> list[Entry]:
        if query.limit <= 0:
            return []
        newest = _Newest(query.limit)
        if query.state in (None, "leased", "waiting", "done"):
            async for page in self.records():
                for name, record in page:
                    entry = entry_from_record(name[-DIGEST_BYTES:], record)
                    if entry is not None and query.state in (None, entry.state) and query.wants(entry):
                        newest.add(entry, record[1:8])
        for state in INDEXED:
            if query.state in (None, state):
                async for entry, token in self._dead_letter_entries(state, query):
                    newest.add(entry, token)
        return await self._with_generations(newest.sorted())

    async def history(self, digest: bytes) -> list[Entry]:
        key = digest.hex()
        records = await self._of_each_tag("GET", self._names.candidate_names(RECORD, digest))
        _, dead_letters = await self.dead_letters_of(digest)
        found = [
            (record[1:8], replace(entry, generation=generation(dead_letters, record[1:8])))
            for record in records
            if record is not None and (entry := entry_from_record(digest, record, aliases=True)) is not None
        ]
        found += [
            (dead_letter.token, dead_letter.entry(key, generation(dead_letters, dead_letter.token)))
            for dead_letter in dead_letters
        ]
        found.sort(key=lambda pair: (pair[1].generation, pair[0]), reverse=True)
        return [entry for _, entry in found]

    async def counts(self) -> dict[str, int]:
        found = dict.fromkeys(STATES, 0)
        async for page in self.records():
            for _, record in page:
                if record[0] & ALIAS == 0 and (state := RECORD_STATES.get(record[0] & 7)) is not None:
                    found[state] += 1
        return found | await self.count_dead_letters()

    async def count_dead_letters(self) -> dict[str, int]:
        return {state: sum(await self._of_each_tag("ZCARD", self._index(state))) for state in INDEXED}

    async def dead_letters_of(self, digest: bytes) -> tuple[int, list[StoredDeadLetter]]:
        """The tag of a key's dead letters, and the dead letters. The tag is -1 if there are none."""
        found = await self._of_each_tag("HGETALL", self._names.candidate_names(DEAD_LETTERS, digest))
        for bucket, fields in enumerate(found):
            if fields:
                return bucket, dead_letters_of(fields)
        return -1, []

    async def find_done(self, digest: bytes) -> tuple[int, bytes] | None:
        """The tag and the record of a done key. None if it is not done, or exists only as an alias."""
        for bucket, record in enumerate(await self._of_each_tag("GET", self._names.candidate_names(RECORD, digest))):
            if record is not None and record[0] & 7 in (DONE, DONE_NULL) and not record[0] & ALIAS:
                return bucket, record
        return None

    async def alias_copies(self, record: bytes) -> list[bytes]:
        """The names of a record's copies under aliases. Only a scan of all names finds them."""
        if not record[0] & COPIED:
            return []
        return [
            name async for page in self.records() for name, copy in page if copy[1:8] == record[1:8] and copy[0] & ALIAS
        ]

    # -------------------------------------------------------------------------------------------------- internals

    async def names(self, node: Node, cursor: bytes, kind: bytes, count: int = PAGE) -> tuple[bytes, list[bytes]]:
        """A page of one server's names of a kind, and the next cursor. A scan starts and ends at cursor 0."""
        pattern = self._names.pattern(kind)
        cursor, names = await node.ask("SCAN", cursor, "MATCH", pattern, "COUNT", count)
        return cursor, [name for name in names if self._names.bucket_of_name(name) is not None]

    async def records(self) -> AsyncIterator[list[tuple[bytes, bytes]]]:
        seen: set[bytes] = set()  # SCAN may return a name twice, and so may two nodes while a slot moves
        for node in await self._topology.all_masters():
            cursor = b"0"
            while True:
                cursor, names = await self.names(node, cursor, RECORD)
                fresh = [name for name in dict.fromkeys(names) if name not in seen]
                seen.update(fresh)
                if fresh:
                    values = await _pipeline(node, [command("GET", name) for name in fresh])
                    yield [(name, value) for name, value in zip(fresh, values, strict=True) if isinstance(value, bytes)]
                if cursor == b"0":
                    break

    async def _dead_letter_entries(self, state: str, query: EntryQuery) -> AsyncIterator[tuple[Entry, bytes]]:
        """Matching dead letters of a state, newest first within each tag. Each tag yields the limit of the query, plus
        entries of the same millisecond, so that reading page by page does not read everything for each page."""
        until = b"+inf" if query.until_ms is None else b"(%d" % query.until_ms
        for bucket, index in enumerate(self._index(state)):
            node = await self._topology.node(bucket)
            members: list[bytes] = await node.ask("ZREVRANGEBYSCORE", index, until, query.since_ms)
            wanted = 0
            enough_ms = -1  # the time of the entry that reached the limit
            for at in range(0, len(members), PAGE):
                page = members[at : at + PAGE]
                names = [self._names.heads[bucket] + DEAD_LETTERS + member[:DIGEST_BYTES] for member in page]
                stored = await _pipeline(
                    node, [command("HGET", name, member[16:]) for name, member in zip(names, page, strict=True)]
                )
                oldest_ms = enough_ms
                for member, dead_letter in zip(page, stored, strict=True):
                    if isinstance(dead_letter, bytes):
                        (read,) = dead_letters_of([member[16:], dead_letter])
                        entry, oldest_ms = read.entry(member[:DIGEST_BYTES].hex(), 1), read.at_ms
                        if query.wants(entry):
                            wanted += 1
                            enough_ms = read.at_ms if wanted == query.limit else enough_ms
                            yield entry, read.token
                if oldest_ms < enough_ms:
                    break

    async def _with_generations(self, found: Sequence[tuple[Entry, bytes]]) -> list[Entry]:
        """Set the generations. Only keys with dead letters can have been replayed."""
        keys = list(dict.fromkeys(entry.key for entry, _ in found))
        replayed: dict[str, list[StoredDeadLetter]] = {}
        for bucket in range(BUCKETS):
            node = await self._topology.node(bucket)
            head = self._names.heads[bucket] + DEAD_LETTERS
            for at in range(0, len(keys), PAGE):
                page = keys[at : at + PAGE]
                fields = await _pipeline(node, [command("HGETALL", head + bytes.fromhex(key)) for key in page])
                replayed.update({key: dead_letters_of(own) for key, own in zip(page, fields, strict=True) if own})
        return [
            replace(entry, generation=generation(replayed[entry.key], token)) if entry.key in replayed else entry
            for entry, token in found
        ]

    async def _of_each_tag(self, name_of_command: str, names: Iterable[bytes]) -> list[Any]:
        """Run one command for a name of each tag."""
        by_node: dict[Node, list[tuple[int, bytes]]] = {}
        for bucket, name in enumerate(names):
            by_node.setdefault(await self._topology.node(bucket), []).append((bucket, name))
        answers: list[Any] = [None] * BUCKETS
        for node, pairs in by_node.items():
            for (bucket, _), answer in zip(
                pairs, await _pipeline(node, [command(name_of_command, name) for _, name in pairs]), strict=True
            ):
                answers[bucket] = answer
        return answers

    def _index(self, state: str) -> list[bytes]:
        return self._names.dead if state == "dead" else self._names.uncertain


class _Newest:
    """Collects the newest entries, up to a limit."""

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


async def _pipeline(node: Node, commands: list[bytes]) -> list[Any]:
    """Run commands in one round trip. A slot that moves meanwhile is an error: the operator repeats the query."""
    replies = await node.exchange_in_time((b"".join(commands),), len(commands))
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise LedgerUnavailable(f"{node.shown}: {reply}; try again")
    return replies


def entry_from_record(digest: bytes, record: bytes, aliases: bool = False) -> Entry | None:
    """The entry of a record. None for a copy under an alias, and for a state that a dead letter represents."""
    state = RECORD_STATES.get(record[0] & 7)
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
    attempt_log = load(payload) if record[0] & HAS_ATTEMPTS else ()
    reason = attempt_log[-1].reason if attempt_log else payload.decode()
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
        attempt_log=attempt_log,
    )


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
