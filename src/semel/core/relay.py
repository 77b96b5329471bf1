"""The second flow: from the outbox to a provider, and back with what is known.

    take → what is due → guard and crossing → send → record

Each notification is carried by a task of its own, from top to bottom of `_carry`. Crossings and records of all tasks
travel together. No connection of the store is held while a provider is asked. The crossing is written, durably, before
the first byte leaves: a relay that dies before it has done nothing, one that dies after it leaves a doubt, and says so.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from msgspec.structs import replace

from semel.core.asking import Asking
from semel.core.batcher import Batcher
from semel.core.provider_pauses import ProviderPauses
from semel.core.recording import answered, looked_up, request_of
from semel.core.rooms import Rooms
from semel.core.steady import steady_s
from semel.ports import Outbox, Provider
from semel.values import sending
from semel.values.errors import LeaseLost, LedgerUnavailable, SemelError
from semel.values.first_byte import checked_by
from semel.values.log import log
from semel.values.masking import hidden
from semel.values.outbox import (
    Crossed,
    Crossing,
    Dispatch,
    Gate,
    Held,
    Lost,
    Record,
    Suppressed,
    Witness,
)
from semel.values.retry import backoff_s
from semel.values.sending import Answer, ProviderAccess, Refused, Standing

POLL_S = 0.25  # what other processes add, and what falls due
ROOM_LOOKS, ROOM_LOOK_S = 5, 0.001  # little beside what any provider takes
MARGIN_S = 15.0  # a lease outlasts the slowest provider by this: crossing, recording, a store that is slow
STORE_DOWN_S = 1.0
KEPT_S = 3_600.0  # an answer that nobody else has is kept for so long, where the outbox is out of reach
LOOKS_SHARE = 0.9  # of what is left of a lease: what a look-up says has to be recorded in time
MAX_AGE_S = 3 * 86_400.0
CUT_S = 2.0  # for what has to be written when the time is over
MASKED_HERE_BYTES = 8 * 1024  # more would hold up the loop for milliseconds
DRAIN_S = 25.0  # longer than most providers take

A = TypeVar("A")
T = TypeVar("T")


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
        clock: Callable[[], float] = steady_s,
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
        self._contracts = {name: one.contract for name, one in providers.items()}
        self._access = ProviderAccess(self._contracts, routes)
        self._pauses = ProviderPauses(clock, random)
        self._random = random
        self._clock = clock
        self._observe = observe or (lambda step: None)
        self._max_age_ms = int(1000 * max_age_s)
        self._watch = watch or _Nobody()
        self._crossings: Batcher[Crossing, Gate] = Batcher(outbox.cross)
        self._records: Batcher[Record, bool] = Batcher(outbox.record, more=lambda: self._asking.sending > 0)
        self._asking = Asking()
        self._rooms = Rooms(self._contracts, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._taking = asyncio.Lock()
        self._stopping = False
        slowest_s = max((provider.contract.timeout_s for provider in providers.values()), default=0.0)
        self._lease_ms = int(1000 * (slowest_s + margin_s))

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Take and carry until told to stop."""
        failures = 0
        while not self._stopping:
            await self._until_room()
            self._awake.clear()
            try:
                taken = await self.begin()
            except Exception as error:  # whatever it is: a relay that has ended sends nothing any more
                failures += 1
                said = str(error) if isinstance(error, SemelError) else type(error).__name__
                next_in_s = backoff_s(failures, self._random, STORE_DOWN_S, 30.0)
                log.error("outbox_unavailable", failures=failures, next_in_s=round(next_in_s, 1), error=said)
                await self._until_awake(next_in_s)
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
        async with self._taking:
            self._access = ProviderAccess(self._contracts, self._pauses.routes(self._routes))
            lanes = self._pauses.lanes(self._rooms.lanes(self._access.routes), self._rooms.in_hand)
            ends_at = self._clock() + self._lease_ms / 1000  # not later: the leases begin after it is asked
            dispatches = await self._outbox.take(lanes, self._lease_ms) if lanes else []
            if dispatches:
                self._observe(Step.AFTER_TAKE)
            if self._stopping:  # told meanwhile
                await self._give_back(dispatches)
                return 0
            self._begin(dispatches, ends_at)
        return len(dispatches)

    def _begin(self, dispatches: Sequence[Dispatch], ends_at: float) -> None:
        for dispatch in dispatches:
            routed = self._routed(dispatch)
            self._rooms.take(routed.standing.provider)  # before its task runs: the next take may come first
            hold = self._move if self._is_moved(dispatch, routed) else self._hold
            task = asyncio.create_task(hold(routed, self._clock(), ends_at))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _give_back(self, dispatches: Sequence[Dispatch]) -> None:
        """As they were. What another relay has left behind stays taken: that it vanished must not be forgotten."""
        if mine := [Record(one, _untried(one), "released") for one in dispatches if not one.vanished]:
            await self._outbox.record(mine)

    def wake(self) -> None:
        """There may be something to take."""
        self._awake.set()

    def begin_to_stop(self) -> None:
        self._stopping = True
        self._awake.set()

    async def stop(self, within_s: float = DRAIN_S) -> None:
        """Take no more, begin with nothing, and let what is being sent end. What has not ended in time is cut off."""
        self.begin_to_stop()
        try:
            async with asyncio.timeout(within_s):
                async with self._taking:  # what the outbox is just handing over is in hand too
                    pass
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
        except TimeoutError:
            await self._cut()

    async def _cut(self) -> None:
        """The time is over. Nobody who is asked is waited for: that is unknown, and written, and the rest goes back.
        What cannot be written now either is left as it is: its lease lapses."""
        if self._asking.sending:
            log.warning("relay_sends_cut_off", uncertain=self._asking.sending)
        self._asking.cut()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=CUT_S)
        for task in late:
            task.cancel()
        if late:
            log.error("relay_notifications_abandoned", notifications=len(late))
            await asyncio.wait(late)

    async def _until_room(self) -> None:
        """A few places are not worth a round trip while others are about to be free: it is made for half of them, or
        a moment later. Whoever has little in hand does not wait."""
        for _ in range(ROOM_LOOKS):
            if self._rooms.mostly_free or self._stopping:
                return
            await asyncio.sleep(ROOM_LOOK_S)

    async def _until_awake(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._awake.wait()
        except TimeoutError:
            pass

    # ----------------------------------------------------------------------------------------------- one notification

    async def _hold(self, dispatch: Dispatch, taken_at: float, ends_at: float) -> None:
        """It has a place in its provider's room until that has answered. It may have to wait for one, and is given back
        where its lease would not outlast that: nobody has vanished then."""
        name = dispatch.standing.provider
        provider = self._providers.get(name)
        try:
            if provider is None:
                reason = "" if name else self._access.refusal(dispatch.notification)
                await self._record(_put_off(dispatch, reason or f"there is no provider {name!r} here"))
                return
            # Later than that it might still be under way when its lease is over, and another relay has it.
            if not await self._rooms.enter(name, ends_at - provider.contract.timeout_s):
                await self._give_back([dispatch])
                return
            try:
                record = await self._carry(dispatch, provider, taken_at, ends_at)
            finally:
                self._rooms.leave(name)
            if record is not None:
                await self._record(record)
                self._observe(Step.AFTER_RECORD)
        except LedgerUnavailable as error:
            log.error("notification_not_recorded", notification_id=dispatch.id.hex(), error=error)
        except Exception:  # a bug: its lease lapses, and nobody else is held up
            log.exception("notification_crashed", notification_id=dispatch.id.hex())
        finally:
            self._rooms.drop(name)
            self._awake.set()

    async def _move(self, dispatch: Dispatch, taken_at: float, ends_at: float) -> None:
        """Put it back under its own provider, whose concurrency and rate limit it has to wait for."""
        try:
            await self._record(Record(dispatch, dispatch.standing, "released"))
        except LedgerUnavailable as error:
            log.error("notification_not_recorded", notification_id=dispatch.id.hex(), error=error)
        finally:
            self._rooms.drop(dispatch.standing.provider)
            self._awake.set()

    async def _carry(self, dispatch: Dispatch, provider: Provider, taken_at: float, ends_at: float) -> Record | None:
        """What is to be written of it. None: the outbox has written it, or somebody else has it."""

        def now_ms() -> int:  # by the store's clock: relays do not compare theirs
            return dispatch.taken_ms + int(1000 * (self._clock() - taken_at))

        policy = dispatch.notification.policy or provider.contract.policy
        dispatch = replace(dispatch, standing=replace(dispatch.standing, policy=policy))
        standing, record = await self._due(dispatch, provider, now_ms, ends_at)
        if record is not None:
            return record
        notification = dispatch.notification
        if reason := provider.contract.refusal(notification.tenant, notification.sender):
            return _put_off(dispatch, reason)
        request = request_of(dispatch, provider)
        if isinstance(request, Refused):
            return answered(dispatch, standing, request, provider.contract, now_ms(), _none)

        if (early_ms := dispatch.slot_ms - now_ms()) > 0:
            await asyncio.sleep(early_ms / 1000)
        if self._stopping:  # it would hold up the end, or be cut off by it
            return Record(dispatch, _untried(dispatch), "released")
        self._observe(Step.BEFORE_CROSS)
        crossed = sending.crossed(standing, now_ms())
        try:
            gate = await _asked(self._crossings, self._outbox.cross, Crossing(dispatch, crossed, request))
        except LedgerUnavailable:
            return _taken_back(dispatch, "the crossing was not answered")
        match gate:
            case Crossed():
                self._observe(Step.AFTER_CROSS)
                if why := self._too_late(dispatch, standing, provider, ends_at):
                    return _taken_back(dispatch, why)
                try:
                    answer = await self._send(provider, dispatch, request, ends_at)
                except LeaseLost as error:
                    return _taken_back(dispatch, str(error))
                self._observe(Step.AFTER_SEND)
                self._pauses.answered(dispatch.standing.provider, answer, _reason_of(answer, dispatch))
                return answered(dispatch, crossed, answer, provider.contract, now_ms(), self._random)
            case Held(by=by):
                self._watch.became(provider.contract.name, "held")
                return Record(dispatch, sending.held(dispatch.standing, by, dispatch.added_ms, now_ms()), "released")
            case Suppressed() | Lost():
                self._watch.became(provider.contract.name, type(gate).__name__.lower())
                return None

    async def _due(
        self, dispatch: Dispatch, provider: Provider, now_ms: Callable[[], int], ends_at: float
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
                case "look_up" if self._stopping:  # as with a crossing: it would hold up the end
                    return standing, Record(dispatch, standing, "released")
                case "look_up":
                    said = await self._asking.look_up(provider, dispatch, LOOKS_SHARE * (ends_at - self._clock()))
                    return standing, looked_up(dispatch, said, contract, now_ms(), self._random)
                case _:
                    after = sending.overdue(standing, now_ms())
                    return after, Record(dispatch, after, "policy", after.reason)
        ready = sending.ready(standing, contract, now_ms(), self._random)
        if ready.state != "pending":
            return ready, Record(dispatch, ready, "released", ready.reason)
        return ready, None

    def _routed(self, dispatch: Dispatch) -> Dispatch:
        """What names no provider gets those of its channel, the first time it is taken. Nothing waits for ever."""
        standing = dispatch.standing
        if dispatch.added_ms:
            # Added by the clock of this boot or of an earlier one: of both readings the one that lets it live longer.
            ahead_ms = max(0, dispatch.ahead_ms)
            standing = sending.aging(standing, dispatch.added_ms + self._max_age_ms + ahead_ms)
        if not standing.provider:
            first, *others = self._access.providers_for(dispatch.notification) or [""]
            standing = replace(standing, provider=first, others=tuple(others))
        return replace(dispatch, standing=standing)

    def _is_moved(self, dispatch: Dispatch, routed: Dispatch) -> bool:
        """Whether its tenant's provider is another one than the first of its channel, whose lane it was taken from."""
        if dispatch.standing.provider or dispatch.vanished or not routed.standing.provider:
            return False
        return routed.standing.provider != self._access.routes[dispatch.notification.channel][0]

    # ------------------------------------------------------------------------------------------------------ its steps

    def _too_late(self, dispatch: Dispatch, standing: Standing, provider: Provider, ends_at: float) -> str:
        """Why it is not sent after all, though it has crossed: the process was stopped, or its slot or the outbox kept
        it waiting. Empty: it is in time."""
        left_s = ends_at - self._clock()
        if self._asking.is_cut:
            return "its relay was told to end when it had crossed"
        if left_s < provider.contract.timeout_s:
            return "too little of its lease was left when it had crossed: another relay may have it before it is over"
        latest_ms = dispatch.taken_ms + self._lease_ms - int(1000 * left_s)  # also where the outbox answered slowly
        if sending.ready(standing, provider.contract, latest_ms, _none).state != "pending":
            return "its time, or that of its key, was over when it had crossed"
        return ""

    async def _send(self, provider: Provider, dispatch: Dispatch, request: bytes, ends_at: float) -> Answer:
        def check() -> None:
            if self._clock() >= ends_at:
                raise LeaseLost("its lease ended before the first byte was sent: another relay may have it")

        begun = self._clock()
        at_most_s = min(provider.contract.timeout_s + 1.0, ends_at - begun)  # the provider's own comes first
        try:
            with checked_by(check):
                return await self._asking.send(provider, dispatch, request, at_most_s)
        finally:
            took_s = self._clock() - begun
            self._rooms.took(dispatch.standing.provider, took_s)
            self._watch.sent(provider.contract.name, took_s)

    async def _record(self, record: Record) -> None:
        """Until the outbox has it: what is known now nobody else knows."""
        is_answer = record.outcome == "accepted" and record.otherwise is None
        held = await self._insist(lambda: _asked(self._records, self._outbox.record, record), is_answer)
        if held:
            await _log_end(record)
        self._watch.became(record.dispatch.standing.provider, record.outcome if held else "lost")
        if is_answer and not held:  # too late for its lease, and evidence all the same
            late = Witness("accepted", record.dispatch.id, record.standing.provider, record.reference, evidence="late")
            await self._insist(lambda: self._outbox.witness([late]), is_answer)

    async def _insist(self, ask: Callable[[], Awaitable[T]], is_answer: bool) -> T:
        """That a provider has accepted something is worth knowing after its lease, too; all else is decided anew."""
        gives_up_at = self._clock() + (KEPT_S if is_answer else self._lease_ms / 1000)
        failures = 0
        while True:
            try:
                return await ask()
            except LedgerUnavailable:
                failures += 1
                if self._clock() > gives_up_at or (self._stopping and not is_answer):
                    raise
                await asyncio.sleep(backoff_s(failures, self._random, STORE_DOWN_S, 10.0))


async def _asked(together: Batcher[A, T], alone: Callable[[Sequence[A]], Awaitable[list[T]]], one: A) -> T:
    """With what others ask at this moment. Where something among it cannot be written, all of it is refused: then by
    itself, so that nobody is held up by another's trouble."""
    try:
        (answer,) = await together.ask([one])
    except SemelError:
        raise
    except Exception as error:
        log.error("outbox_batch_refused", reason_class=type(error).__name__)
        (answer,) = await alone([one])
    return answer


async def _log_end(record: Record) -> None:
    """One line for each notification that became failed or uncertain."""
    before, after = record.dispatch.standing, record.standing
    if after.state not in ("failed", "uncertain") or after.state == before.state:
        return
    fields = {
        "notification_id": record.dispatch.id.hex(),
        "provider": after.provider,
        "channel": record.dispatch.notification.channel,
        "tenant": record.dispatch.notification.tenant or None,
        "attempt": after.attempts,
        "outcome": record.outcome,
        "reason": await _masked(after.reason, record.dispatch),
    }
    if after.state == "failed":
        log.error("notification_failed", **fields)
    else:
        log.warning("notification_uncertain", **fields)


def _reason_of(answer: Answer, dispatch: Dispatch) -> str:
    """Of a refused configuration, for the log. Nothing is awaited between an answer and its record."""
    if not isinstance(answer, Refused) or not answer.configuration:
        return ""
    if len(dispatch.content) < MASKED_HERE_BYTES:
        return hidden(answer.reason, dispatch.notification)
    return answer.reason.partition(":")[0]  # the status or the step


async def _masked(reason: str, dispatch: Dispatch) -> str:
    """A reason for the log: without the customer, whom a provider may have named, and without the content."""
    if len(dispatch.content) < MASKED_HERE_BYTES:
        return hidden(reason, dispatch.notification)
    return await asyncio.to_thread(hidden, reason, dispatch.notification)


def _put_off(dispatch: Dispatch, reason: str) -> Record:
    """Another relay, or another version of the settings, may know what to do with it."""
    if reason != dispatch.standing.reason:  # once, not at each look
        log.error("notification_postponed", notification_id=dispatch.id.hex(), reason=reason)
    later = replace(dispatch.standing, due_ms=dispatch.taken_ms + int(1000 * STORE_DOWN_S * 30), reason=reason)
    return Record(dispatch, later, "released", reason)


def _untried(dispatch: Dispatch) -> Standing:
    """What nobody has tried yet belongs to its channel again: the next relay may have other settings."""
    standing = dispatch.standing
    if standing.crossed_ms or standing.state != "pending":
        return standing
    return replace(standing, provider=dispatch.notification.provider, others=())


def _taken_back(dispatch: Dispatch, reason: str) -> Record:
    """It has crossed, or may have; but nothing has left, and nothing will: told in time, that is no doubt."""
    return Record(dispatch, replace(dispatch.standing, claims=0), "released", reason)


def _none() -> float:
    return 0.0
