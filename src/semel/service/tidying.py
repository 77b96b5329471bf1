"""Forgetting what is past its retention, as fast as it comes, for as long as the service runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from semel.core.worker import PURGE_EVERY_S, PURGE_MAX
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.log import log

MORE_S = 0.05  # between two batches of a purge: others write too


async def tidy(what: str, purge: Callable[[int], Awaitable[int]], then: Callable[[], Awaitable[None]]) -> None:
    """`purge` deletes at most so many at a time. When there is no more, `then` may log what waits for nobody. `what`
    names the rows for the log."""
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
            pass  # next time, then
        except Exception as error:  # whatever it is: a store that forgets nothing any more fills up
            said = str(error) if isinstance(error, SemelError) else type(error).__name__
            log.error("purge_failed", what=what, next_in_s=PURGE_EVERY_S, error=said)
