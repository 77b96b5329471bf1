"""Settles the acts of one batch: what ends in one tick travels together, and nothing waits for a slow neighbour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from semel.core.act import Act
from semel.core.answers import answer_to
from semel.core.batcher import Batcher
from semel.core.boundaries import Boundary
from semel.core.steady import steady_s
from semel.ports import Telemetry
from semel.values.claim import Settlement
from semel.values.errors import NotRecorded, SemelError

AGAIN_S = 0.05  # a settle that failed is tried again while its lease lasts: giving up would repeat the effect


class Settling:
    """The settles under way. An act whose settle is refused gets no answer: someone else has it now."""

    def __init__(
        self,
        lane: Batcher[Settlement, bool],
        letters: Batcher[Settlement, bool],
        at: Callable[[Boundary], None],
        telemetry: Telemetry | None,
        early: bool,
    ) -> None:
        """`letters`: a lane for what is given up on. It may have to be kept in another store first, and when that is
        slow or gone nobody else may wait for it. `early`: what has ended is settled while others still run; a lone act
        need not."""
        self._lane = lane
        self._letters = letters
        self._at = at
        self._telemetry = telemetry
        self._early = early
        self._loop = asyncio.get_running_loop()
        self._next: list[tuple[Act, Settlement]] = []
        self._under_way: list[tuple[list[tuple[Act, Settlement]], asyncio.Future[list[bool]]]] = []

    def add(self, act: Act, settlement: Settlement) -> None:
        """Settle soon: with everything else that ends in this tick."""
        self._at(Boundary.BEFORE_SETTLE)
        act.settling = True
        if self._early and not self._next:
            self._loop.call_soon(self._send)
        self._next.append((act, settlement))

    async def done(self) -> None:
        """All that was added is settled and answered, or refused. Raises LedgerUnavailable when that is impossible."""
        self._send()
        while self._under_way:
            group, asked = self._under_way.pop()
            try:
                if self._telemetry is None:
                    kept = await asked
                else:
                    with self._telemetry.span("settle"):
                        kept = await asked
            except SemelError:  # also of a server that was changed meanwhile: the effect has happened
                await self._again(group)
                continue
            self._at(Boundary.AFTER_SETTLE)
            for (act, settlement), held in zip(group, kept, strict=True):
                if held:
                    act.answer = answer_to(act, settlement.outcome)
                elif self._telemetry is not None:
                    self._telemetry.refused(act.handler.name)

    def _send(self) -> None:
        if self._next:
            group, self._next = self._next, []
            given_up = [one for one in group if one[1].letter is not None]
            plain = [one for one in group if one[1].letter is None]
            for lane, some in ((self._letters, given_up), (self._lane, plain)):
                if some:
                    self._under_way.append((some, lane.ask([settlement for _, settlement in some])))

    async def _again(self, group: list[tuple[Act, Settlement]]) -> None:
        """Settling is idempotent on its token, so a failed round trip may be repeated."""
        now = steady_s()
        for act, settlement in group:
            # one lease's time at most, also where the lease can still be renewed: a letterbox may be out of reach alone
            act.settles_until = act.settles_until or now + settlement.lease.claim.lease_ms / 1000
        await asyncio.sleep(AGAIN_S)
        if steady_s() > min(min(act.lease_ends, act.settles_until) for act, _ in group):
            raise NotRecorded("what was done could not be recorded in time; it will be delivered again")
        self._next = [*group, *self._next]
        self._send()
