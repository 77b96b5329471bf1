"""The loop around the flow: receive, process, answer the source. Bounded by `run_once`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from semel.core.boundaries import Boundary, Observer
from semel.core.engine import Engine
from semel.core.saying import say
from semel.ports import Delivery, Ledger, Source, Stoppable
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Outcome

log = logging.getLogger("semel")

RECEIVE_MAX = 100  # deliveries in one batch: one commit for all of them
LEDGER_DOWN_S = 5.0  # when nothing can be decided, the source gets everything back with this delay
PURGE_EVERY_S = 60.0
PURGE_MAX = 1_000  # keys forgotten in one transaction: a few milliseconds


class Worker:
    """Takes from one source until it has ended or `stop` is called; what was received is always answered."""

    def __init__(
        self, source: Source, engine: Callable[[], Engine], ledger: Ledger, observe: Observer | None = None
    ) -> None:
        """`engine` gives the one of the running loop."""
        self._source = source
        self._engine = engine
        self._ledger = ledger
        self._observe = observe
        self._stopping = False
        self._purged_at: float | None = None

    async def run(self) -> int:
        """All deliveries until the source has ended. Returns how many."""
        total = 0
        while not self._stopping and (count := await self.run_once()):
            total += count
            await self._forget_now_and_then()
        return total

    def stop(self) -> None:
        """Finish the batch at hand, then end. A source that waits for deliveries is told to stop waiting."""
        self._stopping = True
        if isinstance(self._source, Stoppable):
            self._source.stop()

    async def run_once(self) -> int:
        """One batch: receive, process, answer. The answer to the source is always the last line."""
        deliveries = await self._source.receive(RECEIVE_MAX)
        if not deliveries:
            return 0
        try:
            outcomes = await self._engine().process(deliveries)
        except LedgerUnavailable as error:
            log.error("nothing can be decided, all goes back to its source: %s", error)
            outcomes = [Outcome("busy", reason=str(error), after=LEDGER_DOWN_S)] * len(deliveries)
        except BaseException:  # cancelled, or a bug: nobody else will answer what a source holds for us
            for delivery in deliveries:
                with suppress(Exception):
                    await delivery.retry(0.0)
            raise
        await self._answer(deliveries, outcomes)
        return len(deliveries)

    async def _answer(self, deliveries: Sequence[Delivery], outcomes: Sequence[Outcome]) -> None:
        """All of them, also when one cannot be answered; then its error."""
        if self._observe is not None:
            self._observe(Boundary.BEFORE_ACK.value)
        failed: list[Exception] = []
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            try:
                await _tell(delivery, outcome)
            except Exception as error:  # the source brings it again, and it is answered as a duplicate
                failed.append(error)
        if self._observe is not None:
            self._observe(Boundary.AFTER_ACK.value)
        if failed:
            raise failed[0]

    async def _forget_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._purged_at is None:
            self._purged_at = now
        if now - self._purged_at >= PURGE_EVERY_S:
            self._purged_at = now
            with suppress(LedgerUnavailable):  # next time, then
                if await self._ledger.purge(PURGE_MAX) == PURGE_MAX:
                    self._purged_at = now - PURGE_EVERY_S  # there is more: after the next batch


async def _tell(delivery: Delivery, outcome: Outcome) -> None:
    say(outcome)
    match outcome.status:
        case "busy" | "retry":
            await delivery.retry(outcome.after or 0.0)
        case "malformed" | "conflict":
            await delivery.reject(outcome.reason)
        case "done" | "duplicate" | "stale" | "dead" | "uncertain" | "ignored":
            await delivery.ack()
