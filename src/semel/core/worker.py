"""The loop around the flow: receive, process, answer the source. Bounded by `run_once`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePath
from traceback import extract_tb
from typing import Literal, Protocol, TypeAlias

from semel.core.crash_points import Boundary, Observer
from semel.core.engine import WAITING, Engine
from semel.core.ledger_breaker import Outage, pause
from semel.core.routing import Unmatched
from semel.ports import Delivery, Ledger, Source, Stoppable
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.log import log
from semel.values.outcome import Outcome
from semel.values.retry import backoff_s

RECEIVE_MAX = 100  # deliveries in one batch: one commit for all of them
LEDGER_DOWN_S = 5.0  # when nothing can be decided, the source gets everything back with this delay
HELD_S = 1.0  # whoever holds the key mostly ends long before its lease does
HELD_DOUBLINGS = 5  # … but a source may count how often it had to bring something
PURGE_EVERY_S = 60.0
PURGE_MAX = 1_000  # keys forgotten in one transaction: a few milliseconds

Answer: TypeAlias = Literal["acked", "retried", "rejected", "failed"]  # failed: its source could not be told


class Watch(Protocol):
    """Is told what goes through a worker. It must be quick, and it must not raise."""

    def received(self, count: int) -> None: ...
    def answered(self, how: Answer) -> None: ...


class Worker:
    """Takes from one source until it has ended or `stop` is called; what was received is always answered."""

    def __init__(
        self,
        source: Source,
        engine: Callable[[], Engine],
        ledger: Ledger,
        observe: Observer | None = None,
        *,
        outage: Outage | None = None,
        unmatched: Unmatched | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`engine` gives the one of the running loop. `outage` is shared with whoever takes beside it."""
        self._source = source
        self._engine = engine
        self._ledger = ledger
        self._observe = observe
        self._outage = outage
        self._unmatched = unmatched
        self._watch = watch
        self._stopping = asyncio.Event()
        self._purged_at: float | None = None
        self.is_waiting = False  # for a delivery: nothing is in hand

    async def run(self) -> int:
        """All deliveries until the source has ended. Returns how many."""
        total = 0
        while not self._stopping.is_set() and (count := await self.turn()):
            total += count
        return total

    async def turn(self) -> int:
        """One batch, and what has to be done now and then. 0: the source has ended."""
        if count := await self.run_once():
            await self._forget_now_and_then()
        return count

    def stop(self) -> None:
        """Finish the batch at hand, then end. A source that waits for deliveries is told to stop waiting."""
        self._stopping.set()
        if isinstance(self._source, Stoppable):
            self._source.stop()

    async def run_once(self) -> int:
        """One batch: receive, process, answer. The answer to the source is always the last line."""
        self.is_waiting = True
        try:
            deliveries = await self._source.receive(RECEIVE_MAX)
        finally:
            self.is_waiting = False
        if not deliveries:
            return 0
        if self._watch is not None:
            self._watch.received(len(deliveries))
        try:
            outcomes = await self._decide(deliveries)
        except BaseException:  # cancelled, or a bug: nobody else will answer what a source holds for us
            for delivery in deliveries:
                told: Answer = "failed"
                with suppress(Exception):
                    await delivery.retry(0.0)
                    told = "retried"
                self._told(told)
            raise
        await self._answer(deliveries, outcomes)
        return len(deliveries)

    async def _decide(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        if self._outage is not None and not await self._outage.over(self._stopping):  # it began while we waited
            return [Outcome("busy", reason="stopping", after=0.0)] * len(deliveries)
        asked_at = asyncio.get_running_loop().time()
        try:
            outcomes = await self._engine().process(deliveries)
        except LedgerUnavailable as error:
            if self._outage is None:
                log.error("ledger_unavailable", deliveries_returned=len(deliveries), error=error)
            else:
                self._outage.begins(error, asked_at)
            outcomes = [Outcome("busy", reason=str(error), after=LEDGER_DOWN_S)] * len(deliveries)
        return outcomes

    async def _answer(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        """All of them, also when one cannot be answered; then its error."""
        if self._observe is not None:
            self._observe(Boundary.BEFORE_ACK.value)
        failed: list[Exception] = []
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            try:
                self._told(await self._tell(delivery, outcome))
            except Exception as error:  # the source brings it again, and it is answered as a duplicate
                failed.append(error)
                self._told("failed")
        if self._observe is not None:
            self._observe(Boundary.AFTER_ACK.value)
        if failed:
            raise failed[0]

    async def _tell(self, delivery: Delivery, outcome: Outcome) -> Answer:
        match outcome.status:
            case "busy" if outcome.reason in WAITING:
                await delivery.retry(min(outcome.after or 0.0, _held_s(delivery)))
                return "retried"
            case "busy" | "retry":
                await delivery.retry(outcome.after or 0.0)
                return "retried"
            case "malformed" | "conflict":
                await delivery.reject(outcome.reason)
                return "rejected"
            case "ignored" if self._unmatched is not None:
                return "rejected" if await self._unmatched.answer(delivery) else "acked"
            case _:  # done, duplicate, stale, dead, uncertain, ignored: another delivery would change nothing
                await delivery.ack()
                return "acked"

    def _told(self, how: Answer) -> None:
        if self._watch is not None:
            self._watch.answered(how)

    async def _forget_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._purged_at is None:
            self._purged_at = now
        if now - self._purged_at >= PURGE_EVERY_S:
            self._purged_at = now
            with suppress(LedgerUnavailable):  # next time, then
                if await self._ledger.purge(PURGE_MAX) == PURGE_MAX:
                    self._purged_at = now - PURGE_EVERY_S  # there is more: after the next batch


def _held_s(delivery: Delivery) -> float:
    """When a delivery whose event is in somebody's hands should come again: soon, and later each time, where it says
    how often it has come."""
    return HELD_S * 2.0 ** min(max(delivery.receives, 1) - 1, HELD_DOUBLINGS)


# Several workers on one source, until it has ended or `stop` is called: what `app.consume` and `semel run` do.
#
# A source that breaks is tried again, with backoff; so is one that could not be told an answer, since it brings the
# delivery again and the ledger knows what came of it. Only a ConfigError ends the consumption: no other try changes it.

AGAIN_BASE_S = 0.2
AGAIN_CAP_S = 20.0  # a broker that is back has us back soon after
QUIET_S = 60.0  # a source that has not failed for so long is well again, also when nothing has come


class Consumer:
    """Runs on one loop, once. Closing the source is left to whoever opened it."""

    def __init__(
        self,
        source: Source,
        name: str,
        workers: Sequence[Worker],
        outage: Outage,
        random: Callable[[], float],
    ) -> None:
        """`name` is for the log. All workers take from this source and wait for this outage."""
        self._source = source
        self._name = name
        self._workers = workers
        self._outage = outage
        self._random = random
        self._stopping = asyncio.Event()
        self._lanes: dict[Worker, asyncio.Task[None]] = {}
        self._failures = 0  # in a row, of all workers: they share what is broken
        self._failed_at = 0.0  # loop time
        self.count = 0  # deliveries so far

    @property
    def is_broken(self) -> bool:
        """The last thing that the source was asked for failed, and not long ago: it may have nothing to give since."""
        return self._failures > 0 and asyncio.get_running_loop().time() - self._failed_at < QUIET_S

    async def run(self) -> int:
        """All deliveries until the source has ended. Returns how many. When it is cancelled, what is in hand goes back.

        Raises ConfigError, when the other workers have finished what they had in hand."""
        self._lanes = {worker: asyncio.create_task(self._lane(worker)) for worker in self._workers}
        lanes = list(self._lanes.values())
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()  # it has ended, or one of them has found that it cannot go on
            await asyncio.wait(lanes)
        except asyncio.CancelledError:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            raise
        errors = [lane.exception() for lane in lanes if not lane.cancelled()]  # several may have met the same one
        if (error := next(filter(None, errors), None)) is not None:
            raise error
        return self.count

    def stop(self) -> None:
        """Finish what is in hand, then end. Whoever waits for a delivery comes back."""
        self._stopping.set()
        for worker, lane in self._lanes.items():
            worker.stop()
            if worker.is_waiting and not isinstance(self._source, Stoppable):
                lane.cancel()  # there is no other way to tell it, and nothing is in its hand

    async def _lane(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            try:
                count = await worker.turn() if await self._outage.over(self._stopping) else 0
            except ConfigError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # whatever a source, a store or a driver comes up with
                _unless_we_are_cancelled()
                self._failures += 1
                self._failed_at = asyncio.get_running_loop().time()
                self._complain(error)
                await pause(backoff_s(self._failures, self._random, AGAIN_BASE_S, AGAIN_CAP_S), self._stopping)
                continue
            if not count:
                return
            self.count += count
            if self._failures:
                log.warning("source_recovered", source=self._name)
                self._failures = 0

    def _complain(self, error: BaseException) -> None:
        """The first, second, fourth …: an outage does not fill the disk."""
        if self._failures & (self._failures - 1) == 0:
            log.error("source_failed", source=self._name, failures=self._failures, error=words(error))


def _unless_we_are_cancelled() -> None:
    """Some drivers cancel whoever waits on a connection that they lose. To end by that would look like the end of the
    source. Where somebody has cancelled us, that goes on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def words(error: BaseException) -> str:
    """What may be said of an error: of one that is not ours or the system's, its kind and its place. A driver may have
    put a password into the rest."""
    if isinstance(error, (SemelError, OSError)):
        return f"{type(error).__name__}: {error}"
    *_, step = extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {PurePath(step.filename).name}:{step.lineno} {step.name}"
