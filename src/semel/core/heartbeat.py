"""Keeps leases alive while their handlers run, and stops handlers whose time or lease is over.

Leases are measured by a clock that counts while the process or the machine stalls. A lease counts from the moment its
claim or renewal was *sent*, so ours always ends before the store's. The handler is cancelled a tenth of the lease
before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from semel.core.act import Act
from semel.core.steady import steady_s
from semel.values.claim import Lease
from semel.values.errors import SemelError

TICK_S = 0.05  # how late a timeout may come
AGAIN = 0.1  # share of the lease after which a failed renewal is tried again


class Heartbeat:
    """One timer for all running acts of a loop; it runs only while there are some."""

    def __init__(self, renew: Callable[[Sequence[Lease]], Awaitable[list[bool]]]) -> None:
        self._renew = renew
        self._loop = asyncio.get_running_loop()
        self._acts: set[Act] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._renewals: set[asyncio.Task[None]] = set()

    def watch(self, act: Act) -> None:
        self._acts.add(act)
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def forget(self, act: Act) -> None:
        self._acts.discard(act)

    def _tick(self) -> None:
        self._timer = None
        now, lease_now = self._loop.time(), steady_s()
        due: list[Act] = []
        for act in self._acts:
            if lease_now >= act.acts_until:
                if not act.lost:
                    act.stop("the lease could not be renewed in time", lost=True)
            elif act.times_out is not None and now >= act.times_out:
                if not act.stopped:
                    act.stop(_time_is_up(act, now), lost=False)
            elif lease_now >= act.renew_at and not act.renewing:
                due.append(act)
        if due:
            task = self._loop.create_task(self._renew_all(due, lease_now))
            self._renewals.add(task)
            task.add_done_callback(self._renewals.discard)
        if self._acts:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    async def _renew_all(self, acts: list[Act], asked_at: float) -> None:
        held = [(act, act.granted.lease) for act in acts if act.granted is not None]  # others were given back meanwhile
        for act, _ in held:
            act.renewing = True
        try:
            kept = await self._renew([lease for _, lease in held])
        except SemelError:
            for act, _ in held:
                act.renewing = False
                act.renew_at = steady_s() + AGAIN * act.lease_s
            return
        for (act, _), is_held in zip(held, kept, strict=True):
            if is_held:
                act.holds_since(asked_at)
            elif act in self._acts and not act.lost:
                act.stop("the lease was taken over", lost=True)


def _time_is_up(act: Act, now: float) -> str:
    if act.until is not None and now >= act.until:
        return "the time of its deliverer was over"
    return f"timed out after {act.handler.timeout_s:g} s"
