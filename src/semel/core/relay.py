"""Sends notifications from the outbox through providers.

    take → check what is due → guard and crossing → send → record

Each notification runs in its own task, from top to bottom of `_send_one`. Crossings and records of concurrent tasks are
batched. The relay holds no database connection during a provider call. It writes the crossing durably before the first
byte is sent: a crash before the crossing is a safe retry, a crash after it makes the notification uncertain.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, TypeVar

from msgspec.structs import replace

from semel.core.batcher import Batcher
from semel.core.clock import steady_s
from semel.core.provider_calls import (
    ProviderCalls,
    ProviderPauses,
    ProviderSlots,
    build_request,
    record_of_answer,
    record_of_look_up,
)
from semel.ports import Outbox, Provider
from semel.values import delivery_state as states
from semel.values.delivery_state import Answer, DeliveryState, ProviderAccess, Refused
from semel.values.errors import LeaseLost, LedgerUnavailable, SemelError
from semel.values.log import log
from semel.values.outbox import (
    Crossed,
    Crossing,
    CrossingVerdict,
    DeliveryReport,
    Dispatch,
    Held,
    Lost,
    Record,
    Suppressed,
    checked_by,
)
from semel.values.redaction import hidden
from semel.values.retry import backoff_s

POLL_S = 0.25  # for notifications of other processes, and for those that fall due
SLOT_CHECKS, SLOT_CHECK_S = 5, 0.001  # 5 ms: short compared with any provider call
MARGIN_S = 15.0  # by which a lease outlasts the slowest provider: for crossing, recording and a slow store
STORE_DOWN_S = 1.0  # first wait before the store is called again
POSTPONED_S = 30.0  # until a relay looks again at a notification that it must not send
ACCEPTED_RETRY_S = 3_600.0  # an acceptance is written for this long if the outbox is down: only this process has it
LOOK_UP_SHARE = 0.9  # of the rest of a lease: the result of a look-up has to be recorded in time
MAX_AGE_S = 3 * 86_400.0
CUT_S = 2.0  # for the last writes when the time to stop is over
MASKED_HERE_BYTES = 8 * 1024  # masking a longer content would block the loop for milliseconds
DRAIN_S = 25.0  # longer than most providers take

A = TypeVar("A")
T = TypeVar("T")


class RelayBoundary(StrEnum):
    """The boundaries of this flow: between any two of them the process may die."""

    AFTER_TAKE = "after_take"
    BEFORE_CROSS = "before_cross"
    AFTER_CROSS = "after_cross"
    AFTER_SEND = "after_send"
    AFTER_RECORD = "after_record"


class RelayMetrics(Protocol):
    """Counts sends and outcomes. Its methods must be quick and must not raise."""

    def sent(self, provider: str, seconds: float) -> None:
        """Count a provider call that ended after this time, with or without an answer."""

    def recorded(self, provider: str, outcome: str) -> None:
        """Count an outcome: one of `Record`, or "suppressed", "held", "lost"."""


class _NoMetrics:
    def sent(self, provider: str, seconds: float) -> None: ...

    def recorded(self, provider: str, outcome: str) -> None: ...


class Relay:
    """Lives on one event loop. `routes` lists the providers of each channel, in order of preference."""

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
        metrics: RelayMetrics | None = None,
    ) -> None:
        """`margin_s`: by how much a lease outlasts the slowest provider. `max_age_s`: a notification that has not left
        by then expires, as if that were its `not_after`."""
        self._outbox = outbox
        self._providers = providers
        self._routes = routes
        self._contracts = {name: provider.contract for name, provider in providers.items()}
        self._access = ProviderAccess(self._contracts, routes)
        self._pauses = ProviderPauses(clock, random)
        self._random = random
        self._clock = clock
        self._observe = observe or (lambda step: None)
        self._max_age_ms = int(1000 * max_age_s)
        self._metrics = metrics or _NoMetrics()
        self._crossings: Batcher[Crossing, CrossingVerdict] = Batcher(outbox.cross)
        self._records: Batcher[Record, bool] = Batcher(outbox.record, more=lambda: self._calls.sending > 0)
        self._calls = ProviderCalls()
        self._slots = ProviderSlots(self._contracts, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._taking = asyncio.Lock()
        self._stopping = False
        slowest_s = max((provider.contract.timeout_s for provider in providers.values()), default=0.0)
        self._lease_ms = int(1000 * (slowest_s + margin_s))

    # ----------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Take and send until `stop` is called."""
        failures = 0
        while not self._stopping:
            await self._wait_for_slots()
            self._awake.clear()
            try:
                taken = await self.begin()
            except Exception as error:  # of any kind: a relay that has ended would send nothing any more
                failures += 1
                text = str(error) if isinstance(error, SemelError) else type(error).__name__
                next_in_s = backoff_s(failures, self._random, STORE_DOWN_S, 30.0)
                log.error("outbox_unavailable", failures=failures, next_in_s=round(next_in_s, 1), error=text)
                await self._wait_until_awake(next_in_s)
                continue
            failures = 0
            if not taken:
                await self._wait_until_awake(POLL_S)

    async def run_once(self) -> int:
        """Send everything that is due now. Returns the number of notifications."""
        total = 0
        while count := await self.begin():
            total += count
            if self._tasks:
                await asyncio.wait(list(self._tasks))
        return total

    async def begin(self) -> int:
        """Take as many notifications as there are slots, and start to send them. Returns their number."""
        async with self._taking:
            self._access = ProviderAccess(self._contracts, self._pauses.routes(self._routes))
            lanes = self._pauses.lanes(self._slots.lanes(self._access.routes), self._slots.taken)
            ends_at = self._clock() + self._lease_ms / 1000  # not later: the leases begin after this request
            dispatches = await self._outbox.take(lanes, self._lease_ms) if lanes else []
            if dispatches:
                self._observe(RelayBoundary.AFTER_TAKE)
            if self._stopping:  # meanwhile
                await self._release(dispatches)
                return 0
            for dispatch in dispatches:
                routed = self._route(dispatch)
                self._slots.take(routed.delivery_state.provider)  # before its task runs: the next take may come first
                if self._has_other_provider(dispatch, routed):
                    task = asyncio.create_task(self._release_to_its_provider(routed))
                else:
                    task = asyncio.create_task(self._handle(routed, self._clock(), ends_at))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return len(dispatches)

    async def _release(self, dispatches: Sequence[Dispatch]) -> None:
        """Return notifications as they were. A vanished relay's ones stay taken, so that its loss is not forgotten."""
        if unchanged := [
            Record(dispatch, _untried(dispatch), "released") for dispatch in dispatches if not dispatch.vanished
        ]:
            await self._outbox.record(unchanged)

    def wake(self) -> None:
        """Take now: a notification may have been added."""
        self._awake.set()

    def begin_to_stop(self) -> None:
        """Take no more."""
        self._stopping = True
        self._awake.set()

    async def stop(self, within_s: float = DRAIN_S) -> None:
        """Take no more, start no send, and wait for the sends under way. Those that take longer are cut off."""
        self.begin_to_stop()
        try:
            async with asyncio.timeout(within_s):
                async with self._taking:  # a take under way brings notifications too
                    pass
                while self._tasks:
                    await asyncio.wait(list(self._tasks))
        except TimeoutError:
            await self._cut_off()

    async def _cut_off(self) -> None:
        """End the sends under way: they are recorded as unknown, and the other notifications are released. If that
        cannot be written in time either, their leases expire."""
        if self._calls.sending:
            log.warning("relay_sends_cut_off", uncertain=self._calls.sending)
        self._calls.cut()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=CUT_S)
        for task in late:
            task.cancel()
        if late:
            log.error("relay_notifications_abandoned", notifications=len(late))
            await asyncio.wait(late)

    async def _wait_for_slots(self) -> None:
        """Wait until half of the slots are free, or for a moment: a few slots are not worth a round trip while others
        are about to be free."""
        for _ in range(SLOT_CHECKS):
            if self._slots.mostly_free or self._stopping:
                return
            await asyncio.sleep(SLOT_CHECK_S)

    async def _wait_until_awake(self, at_most_s: float) -> None:
        try:
            async with asyncio.timeout(at_most_s):
                await self._awake.wait()
        except TimeoutError:
            pass

    # ----------------------------------------------------------------------------------------------- one notification

    async def _handle(self, dispatch: Dispatch, taken_at: float, ends_at: float) -> None:
        """Send one notification in a slot of its provider, and record the result.

        It may have to wait for a slot. If its lease would not outlast the call then, it is released."""
        name = dispatch.delivery_state.provider
        provider = self._providers.get(name)
        try:
            if provider is None:
                reason = "" if name else self._access.refusal(dispatch.notification)
                await self._record(_postpone(dispatch, reason or f"there is no provider {name!r} here"))
                return
            # A send that begins later may still be under way when its lease ends and another relay takes it.
            if not await self._slots.enter(name, ends_at - provider.contract.timeout_s):
                await self._release([dispatch])
                return
            try:
                record = await self._send_one(dispatch, provider, taken_at, ends_at)
            finally:
                self._slots.leave(name)
            if record is not None:
                await self._record(record)
                self._observe(RelayBoundary.AFTER_RECORD)
        except LedgerUnavailable as error:
            log.error("notification_not_recorded", notification_id=dispatch.id.hex(), error=error)
        except Exception:  # a bug: its lease expires, and no other notification waits for it
            log.exception("notification_crashed", notification_id=dispatch.id.hex())
        finally:
            self._slots.drop(name)
            self._awake.set()

    async def _release_to_its_provider(self, dispatch: Dispatch) -> None:
        """Release it under its own provider, whose concurrency and rate limit it has to wait for."""
        try:
            await self._record(Record(dispatch, dispatch.delivery_state, "released"))
        except LedgerUnavailable as error:
            log.error("notification_not_recorded", notification_id=dispatch.id.hex(), error=error)
        finally:
            self._slots.drop(dispatch.delivery_state.provider)
            self._awake.set()

    async def _send_one(self, dispatch: Dispatch, provider: Provider, taken_at: float, ends_at: float) -> Record | None:
        """Run one notification through guard, crossing and send. Returns the record to write, or None if the outbox
        already wrote it or another relay owns the notification now."""

        def now_ms() -> int:  # by the store's clock: the clocks of relays may differ
            return dispatch.taken_ms + int(1000 * (self._clock() - taken_at))

        policy = dispatch.notification.policy or provider.contract.policy
        dispatch = replace(dispatch, delivery_state=replace(dispatch.delivery_state, policy=policy))
        state, record = await self._check_due(dispatch, provider, now_ms, ends_at)
        if record is not None:
            return record
        notification = dispatch.notification
        if reason := provider.contract.refusal(notification.tenant, notification.sender):
            return _postpone(dispatch, reason)
        request = build_request(dispatch, provider)
        if isinstance(request, Refused):
            return record_of_answer(dispatch, state, request, provider.contract, now_ms(), _no_jitter)

        if (early_ms := dispatch.slot_ms - now_ms()) > 0:
            await asyncio.sleep(early_ms / 1000)
        if self._stopping:  # a send would delay the end, or be cut off by it
            return Record(dispatch, _untried(dispatch), "released")
        self._observe(RelayBoundary.BEFORE_CROSS)
        crossed = states.crossed(state, now_ms())
        try:
            verdict = await _ask_batched(self._crossings, self._outbox.cross, Crossing(dispatch, crossed, request))
        except LedgerUnavailable:
            return _undo_crossing(dispatch, "the crossing was not answered")
        match verdict:
            case Crossed():
                self._observe(RelayBoundary.AFTER_CROSS)
                if reason := self._reason_not_to_send(dispatch, state, provider, ends_at):
                    return _undo_crossing(dispatch, reason)
                try:
                    answer = await self._send(provider, dispatch, request, ends_at)
                except LeaseLost as error:
                    return _undo_crossing(dispatch, str(error))
                self._observe(RelayBoundary.AFTER_SEND)
                self._pauses.answered(dispatch.delivery_state.provider, answer, _reason_of(answer, dispatch))
                return record_of_answer(dispatch, crossed, answer, provider.contract, now_ms(), self._random)
            case Held(by=by):
                self._metrics.recorded(provider.contract.name, "held")
                return Record(
                    dispatch, states.held(dispatch.delivery_state, by, dispatch.added_ms, now_ms()), "released"
                )
            case Suppressed() | Lost():
                self._metrics.recorded(provider.contract.name, type(verdict).__name__.lower())
                return None

    async def _check_due(
        self, dispatch: Dispatch, provider: Provider, now_ms: Callable[[], int], ends_at: float
    ) -> tuple[DeliveryState, Record | None]:
        """The next step of a taken notification. Without a record: send it in this state."""
        state, contract = dispatch.delivery_state, provider.contract
        if dispatch.vanished:
            after = states.lapsed(state, contract, now_ms(), self._random)
            is_new_doubt = after.state == "uncertain" != state.state  # an uncertain one does not become so twice
            return after, Record(dispatch, after, "unknown" if is_new_doubt else "released", after.reason)
        if state.state == "uncertain":
            match state.exit:
                case "replay":
                    state = states.replayed(state)
                case "look_up" if self._stopping:  # it would delay the end, as a send would
                    return state, Record(dispatch, state, "released")
                case "look_up":
                    result = await self._calls.look_up(provider, dispatch, LOOK_UP_SHARE * (ends_at - self._clock()))
                    return state, record_of_look_up(dispatch, result, contract, now_ms(), self._random)
                case _:
                    after = states.overdue(state, now_ms())
                    return after, Record(dispatch, after, "policy", after.reason)
        ready = states.ready(state, contract, now_ms(), self._random)
        if ready.state != "pending":
            return ready, Record(dispatch, ready, "released", ready.reason)
        return ready, None

    def _route(self, dispatch: Dispatch) -> Dispatch:
        """Choose the providers of a notification that names none, and set its latest time: none waits forever."""
        state = dispatch.delivery_state
        if dispatch.added_ms:
            # Its time was read from the clock of this boot or of an earlier one: use the later end.
            ahead_ms = max(0, dispatch.ahead_ms)
            state = states.aging(state, dispatch.added_ms + self._max_age_ms + ahead_ms)
        if not state.provider:
            first, *others = self._access.providers_for(dispatch.notification) or [""]
            state = replace(state, provider=first, others=tuple(others))
        return replace(dispatch, delivery_state=state)

    def _has_other_provider(self, dispatch: Dispatch, routed: Dispatch) -> bool:
        """Whether its tenant uses another provider than the first of its channel, whose lane it was taken from."""
        if dispatch.delivery_state.provider or dispatch.vanished or not routed.delivery_state.provider:
            return False
        return routed.delivery_state.provider != self._access.routes[dispatch.notification.channel][0]

    # ------------------------------------------------------------------------------------------------------ its steps

    def _reason_not_to_send(self, dispatch: Dispatch, state: DeliveryState, provider: Provider, ends_at: float) -> str:
        """The reason not to send it although it has crossed: the relay stops, or its slot or the outbox took too long.
        Empty: send it."""
        left_s = ends_at - self._clock()
        if self._calls.is_cut:
            return "its relay was told to end when it had crossed"
        if left_s < provider.contract.timeout_s:
            return "too little of its lease was left when it had crossed: another relay may have it before it is over"
        latest_ms = dispatch.taken_ms + self._lease_ms - int(1000 * left_s)  # correct also if the outbox was slow
        if states.ready(state, provider.contract, latest_ms, _no_jitter).state != "pending":
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
                return await self._calls.send(provider, dispatch, request, at_most_s)
        finally:
            took_s = self._clock() - begun
            self._slots.took(dispatch.delivery_state.provider, took_s)
            self._metrics.sent(provider.contract.name, took_s)

    async def _record(self, record: Record) -> None:
        """Write a record to the outbox, and repeat that while the store is down: only this process has the result."""
        is_answer = record.outcome == "accepted" and record.otherwise is None
        held = await self._repeat(lambda: _ask_batched(self._records, self._outbox.record, record), is_answer)
        if held:
            await _log_end(record)
        self._metrics.recorded(record.dispatch.delivery_state.provider, record.outcome if held else "lost")
        if is_answer and not held:  # too late for its lease, but still evidence
            late = DeliveryReport(
                "accepted", record.dispatch.id, record.delivery_state.provider, record.reference, evidence="late"
            )
            await self._repeat(lambda: self._outbox.apply_reports([late]), is_answer)

    async def _repeat(self, ask: Callable[[], Awaitable[T]], is_answer: bool) -> T:
        """Repeat a call while the store is down: an acceptance even after its lease, anything else while it lasts."""
        gives_up_at = self._clock() + (ACCEPTED_RETRY_S if is_answer else self._lease_ms / 1000)
        failures = 0
        while True:
            try:
                return await ask()
            except LedgerUnavailable:
                failures += 1
                if self._clock() > gives_up_at or (self._stopping and not is_answer):
                    raise
                await asyncio.sleep(backoff_s(failures, self._random, STORE_DOWN_S, 10.0))


async def _ask_batched(batcher: Batcher[A, T], call: Callable[[Sequence[A]], Awaitable[list[T]]], item: A) -> T:
    """Ask for one item in a batch with others. If the store refuses the batch, ask for the item alone: another item
    that cannot be written must not delay it."""
    try:
        (answer,) = await batcher.ask([item])
    except SemelError:
        raise
    except Exception as error:
        log.error("outbox_batch_refused", reason_class=type(error).__name__)
        (answer,) = await call([item])
    return answer


async def _log_end(record: Record) -> None:
    """Log one line for each notification that became sent, failed or uncertain."""
    before, after = record.dispatch.delivery_state, record.delivery_state
    if after.state not in ("accepted", "failed", "uncertain") or after.state == before.state:
        return
    fields = {
        "notification_id": record.dispatch.id.hex(),
        "provider": after.provider,
        "channel": record.dispatch.notification.channel,
        "tenant": record.dispatch.notification.tenant or None,
        "attempt": after.attempts,
        "outcome": record.outcome,
    }
    if after.state == "accepted":
        log.info("notification_sent", **fields)
        return
    fields["reason"] = await _masked(after.reason, record.dispatch)
    if after.state == "failed":
        log.error("notification_failed", **fields)
    else:
        log.warning("notification_uncertain", **fields)


def _reason_of(answer: Answer, dispatch: Dispatch) -> str:
    """The reason of a refused configuration, for the log. It awaits nothing: an answer is recorded at once."""
    if not isinstance(answer, Refused) or not answer.configuration:
        return ""
    if len(dispatch.content) < MASKED_HERE_BYTES:
        return hidden(answer.reason, dispatch.notification)
    return answer.reason.partition(":")[0]  # the status or the step


async def _masked(reason: str, dispatch: Dispatch) -> str:
    """The reason for the log, without recipient and content: a provider may have quoted them."""
    if len(dispatch.content) < MASKED_HERE_BYTES:
        return hidden(reason, dispatch.notification)
    return await asyncio.to_thread(hidden, reason, dispatch.notification)


def _postpone(dispatch: Dispatch, reason: str) -> Record:
    """The record of a notification that this relay must not send: another relay, or other settings, may send it."""
    if reason != dispatch.delivery_state.reason:  # logged once, not at each look
        log.error("notification_postponed", notification_id=dispatch.id.hex(), reason=reason)
    postponed = replace(dispatch.delivery_state, due_ms=dispatch.taken_ms + int(1000 * POSTPONED_S), reason=reason)
    return Record(dispatch, postponed, "released", reason)


def _untried(dispatch: Dispatch) -> DeliveryState:
    """The state of a released notification. One without an attempt returns to its channel: the next relay may have
    other settings."""
    state = dispatch.delivery_state
    if state.crossed_ms or state.state != "pending":
        return state
    return replace(state, provider=dispatch.notification.provider, others=())


def _undo_crossing(dispatch: Dispatch, reason: str) -> Record:
    """The record of a notification that has crossed, or may have, but was not sent and will not be: recorded in time,
    it is not uncertain."""
    return Record(dispatch, replace(dispatch.delivery_state, claims=0), "released", reason)


def _no_jitter() -> float:
    return 0.0
