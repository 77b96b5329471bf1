"""The Redis ledger: turns each batch into a few script calls and their replies into values.

On one server a script takes up to 128 keys. In a Cluster a script takes keys of one slot, and the scripts of all nodes
run concurrently.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import RedisError

from semel.ledgers.redis import codec
from semel.ledgers.redis import doctor as diagnosis
from semel.ledgers.redis.catalog import RedisCatalog, entry_from_record, parse_key
from semel.ledgers.redis.codec import SCRIPTS, Times, command, script_call
from semel.ledgers.redis.dead_letters import DISCARD, REPLAY, pack_dead_letter, pack_decision, pack_done, undecided
from semel.ledgers.redis.dispatch import ScriptCall, ScriptDispatcher
from semel.ledgers.redis.placement import BUCKETS, DEAD_LETTERS, RECORD, KeyNames
from semel.ledgers.redis.topology import DISCOVERY_SHARE, Topology, check_server, parse_info, topology_of
from semel.ledgers.redis.traits import traits_of
from semel.ledgers.redis.url import RedisAddress, parse_url
from semel.ports import Entry, EntryQuery, Fact
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.key import DIGEST_BYTES
from semel.values.outcome import Release

SCANNED_PER_KEY = 10  # names that a purge scans for each key of its limit, and at least:
SCANNED_MIN = 10_000
PAGE = 200


class PurgeScan:
    """Scans all names in bounded steps and deletes what is past its retention. The next purge continues from there."""

    def __init__(
        self, reader: RedisCatalog, topology: Topology, dispatch: ScriptDispatcher, names: KeyNames, *, thorough: bool
    ) -> None:
        """`thorough`: scan all names, because the server's own expiry does not apply to the clock of a test."""
        self._thorough = thorough
        self._reader = reader
        self._topology = topology
        self._dispatch = dispatch
        self._names = names
        self._node = 0  # index of the current master; the cursor is its position
        self._cursor = b"0"

    async def purge(self, limit: int, times: Times) -> int:
        deleted = scanned = 0
        masters = await self._topology.all_masters()
        self._node = self._node if self._node < len(masters) else 0
        while deleted < limit and (self._thorough or scanned < max(SCANNED_PER_KEY * limit, SCANNED_MIN)):
            cursor, names = await self._reader.names(masters[self._node], self._cursor, b"[ksl]", PAGE)
            scanned += PAGE
            deleted += await self._delete_expired(names, limit - deleted, times)
            if deleted >= limit:
                break  # this page may contain more expired keys: the next purge starts with it
            self._cursor = cursor
            if cursor == b"0":
                self._node += 1
                if self._node >= len(masters):
                    self._node = 0
                    break
        return deleted

    async def _delete_expired(self, names: list[bytes], limit: int, times: Times) -> int:
        """Delete up to `limit` expired keys. A script deletes all expired keys it gets, so it gets `limit` at most."""
        deleted = 0
        by_bucket: dict[int, list[bytes]] = {}
        for name in names:
            bucket = self._names.bucket_of_name(name)
            if bucket is not None:
                by_bucket.setdefault(bucket if self._names.in_cluster else 0, []).append(name)
        for bucket, remaining in by_bucket.items():
            while remaining and deleted < limit:
                page, remaining = remaining[: limit - deleted], remaining[limit - deleted :]
                kind_at = b"%d" % (self._names.kind_at + 1)
                call = ScriptCall(bucket, partial(script_call, SCRIPTS["purge"].sha, page, (times.now, kind_at), ()))
                await self._dispatch.run([call])
                deleted += call.reply
        return deleted


T = TypeVar("T")

MEMORY_BYTES = 180  # MEMORY USAGE of a settled key: a fingerprint, a text of 36 bytes, no result. Measured: 166
KEYS_MAX = 128  # per script: it blocks the server for about half a millisecond
NONCE_BYTES = 6
CHECK_S = 60.0  # between two checks of the servers' settings
GRACE_MS = 3_600_000  # on the clock of a test, the server's own expiry must not come first
FORMAT = b"1"


class _ScriptBatch(NamedTuple, Generic[T]):
    """The items of one script. `positions`: their positions in the original batch; None if the scripts are in order."""

    bucket: int
    items: Sequence[T]
    positions: Sequence[int] | None


