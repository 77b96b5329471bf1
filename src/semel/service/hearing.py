"""Callbacks: what providers say of messages, into the outbox.

    verified body → the provider's reports → whose message is it? → Outbox.witness → answer

A state moves up or not at all, and a word is kept once; so a callback that comes twice, late or out of order changes
nothing, and neither does one that comes again because we died before it was answered. It is answered 200 when its words
are durable, or when there is nothing here that they could be about. What cannot be written now is to come again.

Our id is in nearly every callback, and was durable before the message left. Some providers name only their own
reference, which we learn from their answer to the send, and their callback may overtake that. So such a reference is
waited for, then asked for again while it is young, and taken for a stranger's afterwards: nobody comes for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from semel.core.batcher import Batcher
from semel.core.outboxes import StoredOutbox
from semel.service.answers import Answer, refused
from semel.service.doors import Door
from semel.service.trouble import Trouble
from semel.values.errors import MalformedEvent, SemelError
from semel.values.log import log
from semel.values.outbox import Shown, Witness
from semel.values.sending import State

PATIENCE_S = 4.0  # for one round trip to the store; most providers wait for 15 s in all
AGAIN_S = 5.0  # what a provider is asked to wait
CHUNK = 200  # words of one body that travel together: a large one does not hold up all others
READS = 8  # at a time: the store's connections are for others too
WAITS_S = (0.1, 0.3, 0.6)  # for the answer to a send that its callback has overtaken
WAITING_MAX = 32  # at a time, since each of them has one of the turns
YOUNG_S = 60.0  # longer than a send and its record may take
STRANGERS_MAX = 10_000
SAY_S = 600.0  # others may send by the same account: no trouble, but worth a line now and then

LEFT: tuple[State, ...] = ("sending", "uncertain", "accepted", "delivered", "undelivered")
_JSON = (b"content-type", b"application/json")


@runtime_checkable
class ByReference(Protocol):
    """A provider whose callbacks may name its own reference only."""

    by_reference: bool


class Hearing:
    """One for an outbox, on one event loop."""

    def __init__(self, outbox: StoredOutbox, clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._looks: Batcher[bytes, Shown | None] = Batcher(self._look)
        self._words: Batcher[Witness, State | None] = Batcher(self._write)
        self._waiting = 0
        self._strangers = _Strangers(clock)
        self._unmatched = _Tally("callback_unmatched", clock)
        self._misdirected = _Tally("callback_misdirected", clock)
        self._down = Trouble("callbacks_unavailable", "callbacks_recovered")

    async def hear(self, door: Door, headers: Mapping[str, str], body: bytes, query: str) -> Answer:
        """The answer to a verified callback."""
        assert door.hears is not None
        try:
            words = door.hears.reports(headers, body, query)
        except MalformedEvent as error:
            return refused(400, "Not a callback of this provider", str(error))
        try:
            unmatched = await self._tell(door, words)
            if unmatched and isinstance(door.hears, ByReference) and door.hears.by_reference:
                unmatched = await self._wait_for(door, unmatched)
                if self._strangers.are_young([one for one in unmatched if one.id is None]):
                    return refused(door.overload_status, "This message is not known yet", "Send it again", AGAIN_S)
        except (SemelError, TimeoutError) as error:
            self._down.is_there(str(error) or f"no answer within {PATIENCE_S:g} s")
            return refused(door.overload_status, "It cannot be recorded now", "Send it again", AGAIN_S)
        self._down.is_over()
        self._unmatched.add(door.path, len(unmatched))
        return _heard(len(words), len(unmatched))

    async def _wait_for(self, door: Door, words: list[Witness]) -> list[Witness]:
        """Those that are still unknown when the ordinary race is over."""
        if self._waiting >= WAITING_MAX:
            return words
        self._waiting += 1
        try:
            for wait_s in WAITS_S:
                await asyncio.sleep(wait_s)
                if not (words := await self._tell(door, words)):
                    break
        finally:
            self._waiting -= 1
        return words

    async def _tell(self, door: Door, words: Sequence[Witness]) -> list[Witness]:
        """Returns those that are about nothing here. What was told before a failure is told again, and changes
        nothing."""
        unmatched: list[Witness] = []
        for start in range(0, len(words), CHUNK):
            async with asyncio.timeout(PATIENCE_S):
                unmatched += await self._tell_some(door, words[start : start + CHUNK])
        return unmatched

    async def _tell_some(self, door: Door, words: Sequence[Witness]) -> list[Witness]:
        left = await self._left(door, {one.id for one in words if one.id is not None})
        unmatched = [one for one in words if one.id is not None and one.id not in left]
        named = [replace(one, provider=_sender(*left[one.id], one)) for one in words if one.id in left]
        unmatched += await self._witness(named, {id for id, (shown, _) in left.items() if shown.state == "failed"})
        rest = [one for one in words if one.id is None]
        for name in door.speaks_for:
            rest = await self._witness([replace(one, provider=name) for one in rest])
        return unmatched + rest

    async def _witness(self, words: Sequence[Witness], failed: Collection[bytes] = ()) -> list[Witness]:
        """`failed`: ids that were failed before, and are logged already."""
        if not words:
            return []
        states = await self._words.ask(words)
        for one, state in zip(words, states, strict=True):
            if one.says == "refused" and state == "failed" and one.id not in failed:
                id = None if one.id is None else one.id.hex()
                log.error(
                    "notification_failed", notification_id=id, provider=one.provider, outcome="refused by callback"
                )
        return [one for one, state in zip(words, states, strict=True) if state is None]

    # ------------------------------------------------------------------------------------------------- whose is it?

    async def _left(self, door: Door, ids: Collection[bytes]) -> dict[bytes, tuple[Shown, list[str]]]:
        """Those messages that left by a provider of this door, and by which ones. A door speaks for no other: whoever
        may write here, by right or by mistake, moves nothing that somebody else has sent, or that has not left."""
        if not ids:
            return {}
        wanted = list(ids)
        found: dict[bytes, tuple[Shown, list[str]]] = {}
        for id, shown in zip(wanted, await self._looks.ask(wanted), strict=True):
            if shown is None:
                continue
            if names := _senders(shown, door.speaks_for):
                found[id] = shown, names
            else:
                self._misdirected.add(door.path, 1)
        return found

    # ---------------------------------------------------------------------------------------------------- the store

    async def _look(self, ids: Sequence[bytes]) -> list[Shown | None]:
        found: list[Shown | None] = []
        async with asyncio.timeout(PATIENCE_S):
            for start in range(0, len(ids), READS):
                found += await asyncio.gather(*map(self._outbox.show, ids[start : start + READS]))
        return found

    async def _write(self, words: Sequence[Witness]) -> list[State | None]:
        async with asyncio.timeout(PATIENCE_S):
            return await self._outbox.witness(words)


def _senders(shown: Shown, names: Sequence[str]) -> list[str]:
    """Those of them that have had it."""
    had = {attempt.provider for attempt in shown.attempts if attempt.crossed_ms}
    if shown.state in LEFT:
        had.add(shown.provider)
    return [name for name in names if name in had]


def _sender(shown: Shown, names: Sequence[str], word: Witness) -> str:
    """Of several names of one account: the one that has given this reference, or has it now. A refusal that names none
    may be about any of them, and is put where it moves nothing."""
    known = {attempt.provider for attempt in shown.attempts if word.reference and attempt.reference == word.reference}
    others = [name for name in names if name != shown.provider]
    if by_reference := [name for name in names if name in known]:
        return by_reference[0]
    if others and (word.says == "refused" or shown.provider not in names):
        return others[0]
    return shown.provider


class _Strangers:
    """References that nobody knew, and since when. Forgetting one costs a callback that comes once more."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: OrderedDict[tuple[str, str], float] = OrderedDict()

    def are_young(self, words: Sequence[Witness]) -> bool:
        """One of them, at least. From now on all of them grow older."""
        now, young = self._clock(), False
        for one in words:
            young |= now - self._since.setdefault((one.provider, one.reference), now) < YOUNG_S
            if len(self._since) > STRANGERS_MAX:
                self._since.popitem(last=False)
        return young


class _Tally:
    """How often something came that is no failure, in the log: a line at first, and one now and then."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        """`name` is that of its log event."""
        self._name = name
        self._clock = clock
        self._count: dict[str, int] = {}
        self._said: dict[str, float] = {}

    def add(self, path: str, count: int) -> None:
        if not count:
            return
        self._count[path] = self._count.get(path, 0) + count
        now = self._clock()
        if now - self._said.get(path, now - SAY_S) >= SAY_S:
            self._said[path] = now
            log.warning(self._name, endpoint=path, count=self._count.pop(path))


def _heard(reports: int, unmatched: int) -> Answer:
    said = {"status": "heard", "reports": reports, **({"unmatched": unmatched} if unmatched else {})}
    body = msgspec.json.encode(said)
    return Answer(200, [_JSON, (b"content-length", b"%d" % len(body))], body)
