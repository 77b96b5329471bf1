"""Whether the ledger can be written: while it cannot, nobody takes from a source.

A delivery about which nothing can be decided goes back to its source, and each return counts there: a queue's own
redrive policy would bury in an outage what succeeds after it. So an outage that one worker has noticed stops all of
them before the next batch. What a source holds meanwhile stays in its hand.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from semel.values.errors import ConfigError, SemelError
from semel.values.log import log
from semel.values.retry import backoff_s

ASK_S = 5.0  # a store that takes longer to say that it can be written cannot
AGAIN_BASE_S = 0.2
AGAIN_CAP_S = 5.0  # deliveries wait for us: they go on soon after the store does

# A store may say that it is well and fail whoever wants something of it. Each time that it is believed, deliveries are
# taken and go back, so it is believed ever later.
RELAPSE_WITHIN_S = 60.0
RELAPSE_BASE_S = 1.0
RELAPSE_CAP_S = 60.0


class Outage:
    """One for a ledger and a loop. Until it has been asked once, nobody knows: so the first taker asks."""

    def __init__(self, ask: Callable[[], Awaitable[object]], random: Callable[[], float]) -> None:
        """`ask` raises where the store cannot be written now."""
        self._ask = ask
        self._random = random
        self._well = False
        self._since: float | None = None  # loop time: when it was noticed; None: all is well, as far as we know
        self._ended_at = -math.inf  # loop time, of the last one
        self._relapses = 0  # of this one
        self._wait_first = False
        self._one = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        return self._since is not None

    def begins(self, why: Exception, asked_at: float) -> None:
        """Somebody who asked at that loop time could not be answered. What was asked before the end of the last outage
        is a part of that one."""
        self._well = False
        if self._since is not None:
            return
        self._since = asyncio.get_running_loop().time()
        if asked_at >= self._ended_at:
            is_relapse = self._since - self._ended_at < RELAPSE_WITHIN_S
            self._relapses = self._relapses + 1 if is_relapse else 0
            self._wait_first = is_relapse
        log.error("ledger_unavailable", sources="paused", error=why)

    async def over(self, stopping: asyncio.Event) -> bool:
        """Return when the ledger can be written; False when we are to stop. One asks, the others wait for it.

        Raises ConfigError: a store that refuses its work does not come back by itself."""
        failures = 0
        while not self._well and not stopping.is_set():
            async with self._one:
                if self._well or stopping.is_set():
                    break
                if self._wait_first:
                    await pause(backoff_s(self._relapses, self._random, RELAPSE_BASE_S, RELAPSE_CAP_S), stopping)
                    self._wait_first = False
                    continue
                asked_at = asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(ASK_S):
                        await self._ask()
                except ConfigError:
                    raise
                except (SemelError, OSError, TimeoutError) as error:
                    self.begins(error if str(error) else TimeoutError(f"no answer within {ASK_S:g} s"), asked_at)
                    failures += 1
                    await pause(backoff_s(failures, self._random, AGAIN_BASE_S, AGAIN_CAP_S), stopping)
                else:
                    self._ends()
        return not stopping.is_set()

    def _ends(self) -> None:
        self._well = True
        if self._since is not None:
            self._ended_at = asyncio.get_running_loop().time()
            log.warning("ledger_recovered", after_s=round(self._ended_at - self._since))
            self._since = None


async def pause(seconds: float, stopping: asyncio.Event) -> None:
    """Sleep, unless we are to stop."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass
