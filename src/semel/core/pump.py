"""Takes letters from the inbox and runs them through the engine, as many at a time as their handlers can bear.

Each handler has a lane. A lane that is full, or whose handler is not ready (its destination is out of reach), is left
alone, so a dead destination holds up nobody but itself. The answer to the inbox is always the last line: a letter that
is taken again because its taker died is answered from what the ledger knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from random import random

from semel.core.answers import WAITING
from semel.core.batcher import Batcher
from semel.core.handlers import Handler
from semel.core.mismatched_items import MismatchedItems
from semel.ports import Inbox
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Finished, GivenUp, InboxEnding, Postponed, Taken
from semel.values.log import log
from semel.values.outcome import Outcome

LEASE_MIN_S = 10.0  # a letter is in hand for as long as its handler's lease, and at least this
POLL_S = 0.25  # letters of other processes, and retries that fall due
LAPSES_MAX = 20  # takers that vanished before any attempt was counted: nobody can read this letter
LEDGER_DOWN_S = 1.0  # when nothing can be decided, letters wait this long
HELD_S = 0.5  # whoever holds the key mostly ends long before its lease does
CANCEL_S = 1.0  # for handlers to be cancelled; what refuses that is left behind


class Letter:
    """A taken letter as a delivery for one handler."""

    __slots__ = ("body", "key", "only", "reading", "tenant")

    def __init__(self, taken: Taken) -> None:
        self.body = taken.event
        self.tenant = taken.tenant
        self.reading = taken.reading
        self.only = taken.only or taken.lane
        self.key = taken.key


class Pump:
    """Runs on one event loop, from `run` until `stop`."""

    def __init__(
        self,
        inbox: Inbox,
        process: Callable[[Sequence[Letter]], Awaitable[list[Outcome]]],
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
            room = getattr(handler.fn, "concurrency", self._concurrency) - self._in_hand[lane]
            ready_in_s = getattr(handler.fn, "ready_in_s", None)
            if room > 0 and (ready_in_s is None or ready_in_s() <= 0):
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
            (outcome,) = await self._process([Letter(taken)])
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
