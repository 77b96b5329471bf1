"""Before the store: whoever waits for an answer is told at once when the store is slow or out of reach.

Only questions pass here that nothing has been done for yet: claims and arrivals. Settles and renewals go around it,
because giving up on them would repeat an effect. A question whose asker was sent away may still be answered later: a
lease that comes too late goes back unused, and an event that was accepted too late is a duplicate when it comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from semel.core.breaker import Breaker
from semel.core.watched import WatchedInbox, WatchedLedger
from semel.ports import Inbox, Ledger, Telemetry
from semel.values.claim import Claim, Granted, Settlement, Verdict
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import Acceptance, Arrival
from semel.values.outcome import Release

T = TypeVar("T")


SLOW_IN_A_ROW = 5  # round trips that open the breaker: a few may be slow because the machine was busy
STUCK = 10  # times our patience: then nobody waits for it any more


class Gate:
    """One for a store: claims and arrivals share what is known about it.

    A round trip longer than our patience is slow. When several in a row are, or one is stuck or fails, the breaker
    opens and everybody is sent away at once. It closes when a probe is answered within our patience."""

    def __init__(self, breaker: Breaker, patience_s: float, excused: Callable[[], bool] = lambda: False) -> None:
        """`excused`: the store is held by a handler's own transaction now, which says nothing about the store."""
        self._breaker = breaker
        self._patience_s = patience_s
        self._excused = excused

    async def ask(self, call: Callable[[], Awaitable[T]], too_late: Callable[[T], None] | None = None) -> T:
        """The answer of `call`, if it comes in time. `too_late` is told one that comes afterwards."""
        if not self._breaker.admit():
            raise LedgerUnavailable("The ledger was slow or out of reach a moment ago.")
        asked = asyncio.ensure_future(call())
        try:
            patiences = await self._wait(asked, STUCK if self._breaker.state == "closed" else 1)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda late: _late(late, too_late))
            raise
        if not asked.done():
            self._breaker.trip()
            asked.add_done_callback(lambda late: _late(late, too_late))
            raise LedgerUnavailable("The ledger is stuck.")
        if isinstance(asked.exception(), LedgerUnavailable):
            self._breaker.trip()
        elif patiences == 0:
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        return asked.result()

    async def _wait(self, asked: asyncio.Future[T], most: int) -> int:
        """How many patiences it took, at most so many. What is excused is waited for, and not counted."""
        taken = 0
        while taken < most:
            done, _ = await asyncio.wait((asked,), timeout=self._patience_s)
            if done:
                break
            if not self._excused():
                taken += 1
        return taken


def _late(asked: asyncio.Future[T], too_late: Callable[[T], None] | None) -> None:
    if not asked.cancelled() and asked.exception() is None and too_late is not None:
        too_late(asked.result())


class GatedLedger(WatchedLedger):
    """A ledger whose claims pass a gate."""

    def __init__(self, ledger: Ledger, gate: Gate, telemetry: Telemetry | None) -> None:
        super().__init__(ledger, telemetry)
        self._gate = gate
        self._going_back: set[asyncio.Future[list[bool]]] = set()

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        return await self._gate.ask(lambda: super(GatedLedger, self).claim(claims), self._give_back)

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
        return await self._gate.ask(lambda: super(GatedInbox, self).accept(arrivals))
