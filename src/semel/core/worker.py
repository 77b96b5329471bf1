"""The loop around the flow: receive, process, answer the source. Bounded by `run_once`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePath
from traceback import extract_tb
from typing import Literal, Protocol, TypeAlias

from semel.core.crash_points import Boundary, Observer
from semel.core.engine import WAITING
from semel.core.ledger_breaker import Outage, pause
from semel.core.routing import Unmatched
from semel.ports import Delivery, Ledger, Source, Stoppable
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.log import log
from semel.values.outcome import Outcome
from semel.values.retry import backoff_s

RECEIVE_MAX = 100  # deliveries in one batch: one commit for all of them
LEDGER_DOWN_S = 5.0  # the delay of deliveries that are returned because the ledger is unavailable
HELD_S = 1.0  # the holder of a key mostly ends long before its lease does
HELD_DOUBLINGS = 5  # of the delay, where the source counts redeliveries
PURGE_EVERY_S = 60.0
PURGE_MAX = 1_000  # keys deleted in one transaction: a few milliseconds

Answer: TypeAlias = Literal["acked", "retried", "rejected", "failed"]  # failed: the answer did not reach the source


class WorkerObserver(Protocol):
    """Observes the deliveries of a worker. Its methods must be quick and must not raise."""

    def received(self, count: int) -> None: ...
    def answered(self, answer: Answer) -> None: ...


class Processor(Protocol):
    """The engine, or a wrapper of it."""

    async def process(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Return one outcome for each delivery, in order. Raises LedgerUnavailable when nothing could be decided."""


