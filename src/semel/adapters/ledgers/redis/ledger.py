"""The face of the Redis ledger: a batch becomes a few scripts, each decides for many keys; their answers become values.

On one server a script takes up to 128 keys; in a Cluster those of one slot, sent to all nodes at the same time.
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

from semel.adapters.ledgers.redis import codec, diagnosis
from semel.adapters.ledgers.redis.address import Address, read_url
from semel.adapters.ledgers.redis.catalog import Reader, entry_of, key_of
from semel.adapters.ledgers.redis.codec import Times
from semel.adapters.ledgers.redis.dispatch import Call, Dispatch
from semel.adapters.ledgers.redis.guarantees import traits_of
from semel.adapters.ledgers.redis.letters import DISCARD, REPLAY, pack_decision, pack_done, pack_letter, undecided
from semel.adapters.ledgers.redis.node import check, facts_of
from semel.adapters.ledgers.redis.placement import BUCKETS, LETTERS, RECORD, Places
from semel.adapters.ledgers.redis.resp import command, script_call
from semel.adapters.ledgers.redis.scripts import SCRIPTS
from semel.adapters.ledgers.redis.sweep import Sweep
from semel.adapters.ledgers.redis.topology import PATIENCE, topology_of
from semel.ports import Asked, Entry
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.key import DIGEST_BYTES
from semel.values.outcome import Release

T = TypeVar("T")

MEMORY_BYTES = 180  # MEMORY USAGE of a settled key: a fingerprint, a text of 36 bytes, no result. Measured: 166
KEYS_MAX = 128  # of a script: the server does nothing else meanwhile, for about half a millisecond
NONCE_BYTES = 6
LOOK_S = 60.0  # between two looks at the servers' settings
GRACE_MS = 3_600_000  # with a clock of the tests' own the server's must not run out first
FORMAT = b"1"


class _Group(NamedTuple, Generic[T]):
    """What goes into one script. `places`: where in the batch it was; None: the groups follow each other."""

    bucket: int
    asked: Sequence[T]
    places: Sequence[int] | None


class RedisLedger:
    """Redis or Valkey: one server, a Sentinel's master, or a Cluster. Belongs to the event loop that uses it first."""

    def __init__(
        self,
        address: Address,
        *,
        clock: Callable[[], int] | None = None,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.traits = traits_of(address)
        self._address = address
        self._clock = clock
        self.together = frozenset(address.together) if address.kind == "cluster" else None  # None: all keys are
        self._places = Places(address.prefix, address.together, in_cluster=address.kind == "cluster")
        self._topology = topology_of(address)
        self._dispatch = Dispatch(address, self._topology, observe)
        self._reader = Reader(self._places, self._topology)
        self._sweep = Sweep(self._reader, self._topology, self._dispatch, self._places, thorough=clock is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look_at = 0.0
        self._placed: set[str] = set()  # handlers whose placement the store agrees with
        self._strict = b"1" if address.strict or address.fsync else b"0"
        self._step = BUCKETS if self._places.in_cluster else 1

    @classmethod
    def from_url(
        cls, url: str, *, clock: Callable[[], int] | None = None, observe: Callable[[str], None] | None = None
    ) -> RedisLedger:
        """`clock`: for tests; else the store's own time counts. `observe` is told what is asked again, and why."""
        return cls(read_url(url), clock=clock, observe=observe)

    # ------------------------------------------------------------------------------------------------------ ledger

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        await self._ready(claims)
        await self._look()
        if not claims:
            await self._write_nothing()
            return []
        times = self._times()
        groups = self._grouped(claims, claims)

        def pack(group: _Group[Claim]) -> bytes:
            nonce = os.urandom(NONCE_BYTES)
            return codec.pack_claims(self._places, group.asked, group.bucket, nonce, times, self._strict)

        calls = [Call(group.bucket, partial(pack, group)) for group in groups]
        try:
            confirmed = await self._dispatch.run(calls, confirmed=True)
        except SemelError:  # of several scripts, or several servers, some may have granted: nobody will hear of it
            for verdicts in self._verdicts(groups, calls):
                await self._give_back(verdicts)
            raise
        verdicts = _in_order(groups, self._verdicts(groups, calls))
        if not confirmed:
            await self._give_back(verdicts)
            raise LedgerUnavailable(self._unconfirmed("granted"))
        return verdicts

    async def _write_nothing(self) -> None:
        """The neutral write of strict mode, at every server."""

        def pack(bucket: int) -> bytes:
            return codec.pack_claims(self._places, [], bucket, bytes(NONCE_BYTES), self._times(), b"1")

        buckets = range(BUCKETS if self._places.in_cluster else 1)
        await self._dispatch.run([Call(bucket, partial(pack, bucket)) for bucket in buckets])

    def _verdicts(self, groups: Sequence[_Group[Claim]], calls: Sequence[Call]) -> list[list[Verdict]]:
        return [
            codec.unpack_verdicts(call.reply, group.asked, self._step) if call.reply is not None else []
            for group, call in zip(groups, calls, strict=True)
        ]

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self._settle(settlements, confirmed=True)

    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        def pack(some: Sequence[Lease], bucket: int) -> bytes:
            return codec.pack_renewals(self._places, some, bucket, times, self._strict)

        times = self._times()
        return await self._answers(leases, [lease.claim for lease in leases], pack, confirmed=True)

    async def purge(self, limit: int) -> int:
        await self._ready([])
        return await self._asked(self._sweep.purge(limit, self._times()))

    async def close(self) -> None:
        """Whoever uses it afterwards may do so on another loop."""
        await self._topology.close()
        self._loop = None

    # ----------------------------------------------------------------------------------------- letters and catalog

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        """With `force` in two steps: between them the key is as new, and its letter is listed still."""
        again = force and await self._asked(self._undo(key_of(key), reason, by))
        return await self._asked(self._decide(key_of(key), REPLAY, reason, by)) or again

    async def discard(self, key: str, reason: str, by: str) -> bool:
        return await self._asked(self._decide(key_of(key), DISCARD, reason, by))

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
        asked = Asked(
            state=state,
            limit=limit,
            handler=handler,
            tenant=tenant,
            reason=reason,
            since_ms=since_ms,
            until_ms=until_ms,
        )
        return await self._asked(self._reader.entries(asked))

    async def history(self, key: str) -> list[Entry]:
        return await self._asked(self._reader.history(key_of(key)))

    async def counts(self) -> dict[str, int]:
        return await self._asked(self._reader.counts())

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the store, for `semel doctor`. A value that begins with "error: " or "warning: " is one."""
        self._check_loop()
        facts = await diagnosis.diagnose(self._address, self._topology, self._reader)
        with suppress(RedisError, OSError, SemelError):  # said already
            facts += [("placement", f"error: {wrong}") for wrong in await self._misplaced()]
        return facts

    # ------------------------------------------------------------------------------------------------- its parts

    async def _settle(self, settlements: Sequence[Settlement], confirmed: bool) -> list[bool]:
        def pack(some: Sequence[Settlement], bucket: int) -> bytes:
            return codec.pack_settlements(self._places, some, bucket, times, self._strict, pack_letter)

        times = self._times()
        claims = [settlement.lease.claim for settlement in settlements]
        return await self._answers(settlements, claims, pack, confirmed=confirmed)

    async def _answers(
        self, asked: Sequence[T], claims: Sequence[Claim], pack: Callable[[Sequence[T], int], bytes], confirmed: bool
    ) -> list[bool]:
        if not asked:
            return []
        await self._ready(claims)
        groups = self._grouped(asked, claims)
        calls = [Call(group.bucket, partial(pack, group.asked, group.bucket)) for group in groups]
        if not await self._dispatch.run(calls, confirmed=confirmed):
            raise LedgerUnavailable(self._unconfirmed("written"))
        return _in_order(groups, [codec.unpack_answers(call.reply) for call in calls])

    def _grouped(self, asked: Sequence[T], claims: Sequence[Claim]) -> list[_Group[T]]:
        """Which of them go into one script, in order: at most so many, and in a Cluster those of one slot."""
        if not self._places.in_cluster:
            starts = range(0, len(asked), KEYS_MAX)
            return [_Group(0, asked[at : at + KEYS_MAX], None) for at in starts]
        buckets: dict[int, list[int]] = {}
        for at, claim in enumerate(claims):
            buckets.setdefault(self._places.bucket(claim), []).append(at)
        return [
            _Group(bucket, [asked[place] for place in places[at : at + KEYS_MAX]], places[at : at + KEYS_MAX])
            for bucket, places in buckets.items()
            for at in range(0, len(places), KEYS_MAX)
        ]

    async def _ready(self, claims: Sequence[Claim]) -> None:
        """Before anything is asked: the right loop, and handlers whose keys are where the store knows them."""
        self._check_loop()
        if {claim.handler for claim in claims} - self._placed:
            await self._place(sorted({claim.handler for claim in claims} - self._placed))

    async def _look(self) -> None:
        """Whether the servers still keep what they are told: that is a setting, and may be changed at any time. Only
        claims ask: what has been done already must be written down in any case."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        with suppress(RedisError, OSError, LedgerUnavailable):  # whoever does not answer is told about by the claim
            async with asyncio.timeout(self._address.timeout_s / PATIENCE):
                for node in await self._topology.all_masters():
                    try:
                        check(facts_of(await node.ask("INFO")), self._address, node.shown)
                    except ConfigError:
                        self._look_at = 0.0
                        raise

    async def _place(self, handlers: list[str]) -> None:
        """The placement of a handler is written down at its first use. Another one later would forget its keys."""
        asked = [("HSETNX", b"\0format", FORMAT), ("HGET", b"\0format")]
        for handler in handlers:
            name = codec.storable(handler)
            asked += [("HSETNX", name, self._places.placement_of(handler)), ("HGET", name)]
        calls = [Call(0, partial(command, what, self._places.placement, *rest)) for what, *rest in asked]
        for call in calls:  # one after the other: each is asked again until it is answered
            await self._dispatch.run([call])
        version, *known = [call.reply for call in calls[1::2]]
        shown, prefix = self._address.shown, self._address.prefix
        if version != FORMAT:
            raise ConfigError(f"{shown}: {prefix} is written in format {version!r}, this Semel knows {FORMAT!r}")
        for handler, placement in zip(handlers, known, strict=True):
            if placement != self._places.placement_of(handler):
                raise ConfigError(f"{shown}: {_misplaced(handler, placement)}")
        self._placed.update(handlers)

    async def _misplaced(self) -> list[str]:
        """Handlers whose keys are elsewhere than the URL says now."""
        found = await (await self._topology.node(0)).ask("HGETALL", self._places.placement)
        handlers = {name.decode(errors="replace"): kept for name, kept in zip(found[::2], found[1::2], strict=True)}
        return [
            _misplaced(handler, placement)
            for handler, placement in sorted(handlers.items())
            if handler != "\0format" and placement != self._places.placement_of(handler)
        ]

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise ConfigError("a Redis ledger belongs to the event loop that used it first: open one for each loop")

    def _times(self) -> Times:
        return Times(b"", 0) if self._clock is None else Times(b"%d" % self._clock(), GRACE_MS)

    async def _give_back(self, verdicts: Sequence[Verdict]) -> None:
        """Nothing runs under these grants: they need not lapse first, and count as nobody's attempts."""
        unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        with suppress(SemelError):
            await self._settle(unused, confirmed=False)

    def _unconfirmed(self, what: str) -> str:
        wanted = f"{self._address.strict} replicas" + (" with fsync" if self._address.fsync else "")
        return (
            f"{self._address.shown}: strict={self._address.strict}: not {wanted} have what was {what}; nothing counts "
            "until they do: bring them back, or lower strict"
        )

    async def _decide(self, digest: bytes, decision: int, reason: str, by: str) -> bool:
        """What is decided about is what was read: whoever is slower reads again."""
        while True:
            bucket, letters = await self._reader.letters_of(digest)
            letter = undecided(letters)
            if letter is None:
                return False
            head = self._places.heads[bucket]
            index = self._places.uncertain if letter.kept.uncertain else self._places.dead
            aliases = self._places.beside(letter.kept.handler.decode(), bucket, letter.kept.aliases)
            keys = [head + b"l" + digest, index[bucket], head + RECORD + digest, *aliases]
            times = self._times()
            told = pack_decision(by, reason)
            arguments = [times.now, times.grace, letter.token, letter.stored, b"%d" % decision, told]
            call = Call(bucket, partial(script_call, SCRIPTS["decide"].sha, keys, arguments, ()))
            await self._dispatch.run([call])
            if call.reply:
                return True
            _, now = await self._reader.letters_of(digest)
            if undecided(now) == letter:
                return False  # another record answers for the key by now

    async def _undo(self, digest: bytes, reason: str, by: str) -> bool:
        """What is done steps back, as it was read: whoever is slower reads again."""
        seen = None
        while (found := await self._reader.done_of(digest)) is not None and found != seen:
            bucket, record = seen = found
            entry = entry_of(digest, record)
            assert entry is not None
            copies = await self._reader.copies_of(record)
            head = self._places.heads[bucket]
            keys = [head + LETTERS + digest, head + RECORD + digest, *copies]
            kept = pack_done(entry, [name[-DIGEST_BYTES:] for name in copies])
            times = self._times()
            arguments = [times.now, times.grace, record, kept, pack_decision(by, reason)]
            call = Call(bucket, partial(script_call, SCRIPTS["undo"].sha, keys, arguments, ()))
            await self._dispatch.run([call])
            if call.reply:
                return True
        return False  # it is not done, or not known any more

    async def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        """For people: an error of the connection is told, not tried again."""
        try:
            self._check_loop()
            return await work
        except (RedisError, OSError) as error:
            await self._topology.look_again()
            raise LedgerUnavailable(f"{self._address.shown}: {error}") from error
        finally:
            work.close()  # where it was not even begun


def _in_order(groups: Sequence[_Group[Any]], answers: Sequence[list[T]]) -> list[T]:
    """The answers of all groups, where their questions were."""
    if len(groups) == 1:
        return answers[0]
    if groups[0].places is None:
        return [answer for some in answers for answer in some]
    found = {
        place: answer
        for group, some in zip(groups, answers, strict=True)
        for place, answer in zip(group.places or (), some, strict=True)
    }
    return [found[place] for place in range(len(found))]


def _misplaced(handler: str, placement: bytes) -> str:
    return (
        f"the keys of handler {handler!r} are placed {placement.decode()}, and the URL says otherwise: its known keys "
        f"would not be found. {_remedy(handler, placement)}"
    )


def _remedy(handler: str, placement: bytes) -> str:
    if placement == b"together":
        return f"Add together={handler} to it, as before."
    return f"Take together={handler} (or *) out of it, or begin anew under another prefix=."
