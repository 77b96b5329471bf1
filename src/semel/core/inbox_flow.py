"""Accepts events into the inbox, and runs inbox items through the engine.

accept:  delivery → event → keys → Inbox.accept → answer
worker:  Inbox.take → Engine.process → Inbox.finish
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from random import random

from semel.core.batcher import Batcher
from semel.core.delivery_log import DeliveryLog
from semel.core.engine import WAITING
from semel.core.routing import Handler, Planner
from semel.ports import Arrived, Inbox, Telemetry, ThrottledHandler
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.log import log
from semel.values.outcome import Outcome, combine


class Acceptor:
    """Stores events durably, with one inbox item for each handler. A slow handler delays no other, and each item is
    retried by itself."""

    def __init__(
        self, inbox: Inbox, planner: Planner, accepted: Callable[[], None], telemetry: Telemetry | None = None
    ) -> None:
        """`accepted` is called when an item was added."""
        self._planner = planner
        self._telemetry = telemetry
        self._accepted = accepted
        self._lane: Batcher[Arrival, Acceptance] = Batcher(inbox.accept)
        self._log = DeliveryLog()

    async def accept(self, delivery: Arrived, trace: str = "") -> Outcome:
        """Accept one delivery. It is durable if the outcome is "accepted" or "duplicate". Raises LedgerUnavailable."""
        plan = self._planner.plan(delivery)
        if isinstance(plan, Outcome):
            return self._report([plan], delivery.tenant)
        handlers, claims = plan.handlers, plan.claims
        event = plan.event
        arrivals = [
            Arrival((claim,), claim.handler, event.raw, claim.tenant, plan.decode_options, trace) for claim in claims
        ]
        outcomes = [
            Outcome(answer.status, reason=answer.reason, handler=handler.name, key=claim.digest.hex(), id=event.id)
            for answer, handler, claim in zip(await self._lane.ask(arrivals), handlers, claims, strict=True)
        ]
        if any(outcome.status == "accepted" for outcome in outcomes):
            self._accepted()
        return self._report(outcomes, delivery.tenant)

    def _report(self, outcomes: list[Outcome], tenant: str) -> Outcome:
        for outcome in outcomes:
            if self._telemetry is not None:
                self._telemetry.answered(outcome)
            self._log.not_run(outcome, tenant)
        return combine(outcomes)


# Inbox items that this process cannot run, because a process with other settings or another version accepted them.
#
# During a rolling deployment, or after a mistake in the settings, such an item is not lost: another process can run it,
# or this one after the next change. So it is postponed, longer each time, without counting an attempt. It becomes a
# dead letter only after a period in which people can notice and correct a deployment:
#
#     first mismatch    5 s    5 s    7 s …  (half of its age)  … 5 min    5 min …          3 days
#       │── postponed ───│──────│──────│──────────────────────────│──────────│──────────────── │── dead letter
#
# The time of the first mismatch is part of the reason that the inbox keeps, so that all processes count from the same
# moment. A process that matches overwrites the reason, and with it the count.

POSTPONE_MIN_S = 5.0  # another process takes it meanwhile
POSTPONE_MAX_S = 300.0  # once the settings are right, it runs within five minutes
GIVE_UP_S = 3 * 86_400.0  # a deployment that went wrong on a Friday evening is corrected on a Monday
LOG_S = 60.0  # between two lines about one handler

MISMATCHED = "mismatched since"
_SINCE = re.compile(rf"{MISMATCHED} (\S+): ")


class MismatchedItems:
    """Postpones items that cannot run here, and logs them."""

    def __init__(self, inbox: Inbox, now_ms: Callable[[], int]) -> None:
        self._inbox = inbox
        self._now_ms = now_ms
        self._counts: dict[str, int] = {}  # by handler, since its last log line
        self._logged_ms: dict[str, int] = {}

    async def ending(self, taken: Taken, outcome: Outcome) -> Postponed | GivenUp:
        """The ending of an item whose `outcome` shows that it cannot run here."""
        now_ms = self._now_ms()
        since_ms = await self._since_ms(taken, now_ms)
        self._report(taken.lane, outcome, now_ms)
        age_s = (now_ms - since_ms) / 1000
        if age_s >= GIVE_UP_S:
            return GivenUp(taken, f"no process could run it for {GIVE_UP_S / 86_400:g} days: {outcome.reason}")
        after_s = min(max(age_s / 2, POSTPONE_MIN_S), POSTPONE_MAX_S)
        since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return Postponed(taken, round(after_s * 1000), f"{MISMATCHED} {since}: {outcome.reason}")

    async def _since_ms(self, taken: Taken, now_ms: int) -> int:
        """The time of the first mismatch. If it cannot be read, the count starts over: giving up later is safe."""
        try:
            entries = await self._inbox.history(taken.key.hex())
        except LedgerUnavailable:
            return now_ms
        known = [mismatched_since_ms(entry.reason) for entry in entries if entry.state == "accepted"]
        return min(now_ms, max([at_ms for at_ms in known if at_ms is not None], default=now_ms))

    def _report(self, handler: str, outcome: Outcome, now_ms: int) -> None:
        count = self._counts[handler] = self._counts.get(handler, 0) + 1
        last_ms = self._logged_ms.get(handler)
        if last_ms is None or now_ms - last_ms >= LOG_S * 1000:
            self._logged_ms[handler] = now_ms
            self._counts[handler] = 0
            # a reason may quote the event; of an ignored one, the text before the colon does not
            reason_class = outcome.reason.partition(":")[0] if outcome.status == "ignored" else outcome.status
            log.warning("inbox_item_unmatched", handler=handler, count=count, reason_class=reason_class)


def mismatched_since_ms(reason: str) -> int | None:
    """The time of the first mismatch, from the reason of a postponed item; None for any other reason."""
    found = _SINCE.match(reason)
    try:
        return round(datetime.fromisoformat(found[1]).timestamp() * 1000) if found else None
    except ValueError:
        return None


# The inbox worker takes items and runs them through the engine.
#
# Each handler has a lane with its own concurrency. The worker takes nothing from a lane that is full, or whose handler
# is not ready (its destination is unavailable), so that an unavailable destination delays only its own items. Finishing
# the item is the last step: an item that is taken again, because its worker died, is answered from the ledger.

LEASE_MIN_S = 10.0  # an item is leased for as long as its handler's lease, and at least this long
POLL_S = 0.25  # for items of other processes, and retries that become due
LAPSES_MAX = 20  # expired leases before any attempt was counted: no process can decode this item
LEDGER_DOWN_S = 1.0  # how long items wait when the ledger is unavailable
HELD_S = 0.5  # the holder of a key mostly ends long before its lease does
CANCEL_S = 1.0  # for cancelled handlers to end; those that ignore it are abandoned


class InboxDelivery(Arrived):
    """A taken inbox item as a delivery for one handler."""

    __slots__ = ("body", "decode_options", "key", "only", "tenant")

    def __init__(self, taken: Taken) -> None:
        self.body = taken.event
        self.tenant = taken.tenant
        self.decode_options = taken.decode_options
        self.only = taken.only or taken.lane
        self.key = taken.key


class InboxWorker:
    """Takes and runs inbox items on one event loop, from `run` until `stop`."""

    def __init__(
        self,
        inbox: Inbox,
        process: Callable[[Sequence[InboxDelivery]], Awaitable[list[Outcome]]],
        handlers: Sequence[Handler],
        concurrency: int,
        resume: Callable[[str], AbstractContextManager[object]] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`resume` makes the trace of an item's delivery the current one."""
        self._mismatched = MismatchedItems(inbox, now_ms)
        self._inbox = inbox
        self._process = process
        self._handlers = {handler.name: handler for handler in handlers}
        self._throttled: dict[str, ThrottledHandler] = {}
        for handler in handlers:
            if isinstance(handler.fn, ThrottledHandler):
                self._throttled[handler.name] = handler.fn
        self._concurrency = concurrency
        self._resume = resume or (lambda trace: nullcontext())
        self._endings: Batcher[InboxEnding, bool] = Batcher(inbox.finish)
        self._in_flight: dict[str, int] = dict.fromkeys(self._handlers, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Look for items now: there may be one to take."""
        self._awake.set()

    async def run(self) -> None:
        """Take and run items until `stop` is called."""
        while not self._stopping:
            self._awake.clear()
            try:
                taken = await self.run_once()
            except Exception as error:  # of any kind: events are still being accepted, so the worker continues
                text = str(error) if isinstance(error, LedgerUnavailable) else type(error).__name__
                log.error("inbox_unavailable", next_in_s=LEDGER_DOWN_S, error=text)
                await asyncio.sleep(LEDGER_DOWN_S)
                continue
            if not taken:
                await self._until_awake()

    async def run_once(self) -> int:
        """Take as many items as the lanes have slots for, and start them. Returns how many were taken."""
        wanted = self._wanted()
        if not wanted:
            return 0
        count = 0
        for lease_s, lanes in wanted.items():
            for taken in await self._inbox.take(lanes, round(lease_s * 1000)):
                self._in_flight[taken.lane] += 1
                task = asyncio.create_task(self._handle(taken))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                count += 1
        return count

    def begin_to_stop(self) -> None:
        """Take no more items."""
        self._stopping = True
        self._awake.set()

    async def stop(self, within_s: float) -> None:
        """Take no more items, and wait for those in flight. Items that do not end in time are returned."""
        self.begin_to_stop()
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=within_s)
            for task in late:
                task.cancel()  # the engine releases its lease
            if late:
                await asyncio.wait(late, timeout=CANCEL_S)
        finished = self._endings.ask([])  # sent after the last ending
        finished.add_done_callback(_log_failure)
        await asyncio.wait([finished])

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    # ------------------------------------------------------------------------------------------------ its parts

    def _wanted(self) -> dict[float, dict[str, int]]:
        """How many items of each lane could start now, by their lease in seconds."""
        wanted: dict[float, dict[str, int]] = {}
        for lane, handler in self._handlers.items():
            throttled = self._throttled.get(lane)
            slots = (throttled.concurrency if throttled else self._concurrency) - self._in_flight[lane]
            if slots > 0 and (throttled is None or throttled.ready_in_s() <= 0):
                wanted.setdefault(max(LEASE_MIN_S, handler.lease_s), {})[lane] = slots
        return wanted

    async def _until_awake(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._awake.wait()
        except TimeoutError:
            pass

    async def _handle(self, taken: Taken) -> None:
        """Run one item through the flow, then finish it. An item that cannot be finished is taken again when its lease
        expires."""
        ending: InboxEnding = Postponed(taken, 0)
        try:
            with self._resume(taken.trace):
                ending = await self._ending_of(taken)
        except Exception as error:  # a bug: it must not become a hot loop
            log.error("inbox_item_crashed", handler=taken.lane, reason_class=type(error).__name__)
            ending = Postponed(taken, round(LEDGER_DOWN_S * 1000), f"could not be handled: {type(error).__name__}")
        finally:
            self._in_flight[taken.lane] -= 1
            self._awake.set()
            finished = self._endings.ask([ending])  # also when this task is cancelled: it continues without the task
            finished.add_done_callback(_log_failure)
        await asyncio.wait([finished])

    async def _ending_of(self, taken: Taken) -> InboxEnding:
        if taken.lapses > LAPSES_MAX:
            return GivenUp(taken, f"{taken.lapses} workers died or stalled while they had it")
        try:
            (outcome,) = await self._process([InboxDelivery(taken)])
        except LedgerUnavailable as error:
            log.error("ledger_unavailable", handler=taken.lane, next_in_s=LEDGER_DOWN_S, error=error)
            return Postponed(taken, round(LEDGER_DOWN_S * 1000))
        match outcome.status:
            case "busy" if outcome.reason in WAITING:
                return Postponed(
                    taken, round(min(outcome.after or 0.0, HELD_S * (1 + random())) * 1000), outcome.reason
                )
            case "busy" | "retry":
                return Postponed(taken, round((outcome.after or 0.0) * 1000), outcome.reason)
            case "conflict":
                return GivenUp(taken, outcome.reason)
            case "malformed" | "ignored":  # the process that accepted it could decode it and had a handler for it
                return await self._mismatched.ending(taken, outcome)
            case _:
                return Finished(taken)


def _log_failure(finished: asyncio.Future[list[bool]]) -> None:
    if not finished.cancelled() and finished.exception() is not None:
        log.error("inbox_item_not_finished", error=finished.exception())
