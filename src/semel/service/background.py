"""Background work of the service: inbox items, sources, the relay, and the purge of what is past its retention."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from semel.app import Semel
from semel.core.dead_letter_store import inbox_of
from semel.core.inbox_flow import InboxWorker
from semel.core.worker import PURGE_EVERY_S, PURGE_MAX
from semel.ports import Inbox
from semel.service.served_ledger import ServedInbox, ServedLedger, StoreHealth
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.log import IncidentLog, log

if TYPE_CHECKING:
    from semel.service.consumers import Consumers  # they need metrics, a mounted application does not
    from semel.service.relays import OutboxRelay

MORE_S = 0.05  # between two batches of a purge: other writers need the store too


async def purge_loop(what: str, purge: Callable[[int], Awaitable[int]], then: Callable[[], Awaitable[None]]) -> None:
    """Delete what is past its retention, for as long as the service runs.

    `what` names the rows in the log. `purge` deletes at most the given number of rows. `then` runs when no rows are
    left, and may log work that nothing processes."""
    pause_s = 0.0
    while True:
        await asyncio.sleep(pause_s)
        pause_s = PURGE_EVERY_S
        try:
            if await purge(PURGE_MAX) >= PURGE_MAX:
                pause_s = MORE_S
            else:
                await then()
        except LedgerUnavailable:
            pass  # retried at the next round
        except Exception as error:  # any error: without a purge the store fills up
            text = str(error) if isinstance(error, SemelError) else type(error).__name__
            log.error("purge_failed", what=what, next_in_s=PURGE_EVERY_S, error=text)


class Background:
    """Runs all background work on the loop that `start` is called on."""

    def __init__(
        self,
        app: Semel,
        resume: Callable[[str], AbstractContextManager[object]] | None = None,
        consumers: Consumers | None = None,
        relay: OutboxRelay | None = None,
    ) -> None:
        self._app = app
        self.consumers = consumers
        self.relay = relay
        self._resume = resume
        self._inbox_worker: InboxWorker | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        ledger = self._app.ledger
        if (stored := inbox_of(ledger)) is not None:
            telemetry = self._app.telemetry
            ledger_health = StoreHealth(IncidentLog("ledger_unavailable"), quiet=True)  # logged by the inbox worker
            inbox_health = StoreHealth(IncidentLog("inbox_unavailable", "inbox_recovered"))
            engine = self._app.new_engine(ServedLedger(ledger, telemetry, ledger_health))
            inbox = ServedInbox(stored, telemetry, inbox_health)
            self._inbox_worker = InboxWorker(
                inbox, engine.process, self._app.handlers, self._app.concurrency, self._resume
            )
            self._tasks.append(asyncio.create_task(_log_inbox(inbox)))
            self._tasks.append(asyncio.create_task(self._inbox_worker.run()))
        self._tasks.append(asyncio.create_task(purge_loop("events", ledger.purge, self._log_unserved)))
        if self.consumers is not None:
            self.consumers.start()
        if self.relay is not None:
            self.relay.start()

    def wake(self) -> None:
        """An inbox item was added."""
        if self._inbox_worker is not None:
            self._inbox_worker.wake()

    def begin_to_stop(self) -> None:
        """Take no more inbox items and deliveries; finish those in flight."""
        if self._inbox_worker is not None:
            self._inbox_worker.begin_to_stop()
        if self.consumers is not None:
            self.consumers.begin_to_stop()
        if self.relay is not None:
            self.relay.begin_to_stop()

    async def stop(self, within_s: float) -> None:
        ending = [part.stop(within_s) for part in (self._inbox_worker, self.consumers, self.relay) if part is not None]
        await asyncio.gather(*ending)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _log_unserved(self) -> None:
        inbox = inbox_of(self._app.ledger)
        if inbox is None:
            return
        known = {handler.name for handler in self._app.handlers}
        for depth in await inbox.depths():
            if depth.lane not in known and depth.waiting:
                log.error("inbox_unserved", handler=depth.lane, items=depth.waiting)


async def _log_inbox(inbox: Inbox) -> None:
    """Log how many inbox items an earlier process left. A store that cannot be reached now is logged elsewhere."""
    with suppress(SemelError):
        items = sum(depth.waiting + depth.taken for depth in await inbox.depths())
        log.info("inbox_found", items=items)
