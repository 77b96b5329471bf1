"""Stops calls to a ledger that is slow or unavailable.

- `LedgerBreaker` refuses claims and arrivals at once while the ledger is slow or fails.
- `Outage` pauses sources while the ledger accepts no writes.
- `RoundTrip` measures the usual round trip, which the limits of the breaker follow.

Only calls that nothing was done for yet pass the breaker: claims, arrivals, new notifications. Settlements and renewals
bypass it, because an abandoned settlement would repeat an effect. A call whose caller has gone may still be answered.
A lease that is granted too late is released, and an event that is accepted too late is a duplicate when it is
redelivered.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from semel.core.breaker import Breaker, State
from semel.values.errors import ConfigError, LedgerUnavailable, SemelError
from semel.values.log import log
from semel.values.retry import backoff_s

WINDOW_S = 10.0  # a store that is slow for two windows is slow as usual
WINDOW_CALLS = 5  # minimum per window: fewer slow calls do not change the usual round trip


class RoundTrip:
    """The fastest answered call of the last two windows.

    The minimum ignores calls that waited behind others. It falls with the first fast call. It rises only after every
    call of two windows was slow, so a store that becomes slow is noticed first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = -math.inf  # the current window
        self._calls = 0
        self._fastest = self._fastest_before = math.inf  # of the current window, and of the one before

    @property
    def usual_s(self) -> float | None:
        """None before the first answer."""
        usual_s = min(self._fastest, self._fastest_before)
        return None if usual_s == math.inf else usual_s

    def add(self, seconds: float) -> None:
        """Record the duration of an answered call."""
        now = self._clock()
        if now - self._began >= WINDOW_S and (self._calls >= WINDOW_CALLS or self._fastest == math.inf):
            self._fastest_before, self._fastest = self._fastest, math.inf
            self._began, self._calls = now, 0
        self._calls += 1
        self._fastest = min(self._fastest, seconds)


T = TypeVar("T")

SLOW_IN_A_ROW = 5  # calls that open the breaker: a few may be slow because the machine was busy
STUCK = 10  # limits after which a call is abandoned
STUCK_MAX_S = 5.0  # … at most: senders give up after about this time
USUAL_TIMES = 4  # a call that takes this many times the usual round trip is slow
LIMIT_MAX_S = 2.0  # a call that takes longer is slow, even if that is usual
ITEM_S = 0.001  # added to the limit for each item under way; SQLite takes 0.06 ms on two cores under load


class LedgerBreakerReport(Struct, frozen=True):
    """The state of the breaker for operators. It names neither the store nor its error: the log does."""

    breaker: State
    round_trip_ms: float | None  # None before the first answer
    open_s: float = 0.0  # since the breaker left the closed state
    reason: str = ""  # slow, stuck or failed
    next_probe_s: float = 0.0


class LedgerBreaker:
    """Refuses calls to a slow or unavailable store. Each store has one: claims and arrivals share it.

    A call has a limit: a multiple of the store's usual round trip, at least `patience_s` and at most LIMIT_MAX_S, plus
    ITEM_S for each item that is under way. When several calls in a row exceed their limit, or one is stuck or fails,
    the breaker opens and calls are refused at once. It closes when a probe answers within its limit. A store that
    stays slow changes its usual round trip, so its probes succeed after a while."""

    def __init__(self, breaker: Breaker, patience_s: float, excused: Callable[[], bool] = lambda: False) -> None:
        """`excused` returns whether a handler's transaction holds the store. A call that waits for it is not slow."""
        self.patience_s = patience_s
        self._breaker = breaker
        self._excused = excused
        self._round_trip = RoundTrip()
        self._items = 0  # under way
        self._reason = ""  # why the breaker opened

    @property
    def is_closed(self) -> bool:
        return self._breaker.state == "closed"

    def report(self) -> LedgerBreakerReport:
        usual_s = self._round_trip.usual_s
        state = self._breaker.state
        return LedgerBreakerReport(
            state,
            None if usual_s is None else round(usual_s * 1000, 1),
            self._breaker.open_for_s(),
            "" if state == "closed" else self._reason,
            round(self._breaker.ready_in_s(), 1),
        )

    async def ask(
        self, call: Callable[[], Awaitable[T]], too_late: Callable[[T], None] | None = None, items: int = 1
    ) -> T:
        """Return the answer of `call`, if it arrives in time. `too_late` gets an answer that arrives later."""
        if not self._breaker.admit():
            raise LedgerUnavailable("The ledger was slow or unavailable a moment ago.")
        with self.under_way(items):
            limit_s = self._limit_s()
            pending = asyncio.ensure_future(call())
            begun = time.monotonic()
            try:
                limits = await self._wait(pending, limit_s, self._limits(limit_s) if self.is_closed else 1)
            except asyncio.CancelledError:
                pending.add_done_callback(lambda late: self._answered_late(late, begun, too_late))
                raise
        if not pending.done():
            self._trip("stuck")
            pending.add_done_callback(lambda late: self._answered_late(late, begun, too_late))
            raise LedgerUnavailable("The ledger is stuck.")
        if isinstance(pending.exception(), LedgerUnavailable):
            self._trip("failed")
            return pending.result()
        if limits is not None:
            self._round_trip.add(time.monotonic() - begun)
        if not limits:
            self._breaker.succeeded()
        else:
            self._reason = "slow"
            self._breaker.failed()
        return pending.result()

    @contextmanager
    def under_way(self, items: int) -> Iterator[None]:
        """While the store processes these items, the limit of concurrent calls is higher."""
        self._items += items
        try:
            yield
        finally:
            self._items -= items

    def _limit_s(self) -> float:
        usual_s = self._round_trip.usual_s
        limit_s = LIMIT_MAX_S if usual_s is None else min(USUAL_TIMES * usual_s, LIMIT_MAX_S)
        return max(limit_s, self.patience_s) + self._items * ITEM_S

    def _limits(self, limit_s: float) -> int:
        """How many limits must pass until a call is stuck."""
        return max(1, round(min(STUCK * limit_s, max(STUCK_MAX_S, STUCK * self.patience_s)) / limit_s))

    async def _wait(self, pending: asyncio.Future[T], limit_s: float, most: int) -> int | None:
        """Return how many limits passed, at most `most`. Excused limits do not count; None: all were excused."""
        passed, excused = 0, False
        while passed < most:
            done, _ = await asyncio.wait((pending,), timeout=limit_s)
            if not done:
                await asyncio.sleep(0)  # the loop was busy: the answer may have arrived, with its callback due
            if pending.done():
                break
            if self._excused():
                excused = True
            else:
                passed += 1
        return None if excused and not passed else passed

    def _trip(self, reason: str) -> None:
        self._reason = reason
        self._breaker.trip()

    def _answered_late(self, pending: asyncio.Future[T], begun: float, too_late: Callable[[T], None] | None) -> None:
        """Measure an answer whose caller has gone. Otherwise a store that stays slow would never be accepted."""
        if pending.cancelled() or pending.exception() is not None:
            return
        self._round_trip.add(time.monotonic() - begun)
        if too_late is not None:
            too_late(pending.result())