class RedisLedger:
    """Redis or Valkey: one server, a Sentinel's master, or a Cluster. Belongs to the event loop that uses it first."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        clock: Callable[[], int] | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.traits = traits_of(address)
        self._address = address
        self._clock = clock
        self.together = (
            frozenset(address.together) if address.kind == "cluster" else None
        )  # None: no Cluster, so every script may use all keys
        self._names = KeyNames(address.prefix, address.together, in_cluster=address.kind == "cluster")
        self._topology = topology_of(address)
        self._dispatch = ScriptDispatcher(address, self._topology, observe)
        self._reader = RedisCatalog(self._names, self._topology)
        self._scan = PurgeScan(self._reader, self._topology, self._dispatch, self._names, thorough=clock is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._check_due = 0.0
        self._registered: set[str] = set()  # handlers whose placement matches the stored one
        self._strict = b"1" if address.strict or address.fsync else b"0"
        self._step = BUCKETS if self._names.in_cluster else 1

    @classmethod
    def from_url(
        cls, url: str, *, clock: Callable[[], int] | None = None, observe: Callable[[str], None] | None = None
    ) -> RedisLedger:
        """`clock` is for tests; by default the store's own time applies. `observe` gets the reason of each retry."""
        return cls(parse_url(url), clock=clock, observe=observe)

    # ------------------------------------------------------------------------------------------------------ ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        await self._ready(claims)
        await self._check_servers()
        if not claims:
            await self._write_probe()
            return []
        times = self._times()
        groups = self._batches(claims, claims)

        def pack(group: _ScriptBatch[Claim]) -> bytes:
            nonce = os.urandom(NONCE_BYTES)
            return codec.pack_claims(self._names, group.items, group.bucket, nonce, times, self._strict)

        calls = [ScriptCall(group.bucket, partial(pack, group)) for group in groups]
        try:
            confirmed = await self._dispatch.run(calls, confirmed=True)
        except SemelError:  # some scripts may have granted claims, and their callers will not learn it
            for verdicts in self._verdicts(groups, calls):
                await self._release_grants(verdicts)
            raise
        verdicts = _in_order(groups, self._verdicts(groups, calls))
        if not confirmed:
            await self._release_grants(verdicts)
            raise LedgerUnavailable(self._unconfirmed("grants"))
        return verdicts

    async def _write_probe(self) -> None:
        """Check that every server accepts writes, with the neutral write of strict mode."""

        def pack(bucket: int) -> bytes:
            return codec.pack_claims(self._names, [], bucket, bytes(NONCE_BYTES), self._times(), b"1")

        buckets = range(BUCKETS if self._names.in_cluster else 1)
        await self._dispatch.run([ScriptCall(bucket, partial(pack, bucket)) for bucket in buckets])

    def _verdicts(self, groups: Sequence[_ScriptBatch[Claim]], calls: Sequence[ScriptCall]) -> list[list[Verdict]]:
        return [
            codec.unpack_verdicts(call.reply, group.items, self._step) if call.reply is not None else []
            for group, call in zip(groups, calls, strict=True)
        ]

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._settle(settlements, confirmed=True)

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        def pack(batch: Sequence[Lease], bucket: int) -> bytes:
            return codec.pack_renewals(self._names, batch, bucket, times, self._strict)

        times = self._times()
        return await self._run_batch(leases, [lease.claim for lease in leases], pack, confirmed=True)

    async def purge(self, limit: int) -> int:
        await self._ready([])
        return await self._query(self._scan.purge(limit, self._times()))

    async def close(self) -> None:
        """Close the connections. The ledger may be used again afterwards, also on another event loop."""
        await self._topology.close()
        self._loop = None

    # ------------------------------------------------------------------------------------ dead letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        """With `force`, replay in two steps: between them the key is new while its dead letter is still listed."""
        undone = force and await self._query(self._undo(parse_key(key), reason, by))
        return await self._query(self._decide(parse_key(key), REPLAY, reason, by)) or undone

    async def discard(self, key: str, reason: str, by: str) -> bool:
        return await self._query(self._decide(parse_key(key), DISCARD, reason, by))

    async def entries(self, query: EntryQuery) -> list[Entry]:
        return await self._query(self._reader.entries(query))

    async def history(self, key: str) -> list[Entry]:
        return await self._query(self._reader.history(parse_key(key)))

    async def counts(self) -> dict[str, int]:
        return await self._query(self._reader.counts())

    async def diagnose(self) -> list[Fact]:
        self._check_loop()
        facts = await diagnosis.diagnose(self._address, self._topology, self._reader)
        with suppress(RedisError, OSError, SemelError):  # reported already
            facts += [Fact("placement", problem, "error") for problem in await self._placement_problems()]
        return facts

    # -------------------------------------------------------------------------------------------------- internals

    async def _settle(self, settlements: Sequence[Settlement], confirmed: bool) -> list[bool]:
        def pack(batch: Sequence[Settlement], bucket: int) -> bytes:
            return codec.pack_settlements(self._names, batch, bucket, times, self._strict, pack_dead_letter)

        times = self._times()
        claims = [settlement.lease.claim for settlement in settlements]
        return await self._run_batch(settlements, claims, pack, confirmed=confirmed)

    async def _run_batch(
        self, items: Sequence[T], claims: Sequence[Claim], pack: Callable[[Sequence[T], int], bytes], confirmed: bool
    ) -> list[bool]:
        if not items:
            return []
        await self._ready(claims)
        groups = self._batches(items, claims)
        calls = [ScriptCall(group.bucket, partial(pack, group.items, group.bucket)) for group in groups]
        if not await self._dispatch.run(calls, confirmed=confirmed):
            raise LedgerUnavailable(self._unconfirmed("writes"))
        return _in_order(groups, [codec.unpack_answers(call.reply) for call in calls])

    def _batches(self, items: Sequence[T], claims: Sequence[Claim]) -> list[_ScriptBatch[T]]:
        """Split items into scripts, in order: at most KEYS_MAX items each, and in a Cluster items of one slot."""
        if not self._names.in_cluster:
            starts = range(0, len(items), KEYS_MAX)
            return [_ScriptBatch(0, items[at : at + KEYS_MAX], None) for at in starts]
        buckets: dict[int, list[int]] = {}
        for at, claim in enumerate(claims):
            buckets.setdefault(self._names.bucket(claim), []).append(at)
        return [
            _ScriptBatch(bucket, [items[position] for position in chunk], chunk)
            for bucket, positions in buckets.items()
            for at in range(0, len(positions), KEYS_MAX)
            if (chunk := positions[at : at + KEYS_MAX])
        ]

    async def _ready(self, claims: Sequence[Claim]) -> None:
        """Check the event loop, and register the placement of handlers that are used for the first time."""
        self._check_loop()
        if {claim.handler for claim in claims} - self._registered:
            await self._register_placement(sorted({claim.handler for claim in claims} - self._registered))

    async def _check_servers(self) -> None:
        """Check periodically that the servers do not evict keys: that setting may change at any time. Only claims
        check, because outcomes must be recorded in any case."""
        if time.monotonic() < self._check_due:
            return
        self._check_due = time.monotonic() + CHECK_S
        with suppress(RedisError, OSError, LedgerUnavailable):  # the claim itself reports a server that does not reply
            async with asyncio.timeout(self._address.timeout_s / DISCOVERY_SHARE):
                for node in await self._topology.all_masters():
                    try:
                        check_server(parse_info(await node.ask("INFO")), self._address, node.shown)
                    except ConfigError:
                        self._check_due = 0.0
                        raise

    async def _register_placement(self, handlers: list[str]) -> None:
        """Store the placement of handlers at their first use. With another placement their keys would not be found."""
        commands = [("HSETNX", b"\0format", FORMAT), ("HGET", b"\0format")]
        for handler in handlers:
            name = codec.storable(handler)
            commands += [("HSETNX", name, self._names.placement_for(handler)), ("HGET", name)]
        calls = [ScriptCall(0, partial(command, name, self._names.placement, *rest)) for name, *rest in commands]
        for call in calls:  # one after the other: each is retried until it has a reply
            await self._dispatch.run([call])
        version, *known = [call.reply for call in calls[1::2]]
        shown, prefix = self._address.shown, self._address.prefix
        if version != FORMAT:
            raise ConfigError(f"{shown}: {prefix} has data format {version!r}; this Semel supports {FORMAT!r}")
        for handler, placement in zip(handlers, known, strict=True):
            if placement != self._names.placement_for(handler):
                raise ConfigError(f"{shown}: {_misplaced(handler, placement)}")
        self._registered.update(handlers)

    async def _placement_problems(self) -> list[str]:
        """Handlers whose stored placement differs from the URL's."""
        fields = await (await self._topology.node(0)).ask("HGETALL", self._names.placement)
        pairs = zip(fields[::2], fields[1::2], strict=True)
        handlers = {name.decode(errors="replace"): placement for name, placement in pairs}
        return [
            _misplaced(handler, placement)
            for handler, placement in sorted(handlers.items())
            if handler != "\0format" and placement != self._names.placement_for(handler)
        ]

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ConfigError("a Redis ledger belongs to the event loop that used it first: open one for each loop")

    def _times(self) -> Times:
        return Times(b"", 0) if self._clock is None else Times(b"%d" % self._clock(), GRACE_MS)

    async def _release_grants(self, verdicts: Sequence[Verdict]) -> None:
        """Release grants that no handler will run under, so that they neither block until expiry nor count as
        attempts."""
        unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        with suppress(SemelError):
            await self._settle(unused, confirmed=False)

    def _unconfirmed(self, what: str) -> str:
        required = f"{self._address.strict} replicas" + (" with fsync" if self._address.fsync else "")
        return (
            f"{self._address.shown}: strict={self._address.strict}: fewer than {required} have the {what}; Semel "
            "accepts nothing until they do: start them again, or lower strict"
        )

    async def _decide(self, digest: bytes, decision: int, reason: str, by: str) -> bool:
        """Decide the newest undecided dead letter, if it is unchanged since it was read. Otherwise read again."""
        while True:
            bucket, dead_letters = await self._reader.dead_letters_of(digest)
            dead_letter = undecided(dead_letters)
            if dead_letter is None:
                return False
            head = self._names.heads[bucket]
            content = dead_letter.content
            index = self._names.uncertain if content.uncertain else self._names.dead
            aliases = self._names.alias_records(content.handler.decode(), bucket, content.aliases)
            keys = [head + DEAD_LETTERS + digest, index[bucket], head + RECORD + digest, *aliases]
            times = self._times()
            packed = pack_decision(by, reason)
            arguments = [times.now, times.grace, dead_letter.token, dead_letter.stored, b"%d" % decision, packed]
            call = ScriptCall(bucket, partial(script_call, SCRIPTS["decide"].sha, keys, arguments, ()))
            await self._dispatch.run([call])
            if call.reply:
                return True
            _, current = await self._reader.dead_letters_of(digest)
            if undecided(current) == dead_letter:
                return False  # another record of the key is settled now

    async def _undo(self, digest: bytes, reason: str, by: str) -> bool:
        """Delete the record of a done key, if it is unchanged since it was read. Otherwise read again."""
        seen = None
        while (found := await self._reader.find_done(digest)) is not None and found != seen:
            bucket, record = seen = found
            entry = entry_from_record(digest, record)
            assert entry is not None
            copies = await self._reader.alias_copies(record)
            head = self._names.heads[bucket]
            keys = [head + DEAD_LETTERS + digest, head + RECORD + digest, *copies]
            content = pack_done(entry, [name[-DIGEST_BYTES:] for name in copies])
            times = self._times()
            arguments = [times.now, times.grace, record, content, pack_decision(by, reason)]
            call = ScriptCall(bucket, partial(script_call, SCRIPTS["undo"].sha, keys, arguments, ()))
            await self._dispatch.run([call])
            if call.reply:
                return True
        return False  # the key is not done, or its retention is over

    async def _query(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a query of an operator: a connection error is reported, not retried."""
        try:
            self._check_loop()
            return await work
        except (RedisError, OSError) as error:
            await self._topology.rediscover()
            raise LedgerUnavailable(f"{self._address.shown}: {error}") from error
        finally:
            work.close()  # if it was not started


def _in_order(groups: Sequence[_ScriptBatch[Any]], answers: Sequence[list[T]]) -> list[T]:
    """The answers of all scripts, in the order of the original batch."""
    if len(groups) == 1:
        return answers[0]
    if groups[0].positions is None:
        return [answer for batch in answers for answer in batch]
    by_position = {
        position: answer
        for group, batch in zip(groups, answers, strict=True)
        for position, answer in zip(group.positions or (), batch, strict=True)
    }
    return [by_position[position] for position in range(len(by_position))]


def _misplaced(handler: str, placement: bytes) -> str:
    if placement == b"together":
        remedy = f"Add together={handler} to the URL again."
    else:
        remedy = f"Remove together={handler} (or *) from the URL, or use another prefix=."
    return (
        f"the keys of handler {handler!r} are placed {placement.decode()}, but the URL places them otherwise, so its "
        f"stored keys would not be found. {remedy}"
    )
