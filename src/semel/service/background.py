"""What goes on between requests: letters are handled, sources are consumed, notifications are sent, and what is past
its retention is forgotten."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from semel.app import Semel
from semel.core.letterbox import inbox_of
from semel.core.pump import Pump
from semel.service.store import served_inbox, served_ledger
from semel.service.tidying import tidy
from semel.service.trouble import StoreHealth, Trouble

if TYPE_CHECKING:
    from semel.service.consuming import Consuming  # they count, which a mounted application need not
    from semel.service.relaying import Relaying

log = logging.getLogger("semel")


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
            deciding = StoreHealth(Trouble("letters go back"), quiet=True)  # the pump says so, of each
            taking = StoreHealth(Trouble("the inbox cannot be handled, trying again", "the inbox is handled again"))
            engine = self._app.new_engine(served_ledger(ledger, telemetry, deciding))
            inbox = served_inbox(letters, telemetry, taking)
            self._pump = Pump(inbox, engine.process, self._app.handlers, self._app.concurrency, self._resume)
            self._tasks.append(asyncio.create_task(self._pump.run()))
        self._tasks.append(asyncio.create_task(tidy("nothing", ledger.purge, self._say_orphans)))
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
                log.error(
                    "%d events wait for %s, which is no route or handler here: give one that name, or run what has it",
                    depth.waiting,
                    depth.lane,
                )
