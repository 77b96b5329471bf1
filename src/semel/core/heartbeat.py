"""Keeps leases alive while their handlers run, and stops handlers whose time or lease is over.

Leases are measured by a clock that counts while the process or the machine stalls. A lease counts from the moment when
its claim or renewal was *sent*, so it always ends here before it ends in the store. The handler is cancelled a tenth of
the lease before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from semel.core.clock import steady_s
from semel.core.handler_run import HandlerRun
from semel.values.claim import Lease
from semel.values.errors import SemelError

TICK_S = 0.05  # how late a timeout may come
RETRY = 0.1  # share of the lease after which a failed renewal is repeated


class Heartbeat:
    """One timer for all runs of a loop. It runs only while there are runs."""

    def __init__(self, renew: Callable[[Sequence[Lease]], Awaitable[list[bool]]]) -> None:
        self._renew = renew
        self._loop = asyncio.get_running_loop()
        self._runs: set[HandlerRun] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def watch(self, run: HandlerRun) -> None:
        self._runs.add(run)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def forget(self, run: HandlerRun) -> None:
        self._runs.discard(run)

    def _tick(self) -> None:
        self._timer = None
        now, lease_now = self._loop.time(), steady_s()
        due: list[HandlerRun] = []
        for run in self._runs:
            if lease_now >= run.effects_until:
                if not run.lost:
                    run.stop("the lease could not be renewed in time", lost=True)
            elif run.times_out is not None and now >= run.times_out:
                if not run.stopped:
                    run.stop(_timeout_reason(run, now), lost=False)
            elif lease_now >= run.renew_at and not run.renewing:
                due.append(run)
        if due:
            task = self._loop.create_task(self._renew_all(due, lease_now))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        if self._runs:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    async def _renew_all(self, runs: list[HandlerRun], asked_at: float) -> None:
        held = [(run, run.granted.lease) for run in runs if run.granted is not None]  # others were released meanwhile
        for run, _ in held:
            run.renewing = True
        try:
            kept = await self._renew([lease for _, lease in held])
        except SemelError:
            for run, _ in held:
                run.renewing = False
                run.renew_at = steady_s() + RETRY * run.lease_s
            return
        for (run, _), is_held in zip(held, kept, strict=True):
            if is_held:
                run.start_lease(asked_at)
            elif run in self._runs and not run.lost:
                run.stop("the lease was taken over", lost=True)


def _timeout_reason(run: HandlerRun, now: float) -> str:
    if run.until is not None and now >= run.until:
        return "the time of its deliverer was over"
    return f"timed out after {run.handler.timeout_s:g} s"