class Worker:
    """Receives from one source until it has ended or `stop` is called. Every received delivery is answered."""

    def __init__(
        self,
        source: Source,
        engine: Callable[[], Processor],
        ledger: Ledger,
        observe: Observer | None = None,
        *,
        outage: Outage | None = None,
        unmatched: Unmatched | None = None,
        watch: WorkerObserver | None = None,
    ) -> None:
        """`engine` returns that of the running loop. `outage` is shared with the other workers of the source."""
        self._source = source
        self._engine = engine
        self._ledger = ledger
        self._observe = observe
        self._outage = outage
        self._unmatched = unmatched
        self._watch = watch
        self._stopping = asyncio.Event()
        self._purged_at: float | None = None
        self.is_waiting = False  # for a delivery: none is in flight

    async def run(self) -> int:
        """Process all deliveries until the source has ended. Returns how many."""
        total = 0
        while not self._stopping.is_set() and (count := await self.turn()):
            total += count
        return total

    async def turn(self) -> int:
        """Process one batch, and purge the ledger from time to time. Returns 0 when the source has ended."""
        if count := await self.run_once():
            await self._purge_periodically()
        return count

    def stop(self) -> None:
        """Finish the current batch, then end. Also stops a source that waits for deliveries."""
        self._stopping.set()
        if isinstance(self._source, Stoppable):
            self._source.stop()

    async def run_once(self) -> int:
        """Process one batch: receive, process, answer. The answer to the source is always the last step."""
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
        except BaseException:  # cancelled, or a bug: only this worker can answer these deliveries
            for delivery in deliveries:
                answer: Answer = "failed"
                with suppress(Exception):
                    await delivery.retry(0.0)
                    answer = "retried"
                self._count(answer)
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
                self._count(await self._answer_one(delivery, outcome))
            except Exception as error:  # the source redelivers it, and it is answered as a duplicate
                failed.append(error)
                self._count("failed")
        if self._observe is not None:
            self._observe(Boundary.AFTER_ACK.value)
        if failed:
            raise failed[0]

    async def _answer_one(self, delivery: Delivery, outcome: Outcome) -> Answer:
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

    def _count(self, answer: Answer) -> None:
        if self._watch is not None:
            self._watch.answered(answer)

    async def _purge_periodically(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._purged_at is None:
            self._purged_at = now
        if now - self._purged_at >= PURGE_EVERY_S:
            self._purged_at = now
            with suppress(LedgerUnavailable):  # it is repeated next time
                if await self._ledger.purge(PURGE_MAX) == PURGE_MAX:
                    self._purged_at = now - PURGE_EVERY_S  # there is more: after the next batch


def _held_s(delivery: Delivery) -> float:
    """The redelivery delay of an event that another worker is processing. It doubles where the source counts."""
    return HELD_S * 2.0 ** min(max(delivery.receives, 1) - 1, HELD_DOUBLINGS)


# Several workers on one source, until it has ended or `stop` is called, for `app.consume` and `semel run`.
#
# A source that fails is retried with backoff. An answer that does not reach the source is no loss: the source
# redelivers, and the ledger answers the duplicate. Only a ConfigError ends the consumption: a retry would not help.

AGAIN_BASE_S = 0.2
AGAIN_CAP_S = 20.0  # a broker that is available again is used soon after
QUIET_S = 60.0  # a source without a failure for this long counts as healthy, also without deliveries


class Consumer:
    """Runs the workers of one source, once, on one event loop. The caller closes the source."""

    def __init__(
        self,
        source: Source,
        name: str,
        workers: Sequence[Worker],
        outage: Outage,
        random: Callable[[], float],
    ) -> None:
        """`name` is for the log. All workers receive from this source and share this outage."""
        self._source = source
        self._name = name
        self._workers = workers
        self._outage = outage
        self._random = random
        self._stopping = asyncio.Event()
        self._lanes: dict[Worker, asyncio.Task[None]] = {}
        self._failures = 0  # consecutive, of all workers: they share the source
        self._failed_at = 0.0  # loop time
        self.count = 0  # deliveries so far

    @property
    def is_broken(self) -> bool:
        """Whether the last call to the source failed, and not long ago."""
        return self._failures > 0 and asyncio.get_running_loop().time() - self._failed_at < QUIET_S

    async def run(self) -> int:
        """Process all deliveries until the source has ended. Returns how many.

        When it is cancelled, deliveries in flight are returned to the source. Raises ConfigError after the other
        workers have finished their deliveries."""
        self._lanes = {worker: asyncio.create_task(self._lane(worker)) for worker in self._workers}
        lanes = list(self._lanes.values())
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()  # the source has ended, or a worker raised a ConfigError
            await asyncio.wait(lanes)
        except asyncio.CancelledError:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            raise
        errors = [lane.exception() for lane in lanes if not lane.cancelled()]  # several may have raised the same error
        if (error := next(filter(None, errors), None)) is not None:
            raise error
        return self.count

    def stop(self) -> None:
        """Finish the deliveries in flight, then end. Workers that wait for a delivery return."""
        self._stopping.set()
        for worker, lane in self._lanes.items():
            worker.stop()
            if worker.is_waiting and not isinstance(self._source, Stoppable):
                lane.cancel()  # the only way to end its wait; it has no delivery in flight

    async def _lane(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            try:
                count = await worker.turn() if await self._outage.over(self._stopping) else 0
            except ConfigError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # of any source, store or driver
                _raise_if_cancelled()
                self._failures += 1
                self._failed_at = asyncio.get_running_loop().time()
                self._log_failure(error)
                await pause(backoff_s(self._failures, self._random, AGAIN_BASE_S, AGAIN_CAP_S), self._stopping)
                continue
            if not count:
                return
            self.count += count
            if self._failures:
                log.warning("source_recovered", source=self._name)
                self._failures = 0

    def _log_failure(self, error: BaseException) -> None:
        """Log the first, second, fourth … failure, so that an outage does not fill the disk."""
        if self._failures & (self._failures - 1) == 0:
            log.error("source_failed", source=self._name, failures=self._failures, error=words(error))


def _raise_if_cancelled() -> None:
    """Raise CancelledError if this task was cancelled. Some drivers raise it in tasks that wait for a connection that
    they lose; that must not look like the end of the source."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def words(error: BaseException) -> str:
    """An error as text for the log. The text of a driver's error may contain a password, so only its type and place are
    logged."""
    if isinstance(error, (SemelError, OSError)):
        return f"{type(error).__name__}: {error}"
    *_, step = extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {PurePath(step.filename).name}:{step.lineno} {step.name}"
