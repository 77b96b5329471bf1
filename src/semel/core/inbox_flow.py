"""The front half of the flow for events that are handled later: delivery → event → keys → inbox → answer."""

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
from semel.core.routing import Handler, Plan, Planner
from semel.ports import Arrived, Inbox, Telemetry, ThrottledHandler
from semel.values.claim import Claim
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival, Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.log import log
from semel.values.outcome import Outcome, combine


class Acceptor:
    """Makes events durable. Each handler of an event gets a letter of its own, in its own lane: a slow one delays no
    other, and each is retried by itself."""

    def __init__(
        self, inbox: Inbox, planner: Planner, accepted: Callable[[], None], telemetry: Telemetry | None = None
    ) -> None:
        """`accepted` is told that there is something to handle."""
        self._planner = planner
        self._telemetry = telemetry
        self._accepted = accepted
        self._lane: Batcher[Arrival, Acceptance] = Batcher(inbox.accept)
        self._log = DeliveryLog()

    async def accept(self, delivery: Arrived, trace: str = "") -> Outcome:
        """One delivery. What is answered "accepted" or "duplicate" is durable. Raises LedgerUnavailable."""
        plan = self._planner.plan(delivery)
        if isinstance(plan, Outcome):
            return self._told([plan], delivery.tenant)
        handlers, claims = plan.handlers, plan.claims
        answers = await self._lane.ask([_arrival(plan, claim, trace) for claim in claims])
        outcomes = [_outcome(*one, plan) for one in zip(answers, handlers, claims, strict=True)]
        if any(outcome.status == "accepted" for outcome in outcomes):
            self._accepted()
        return self._told(outcomes, delivery.tenant)

    def _told(self, outcomes: list[Outcome], tenant: str) -> Outcome:
        for outcome in outcomes:
            if self._telemetry is not None:
                self._telemetry.answered(outcome)
            self._log.not_run(outcome, tenant)
        return combine(outcomes)


def _arrival(plan: Plan, claim: Claim, trace: str) -> Arrival:
    return Arrival((claim,), claim.handler, plan.event.raw, claim.tenant, plan.decode_options, trace)


def _outcome(answer: Acceptance, handler: Handler, claim: Claim, plan: Plan) -> Outcome:
    return Outcome(answer.status, reason=answer.reason, handler=handler.name, key=claim.digest.hex(), id=plan.event.id)


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
    """Decides how long items wait that cannot run here, and reports them."""

    def __init__(self, inbox: Inbox, now_ms: Callable[[], int]) -> None:
        self._inbox = inbox
        self._now_ms = now_ms
        self._counts: dict[str, int] = {}  # by handler, since its last log line
        self._logged_ms: dict[str, int] = {}

    async def ending(self, taken: Taken, outcome: Outcome) -> Postponed | GivenUp:
        """`outcome`: why the flow left the item alone."""
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
        """When a process first could not run it. Where that cannot be read, the count begins anew: too late is safe."""
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


# Takes letters from the inbox and runs them through the engine, as many at a time as their handlers can bear.
#
# Each handler has a lane. A lane that is full, or whose handler is not ready (its destination is out of reach), is left
# alone, so a dead destination holds up nobody but itself. The answer to the inbox is always the last line: a letter
# that is taken again because its taker died is answered from what the ledger knows.

LEASE_MIN_S = 10.0  # a letter is in hand for as long as its handler's lease, and at least this
POLL_S = 0.25  # letters of other processes, and retries that fall due
LAPSES_MAX = 20  # takers that vanished before any attempt was counted: nobody can read this letter
LEDGER_DOWN_S = 1.0  # when nothing can be decided, letters wait this long
HELD_S = 0.5  # whoever holds the key mostly ends long before its lease does
CANCEL_S = 1.0  # for handlers to be cancelled; what refuses that is left behind


class InboxDelivery(Arrived):
    """A taken letter as a delivery for one handler."""

    __slots__ = ("body", "decode_options", "key", "only", "tenant")

    def __init__(self, taken: Taken) -> None:
        self.body = taken.event
        self.tenant = taken.tenant
        self.decode_options = taken.decode_options
        self.only = taken.only or taken.lane
        self.key = taken.key


