"""What goes on between requests: letters are handled, sources are consumed, notifications are sent, and what is past
its retention is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from semel.app import Semel
from semel.core.letterbox import inbox_of
from semel.core.pump import Pump
from semel.ports import Inbox
from semel.service.store import served_inbox, served_ledger
from semel.service.tidying import tidy
from semel.service.trouble import StoreHealth, Trouble
from semel.values.errors import SemelError
from semel.values.log import log

if TYPE_CHECKING:
    from semel.service.consuming import Consuming  # they count, which a mounted application need not
    from semel.service.relaying import Relaying


class Background:
    """Runs on the loop that `start` is called on."""

    def __init__(
        self,
        app: Semel,
        resume: Callable[[str], AbstractContextManager[object]] | None = None,
        consuming: Consuming | None = None,
        relaying: Relaying | None = None,
    ) -> None:
        self._app = app
        self.consuming = consuming
        self.relaying = relaying
        self._resume = resume
        self._pump: Pump | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        ledger = self._app.ledger
        if (letters := inbox_of(ledger)) is not None:
            telemetry = self._app.telemetry
            deciding = StoreHealth(Trouble("ledger_unavailable"), quiet=True)  # the pump says so, of each
            taking = StoreHealth(Trouble("inbox_unavailable", "inbox_recovered"))
            engine = self._app.new_engine(served_ledger(ledger, telemetry, deciding))
            inbox = served_inbox(letters, telemetry, taking)
            self._pump = Pump(inbox, engine.process, self._app.handlers, self._app.concurrency, self._resume)
            self._tasks.append(asyncio.create_task(_log_found(inbox)))
            self._tasks.append(asyncio.create_task(self._pump.run()))
        self._tasks.append(asyncio.create_task(tidy("events", ledger.purge, self._say_orphans)))
        if self.consuming is not None:
            self.consuming.start()
        if self.relaying is not None:
            self.relaying.start()

    def wake(self) -> None:
        """A letter has come."""
        if self._pump is not None:
            self._pump.wake()

    def begin_to_stop(self) -> None:
        """Take no more letters and no more deliveries; what is in hand goes on."""
        if self._pump is not None:
            self._pump.begin_to_stop()
        if self.consuming is not None:
            self.consuming.begin_to_stop()
        if self.relaying is not None:
            self.relaying.begin_to_stop()

    async def stop(self, within_s: float) -> None:
        ending = [part.stop(within_s) for part in (self._pump, self.consuming, self.relaying) if part is not None]
        await asyncio.gather(*ending)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _say_orphans(self) -> None:
        inbox = inbox_of(self._app.ledger)
        if inbox is None:
            return
        known = {handler.name for handler in self._app.handlers}
        for depth in await inbox.depths():
            if depth.lane not in known and depth.waiting:
                log.error("inbox_unserved", handler=depth.lane, items=depth.waiting)


async def _log_found(inbox: Inbox) -> None:
    """Log how many inbox items an earlier process left. A store that cannot be reached now is logged elsewhere."""
    with suppress(SemelError):
        items = sum(depth.waiting + depth.taken for depth in await inbox.depths())
        log.info("inbox_found", items=items)