CHECK_S = 5.0  # a store that does not confirm within this time that it accepts writes is unavailable
AGAIN_BASE_S = 0.2
AGAIN_CAP_S = 5.0  # deliveries wait, so they resume soon after the store does

# A store may pass the check and fail the next real call. Each time, deliveries are received and returned. So after a
# relapse the next check is delayed, longer each time.
RELAPSE_WITHIN_S = 60.0
RELAPSE_BASE_S = 1.0
RELAPSE_CAP_S = 60.0


class Outage:
    """Tracks whether the ledger accepts writes. While it does not, no worker receives from a source.

    A delivery that cannot be decided is returned to its source, and the source counts each return: during an outage the
    redrive policy of a queue would give up events that succeed afterwards. So an outage that one worker notices stops
    all workers before their next batch. There is one `Outage` per ledger and event loop. The first worker checks the
    ledger before it receives."""

    def __init__(self, check: Callable[[], Awaitable[object]], random: Callable[[], float]) -> None:
        """`check` raises if the ledger does not accept writes."""
        self._check = check
        self._random = random
        self._is_writable = False
        self._since: float | None = None  # loop time at which it was noticed; None: no outage
        self._ended_at = -math.inf  # loop time of the last end
        self._relapses = 0
        self._wait_first = False
        self._one_checks = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        return self._since is not None

    def begins(self, error: Exception, called_at: float) -> None:
        """Record a failed call. A call that was made (in loop time) before the last outage ended belongs to that
        outage."""
        self._is_writable = False
        if self._since is not None:
            return
        self._since = asyncio.get_running_loop().time()
        if called_at >= self._ended_at:
            is_relapse = self._since - self._ended_at < RELAPSE_WITHIN_S
            self._relapses = self._relapses + 1 if is_relapse else 0
            self._wait_first = is_relapse
        log.error("ledger_unavailable", sources="paused", error=error)

    async def over(self, stopping: asyncio.Event) -> bool:
        """Wait until the ledger accepts writes. Returns False if `stopping` is set first. One worker checks; the others
        wait for it.

        Raises ConfigError: a store that refuses its configuration does not recover by itself."""
        failures = 0
        while not self._is_writable and not stopping.is_set():
            async with self._one_checks:
                if self._is_writable or stopping.is_set():
                    break
                if self._wait_first:
                    await pause(backoff_s(self._relapses, self._random, RELAPSE_BASE_S, RELAPSE_CAP_S), stopping)
                    self._wait_first = False
                    continue
                called_at = asyncio.get_running_loop().time()
                try:
                    async with asyncio.timeout(CHECK_S):
                        await self._check()
                except ConfigError:
                    raise
                except (SemelError, OSError, TimeoutError) as error:
                    self.begins(error if str(error) else TimeoutError(f"no answer within {CHECK_S:g} s"), called_at)
                    failures += 1
                    await pause(backoff_s(failures, self._random, AGAIN_BASE_S, AGAIN_CAP_S), stopping)
                    continue
                self._is_writable = True
                if self._since is not None:
                    self._ended_at = asyncio.get_running_loop().time()
                    log.warning("ledger_recovered", after_s=round(self._ended_at - self._since))
                    self._since = None
        return not stopping.is_set()


async def pause(seconds: float, stopping: asyncio.Event) -> None:
    """Sleep until the time is over or `stopping` is set."""
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        pass
