"""The second flow: from the outbox to a provider, and back with what is known.

    take → what is due → guard and crossing → send → record

Each notification is carried by a task of its own, from top to bottom of `_carry`. Crossings and records of all tasks
travel together. No connection of the store is held while a provider is asked. The crossing is written, durably, before
the first byte leaves: a relay that dies before it has done nothing, one that dies after it leaves a doubt, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum
from typing import Protocol

from msgspec.structs import replace

from semel.core.batcher import Batcher
from semel.ports import Outbox, Provider
from semel.values import sending
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.outbox import (
    Absent,
    Crossed,
    Crossing,
    Dispatch,
    Found,
    Gate,
    Held,
    Lane,
    LookedUp,
    Lost,
    Record,
    Suppressed,
    Unclear,
    Witness,
    lane_of,
)
from semel.values.retry import backoff_s
from semel.values.sending import Accepted, Answer, Refused, Standing, Unknown

log = logging.getLogger("semel")

POLL_S = 0.25  # what other processes add, and what falls due
HELD_S = 1.0  # whoever is being sent now is known in a moment
MARGIN_S = 15.0  # a lease outlasts the slowest provider by this: crossing, recording, a store that is slow
STORE_DOWN_S = 1.0
MAX_AGE_S = 3 * 86_400.0


class Step(StrEnum):
    """The boundaries of this flow: between any two of them the process may die."""

    AFTER_TAKE = "after_take"
    BEFORE_CROSS = "before_cross"
    AFTER_CROSS = "after_cross"
    AFTER_SEND = "after_send"
    AFTER_RECORD = "after_record"


class Watch(Protocol):
    """Is told what becomes of dispatches. It must be quick, and it must not raise."""

    def sent(self, provider: str, seconds: float) -> None:
        """A provider was asked, and has answered or not, after so long."""

    def became(self, provider: str, outcome: str) -> None:
        """What was written of a dispatch: an outcome of `Record`, or "suppressed", "held", "lost"."""


class _Nobody:
    def sent(self, provider: str, seconds: float) -> None: ...

    def became(self, provider: str, outcome: str) -> None: ...


class Relay:
    """Lives on one event loop. `routes` names, for each channel, its providers in order."""

    def __init__(
        self,
        outbox: Outbox,
        providers: Mapping[str, Provider],
        routes: Mapping[str, Sequence[str]],
        *,
        random: Callable[[], float] = _random.random,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[str], None] | None = None,
        margin_s: float = MARGIN_S,
        max_age_s: float = MAX_AGE_S,
        watch: Watch | None = None,
    ) -> None:
        """`margin_s`: how much longer than the slowest provider may take a notification is in hand. `max_age_s`: what
        has not left by then expires, as if that were its `not_after`."""
        self._outbox = outbox
        self._providers = providers
        self._routes = routes
        self._random = random
        self._clock = clock
        self._observe = observe or (lambda step: None)
        self._max_age_ms = int(1000 * max_age_s)
        self._watch = watch or _Nobody()
        self._crossings: Batcher[Crossing, Gate] = Batcher(outbox.cross)
        self._records: Batcher[Record, bool] = Batcher(outbox.record)
        self._in_hand: dict[str, int] = dict.fromkeys(providers, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._stopping = False
        self._rooms = {name: asyncio.Semaphore(one.contract.concurrency) for name, one in providers.items()}
        slowest_s = max((provider.contract.timeout_s for provider in providers.values()), default=0.0)
        self._lease_ms = int(1000 * (slowest_s + margin_s))

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Take and carry until told to stop."""
        failures = 0
        while not self._stopping:
            self._awake.clear()
            try:
                taken = await self.begin()
            except Exception as error:  # whatever it is: a relay that has ended sends nothing any more
                failures += 1
                said = str(error) if isinstance(error, SemelError) else f"{type(error).__name__}: {error}"
                log.error("nothing can be sent, the outbox cannot be used now: %s", said)
                await self._until_awake(backoff_s(failures, self._random, STORE_DOWN_S, 30.0))
                continue
            failures = 0
            if not taken:
                await self._until_awake(POLL_S)

    async def run_once(self) -> int:
        """What is due now, to its end. Returns how many were carried."""
        total = 0
        while count := await self.begin():
            total += count
            if self._tasks:
                await asyncio.wait(list(self._tasks))
        return total

    async def begin(self) -> int:
        """Take what there is room for, and begin with it."""
        lanes = self._lanes()
        ends_at = self._clock() + self._lease_ms / 1000  # of the leases; not later, since they begin when it is asked
        dispatches = await self._outbox.take(lanes, self._lease_ms) if lanes else []
        if dispatches:
            self._observe(Step.AFTER_TAKE)
        for dispatch in dispatches:
            routed = self._routed(dispatch)
            self._count(routed, 1)  # before its task runs: the next take may come first
            task = asyncio.create_task(self._hold(routed, self._clock(), ends_at))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(dispatches)

    def wake(self) -> None:
        """There may be something to take."""
        self._awake.set()

    def begin_to_stop(self) -> None:
        self._stopping = True
        self._awake.set()

    async def stop(self, within_s: float) -> None:
        """Take no more, and let what is in hand end. What has not ended in time is left as it is: its lease lapses."""
        self.begin_to_stop()
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=within_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _until_awake(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._awake.wait()
        except TimeoutError:
            pass

    def _lanes(self) -> dict[str, Lane]:
        lanes: dict[str, Lane] = {}
        for name, provider in self._providers.items():
            contract = provider.contract
            if (room := contract.concurrency - self._in_hand[name]) > 0:
                lanes[name] = Lane(room, name, contract.per_second)
        for channel, names in self._routes.items():
            if names and names[0] in lanes:
                lanes[lane_of("", channel)] = lanes[names[0]]
        return lanes

    # ----------------------------------------------------------------------------------------------- one notification

    async def _hold(self, dispatch: Dispatch, taken_at: float, ends_at: float) -> None:
        """It counts against its provider's room while it is carried. What came by another lane may have to wait."""
        try:
            async with self._rooms.get(dispatch.standing.provider) or nullcontext():
                await self._carry(dispatch, taken_at, ends_at)
        except LedgerUnavailable as error:
            log.error("notification %s: its lease lapses, the outbox is out of reach: %s", dispatch.id.hex(), error)
        except Exception as error:  # a bug: its lease lapses, and nobody else is held up
            log.exception("notification %s: %s", dispatch.id.hex(), type(error).__name__)
        finally:
            self._count(dispatch, -1)
            self._awake.set()

    def _count(self, dispatch: Dispatch, by: int) -> None:
        name = dispatch.standing.provider
        self._in_hand[name] = self._in_hand.get(name, 0) + by

    async def _carry(self, dispatch: Dispatch, taken_at: float, ends_at: float) -> None:
        def now_ms() -> int:  # by the store's clock: relays do not compare theirs
            return dispatch.taken_ms + int(1000 * (self._clock() - taken_at))

        provider = self._providers.get(dispatch.standing.provider)
        if provider is None:
            await self._put_off(dispatch, f"there is no provider {dispatch.standing.provider!r} here", now_ms())
            return
        policy = dispatch.notification.policy or provider.contract.policy
        dispatch = replace(dispatch, standing=replace(dispatch.standing, policy=policy))
        standing, record = await self._due(dispatch, provider, now_ms)
        if record is not None:
            await self._record(record)
            return
        try:
            request = dispatch.request if dispatch.request is not None else provider.prepare(dispatch)
        except ConfigError as error:
            await self._record(
                _record_of(dispatch, standing, Refused(str(error), final=True), provider, now_ms(), _none)
            )
            return

        if (early_ms := dispatch.slot_ms - now_ms()) > 0:
            await asyncio.sleep(early_ms / 1000)
        self._observe(Step.BEFORE_CROSS)
        crossed = sending.crossed(standing, now_ms())
        match await self._cross(Crossing(dispatch, crossed, request)):
            case Crossed():
                self._observe(Step.AFTER_CROSS)
                if (begun := self._clock()) >= ends_at:  # this process was stopped for long: another relay may have it
                    await self._take_back(dispatch, "its lease was over when it had crossed")
                    return
                answer = await self._send(provider, dispatch, request)
                self._watch.sent(provider.contract.name, self._clock() - begun)
                self._observe(Step.AFTER_SEND)
                await self._record(_record_of(dispatch, crossed, answer, provider, now_ms(), self._random))
                self._observe(Step.AFTER_RECORD)
            case Held(by=by):
                later = replace(standing, due_ms=now_ms() + int(1000 * HELD_S), reason=f"waits for {by.hex()}")
                self._watch.became(provider.contract.name, "held")
                await self._record(Record(dispatch, later, "released"))
            case (Suppressed() | Lost()) as gate:  # the outbox has written it, or somebody else has it
                self._watch.became(provider.contract.name, type(gate).__name__.lower())

    async def _due(
        self, dispatch: Dispatch, provider: Provider, now_ms: Callable[[], int]
    ) -> tuple[Standing, Record | None]:
        """What it was taken for. Without a record: it is to be sent."""
        standing, contract = dispatch.standing, provider.contract
        if dispatch.vanished:
            after = sending.lapsed(standing, contract, now_ms(), self._random)
            doubts = after.state == "uncertain" != standing.state  # what was in doubt before is not in doubt twice
            return after, Record(dispatch, after, "unknown" if doubts else "released", after.reason)
        if standing.state == "uncertain":
            match standing.exit:
                case "replay":
                    standing = sending.replayed(standing)
                case "look_up":
                    return standing, self._looked_up(dispatch, await provider.look_up(dispatch), contract, now_ms())
                case _:
                    after = sending.overdue(standing, now_ms())
                    return after, Record(dispatch, after, "policy", after.reason)
        ready = sending.ready(standing, contract, now_ms(), self._random)
        if ready.state != "pending":
            return ready, Record(dispatch, ready, "released", ready.reason)
        return ready, None

    def _looked_up(self, dispatch: Dispatch, said: LookedUp, contract: sending.Contract, now_ms: int) -> Record:
        standing = dispatch.standing
        match said:
            case Found(reference=reference):
                why = f"its look-up found {reference}, which is another's message"
                otherwise = sending.unclear(standing, why, contract, now_ms, self._random)
                return Record(dispatch, sending.found(standing, reference), "accepted", "look-up", reference, otherwise)
            case Absent():
                return Record(dispatch, sending.absent(standing, now_ms), "absent", "look-up")
            case Unclear(reason=reason):
                after = sending.unclear(standing, reason, contract, now_ms, self._random)
                return Record(dispatch, after, "unclear", reason)

    def _routed(self, dispatch: Dispatch) -> Dispatch:
        """What names no provider gets those of its channel, the first time it is taken. Nothing waits for ever."""
        standing = dispatch.standing
        if dispatch.added_ms:
            standing = sending.aging(standing, dispatch.added_ms + self._max_age_ms)
        if not standing.provider:
            first, *others = self._routes.get(dispatch.notification.channel) or [""]
            standing = replace(standing, provider=first, others=tuple(others))
        return replace(dispatch, standing=standing)

    async def _put_off(self, dispatch: Dispatch, reason: str, now_ms: int) -> None:
        """Another relay, or another version of the settings, may know what to do with it."""
        later = replace(dispatch.standing, due_ms=now_ms + int(1000 * STORE_DOWN_S * 30), reason=reason)
        await self._record(Record(dispatch, later, "released", reason))

    # ------------------------------------------------------------------------------------------------------ its steps

    async def _cross(self, crossing: Crossing) -> Gate:
        try:
            (gate,) = await self._crossings.ask([crossing])
        except LedgerUnavailable:
            await self._take_back(crossing.dispatch, "the crossing was not answered")
            return Lost()
        return gate

    async def _take_back(self, dispatch: Dispatch, reason: str) -> None:
        """It has crossed, or may have; but nothing has left, and nothing will: told in time, that is no doubt."""
        await self._record(Record(dispatch, replace(dispatch.standing, claims=0), "released", reason))

    async def _send(self, provider: Provider, dispatch: Dispatch, request: bytes) -> Answer:
        contract = provider.contract
        try:
            async with asyncio.timeout(contract.timeout_s + 1.0):  # the provider's own comes first
                return await provider.send(dispatch, request)
        except TimeoutError:
            return Unknown(f"no answer within {contract.timeout_s:g} s")
        except Exception as error:  # a bug of the provider's adapter, after the crossing
            log.exception("provider %s", contract.name)
            return Unknown(f"{type(error).__name__} in the adapter")

    async def _record(self, record: Record) -> None:
        """Until the outbox has it: what is known now nobody else knows."""
        if await self._insist(record):
            self._watch.became(record.standing.provider, record.outcome)
            return
        self._watch.became(record.standing.provider, "lost")
        if (
            record.outcome == "accepted" and record.otherwise is None
        ):  # too late for its lease, and evidence all the same
            late = Witness("accepted", record.dispatch.id, record.standing.provider, record.reference, evidence="late")
            await self._outbox.witness([late])

    async def _insist(self, record: Record) -> bool:
        failures = 0
        while True:
            try:
                (held,) = await self._records.ask([record])
            except LedgerUnavailable:
                failures += 1
                if self._stopping or 1000 * STORE_DOWN_S * 2**failures > self._lease_ms:
                    raise
                await asyncio.sleep(backoff_s(failures, self._random, STORE_DOWN_S, 10.0))
            else:
                return held


def _record_of(
    dispatch: Dispatch,
    standing: Standing,
    answer: Answer,
    provider: Provider,
    now_ms: int,
    random: Callable[[], float],
) -> Record:
    after = sending.answered(standing, answer, provider.contract, now_ms, random)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "limited" if answer.limited else "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def _none() -> float:
    return 0.0