class InboxWorker:
    """Runs on one event loop, from `run` until `stop`."""

    def __init__(
        self,
        inbox: Inbox,
        process: Callable[[Sequence[InboxDelivery]], Awaitable[list[Outcome]]],
        handlers: Sequence[Handler],
        concurrency: int,
        resume: Callable[[str], AbstractContextManager[object]] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`resume` makes the trace of a letter's delivery the current one."""
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
        self._in_hand: dict[str, int] = dict.fromkeys(self._handlers, 0)
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._stopping = False

    def wake(self) -> None:
        """There may be something to take."""
        self._awake.set()

    async def run(self) -> None:
        """Take and handle until told to stop."""
        while not self._stopping:
            self._awake.clear()
            try:
                taken = await self.run_once()
            except Exception as error:  # whatever it is, events are still being accepted: go on
                said = str(error) if isinstance(error, LedgerUnavailable) else type(error).__name__
                log.error("inbox_unavailable", next_in_s=LEDGER_DOWN_S, error=said)
                await asyncio.sleep(LEDGER_DOWN_S)
                continue
            if not taken:
                await self._until_awake()

    async def run_once(self) -> int:
        """Take what the lanes have room for, and begin with it. Returns how much was taken."""
        wanted = self._wanted()
        if not wanted:
            return 0
        count = 0
        for lease_s, lanes in wanted.items():
            for taken in await self._inbox.take(lanes, round(lease_s * 1000)):
                self._in_hand[taken.lane] += 1
                task = asyncio.create_task(self._handle(taken))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                count += 1
        return count

    def begin_to_stop(self) -> None:
        """Take no more."""
        self._stopping = True
        self._awake.set()

    async def stop(self, within_s: float) -> None:
        """Take no more, and let what is in hand end; what has not ended in time is given back."""
        self.begin_to_stop()
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks), timeout=within_s)
            for task in late:
                task.cancel()  # the engine gives its lease back
            if late:
                await asyncio.wait(late, timeout=CANCEL_S)
        told = self._endings.ask([])  # it travels behind the last ending
        told.add_done_callback(_looked_at)
        await asyncio.wait([told])

    @property
    def in_hand(self) -> int:
        return len(self._tasks)

    # ------------------------------------------------------------------------------------------------ its parts

    def _wanted(self) -> dict[float, dict[str, int]]:
        """How many letters of each lane could begin now, by the time for which they are in hand."""
        wanted: dict[float, dict[str, int]] = {}
        for lane, handler in self._handlers.items():
            throttled = self._throttled.get(lane)
            room = (throttled.concurrency if throttled else self._concurrency) - self._in_hand[lane]
            if room > 0 and (throttled is None or throttled.ready_in_s() <= 0):
                wanted.setdefault(max(LEASE_MIN_S, handler.lease_s), {})[lane] = room
        return wanted

    async def _until_awake(self) -> None:
        try:
            async with asyncio.timeout(POLL_S):
                await self._awake.wait()
        except TimeoutError:
            pass

    async def _handle(self, taken: Taken) -> None:
        """One letter: the flow, then its end. A letter whose end cannot be told comes again by its lease."""
        ending: InboxEnding = Postponed(taken, 0)
        try:
            with self._resume(taken.trace):
                ending = await self._ending_of(taken)
        except Exception as error:  # a bug: it must not become a hot loop
            log.error("inbox_item_crashed", handler=taken.lane, reason_class=type(error).__name__)
            ending = Postponed(taken, round(LEDGER_DOWN_S * 1000), f"could not be handled: {type(error).__name__}")
        finally:
            self._in_hand[taken.lane] -= 1
            self._awake.set()
            told = self._endings.ask([ending])  # also when this task is cancelled: it goes on without us
            told.add_done_callback(_looked_at)
        await asyncio.wait([told])

    async def _ending_of(self, taken: Taken) -> InboxEnding:
        if taken.lapses > LAPSES_MAX:
            return GivenUp(taken, f"{taken.lapses} takers vanished with it")
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
            case "malformed" | "ignored":  # whoever accepted it could read it and had a handler for it
                return await self._mismatched.ending(taken, outcome)
            case _:
                return Finished(taken)


def _looked_at(told: asyncio.Future[list[bool]]) -> None:
    if not told.cancelled() and told.exception() is not None:
        log.error("inbox_item_not_finished", error=told.exception())
