"""Before the store: whoever waits for an answer is told at once when the store is slow or out of reach.

Only questions pass here that nothing has been done for yet: claims and arrivals. Settles and renewals go around it,
because giving up on them would repeat an effect. A question whose asker was sent away may still be answered later: a
lease that comes too late goes back unused, and an event that was accepted too late is a duplicate when it comes again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from msgspec import Struct

from semel.core.breaker import Breaker, State
from semel.core.round_trip import RoundTrip
from semel.core.watched import WatchedInbox, WatchedLedger
from semel.ports import Inbox, Ledger, Telemetry
from semel.values.claim import Claim, Granted, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival
from semel.values.outcome import Release

T = TypeVar("T")

SLOW_IN_A_ROW = 5  # calls that open the breaker: a few may be slow because the machine was busy
STUCK = 10  # times the limit: then nobody waits for the call any more
STUCK_MAX_S = 5.0  # … and not for longer: senders give up after about this time
USUAL_TIMES = 4  # a call that takes this many times the usual round trip is slow
LIMIT_MAX_S = 2.0  # a call that takes longer is slow, however usual that is
ITEM_S = 0.001  # added to the limit for each item under way; SQLite takes 0.06 ms on two cores under load


class GateReport(Struct, frozen=True):
    """The state of the breaker for operators. It names neither the store nor its error: the log does."""

    breaker: State
    round_trip_ms: float | None  # None: nothing was measured yet
    open_s: float = 0.0  # how long the breaker has not been closed
    reason: str = ""  # slow, stuck or failed
    next_probe_s: float = 0.0


class Gate:
    """Refuses calls to a slow or unreachable store. There is one for a store: claims and arrivals share it.

    A call has a limit: a multiple of the store's usual round trip, at least `patience_s` and at most LIMIT_MAX_S, plus
    ITEM_S for each item that is under way. When several calls in a row exceed their limit, or one is stuck or fails,
    the breaker opens and calls are refused at once. It closes when a probe answers within its limit. A store that
    stays slow changes its usual round trip, so its probes succeed after a while."""

    def __init__(self, breaker: Breaker, patience_s: float, excused: Callable[[], bool] = lambda: False) -> None:
        """`excused`: a handler's own transaction holds the store now, which says nothing about the store."""
        self.patience_s = patience_s
        self._breaker = breaker
        self._excused = excused
        self._round_trip = RoundTrip()
        self._items = 0  # under way
        self._reason = ""  # why the breaker opened

    @property
    def is_closed(self) -> bool:
        return self._breaker.state == "closed"

    def report(self) -> GateReport:
        usual_s = self._round_trip.usual_s
        state = self._breaker.state
        return GateReport(
            state,
            None if usual_s is None else round(usual_s * 1000, 1),
            self._breaker.open_for_s(),
            "" if state == "closed" else self._reason,
            round(self._breaker.ready_in_s(), 1),
        )

    async def ask(
        self, call: Callable[[], Awaitable[T]], too_late: Callable[[T], None] | None = None, items: int = 1
    ) -> T:
        """The answer of `call`, if it comes in time. `too_late` gets an answer that comes afterwards."""
        if not self._breaker.admit():
            raise LedgerUnavailable("The ledger was slow or out of reach a moment ago.")
        with self.under_way(items):
            limit_s = self._limit_s()
            asked = asyncio.ensure_future(call())
            begun = time.monotonic()
            try:
                limits = await self._wait(asked, limit_s, self._limits(limit_s) if self.is_closed else 1)
            except asyncio.CancelledError:
                asked.add_done_callback(lambda late: self._answered_late(late, begun, too_late))
                raise
        if not asked.done():
            self._trip("stuck")
            asked.add_done_callback(lambda late: self._answered_late(late, begun, too_late))
            raise LedgerUnavailable("The ledger is stuck.")
        if isinstance(asked.exception(), LedgerUnavailable):
            self._trip("failed")
            return asked.result()
        if limits is not None:
            self._round_trip.add(time.monotonic() - begun)
        if not limits:
            self._breaker.succeeded()
        else:
            self._reason = "slow"
            self._breaker.failed()
        return asked.result()

    @contextmanager
    def under_way(self, items: int) -> Iterator[None]:
        """The store has to process these items: calls beside them take longer."""
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
        """The number of limits after which a call is stuck."""
        return max(1, round(min(STUCK * limit_s, max(STUCK_MAX_S, STUCK * self.patience_s)) / limit_s))

    async def _wait(self, asked: asyncio.Future[T], limit_s: float, most: int) -> int | None:
        """The number of limits that passed, at most `most`. Limits that are excused do not count; None: only such."""
        passed, excused = 0, False
        while passed < most:
            done, _ = await asyncio.wait((asked,), timeout=limit_s)
            if not done:
                await asyncio.sleep(0)  # the loop was busy: the answer may be there and its callback due
            if asked.done():
                break
            if self._excused():
                excused = True
            else:
                passed += 1
        return None if excused and not passed else passed

    def _trip(self, reason: str) -> None:
        self._reason = reason
        self._breaker.trip()

    def _answered_late(self, asked: asyncio.Future[T], begun: float, too_late: Callable[[T], None] | None) -> None:
        """The caller has gone. The round trip counts: without it a store that stays slow would stay an outage."""
        if asked.cancelled() or asked.exception() is not None:
            return
        self._round_trip.add(time.monotonic() - begun)
        if too_late is not None:
            too_late(asked.result())


class GatedLedger(WatchedLedger):
    """A ledger whose claims pass a gate."""

    def __init__(self, ledger: Ledger, gate: Gate, telemetry: Telemetry | None) -> None:
        super().__init__(ledger, telemetry)
        self._gate = gate
        self._going_back: set[asyncio.Future[list[bool]]] = set()

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._gate.ask(lambda: super(GatedLedger, self).claim(claims), self._give_back, len(claims))

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        with self._gate.under_way(len(settlements)):
            return await super().settle(settlements)

    def _give_back(self, verdicts: list[Verdict]) -> None:
        unused = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        if unused:
            back = asyncio.ensure_future(self.settle(unused))
            self._going_back.add(back)
            back.add_done_callback(self._gone_back)

    def _gone_back(self, back: asyncio.Future[list[bool]]) -> None:
        self._going_back.discard(back)
        if not back.cancelled():
            back.exception()  # what could not be given back lapses by itself


class GatedInbox(WatchedInbox):
    """An inbox whose arrivals pass a gate."""

    def __init__(self, inbox: Inbox, gate: Gate, telemetry: Telemetry | None) -> None:
        super().__init__(inbox, telemetry)
        self._gate = gate

    async def accept(self, arrivals: Sequence[Arrival]) -> list[Acceptance]:
        return await self._gate.ask(lambda: super(GatedInbox, self).accept(arrivals), items=len(arrivals))
