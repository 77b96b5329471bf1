"""Puts letters on a bus. What is not known to be there raises, so that the ledger is not told.

A bus takes everything and gives nothing back. So there is at least one copy of each letter on it, and perhaps several:
after a lost reply the entry is put again, with the same `id` in its detail. A letter whose settle was refused stays on
the bus too; the end that the event came to instead has a higher token. The ledger has each letter once, and that is
what people list, replay and discard.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from semel.adapters.letterboxes.eventbridge.address import parse
from semel.adapters.letterboxes.eventbridge.client import DENIED, MISSING, Client, Failed, is_passing
from semel.adapters.letterboxes.eventbridge.entries import Entry, calls, entry_aside, entry_of
from semel.ports import Traits
from semel.values.claim import Lease, Settlement
from semel.values.errors import LedgerUnavailable
from semel.values.log import log
from semel.values.retry import backoff_s

DEADLINE_S = 8.0  # for all tries: well under a lease
BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
LOOK_AGAIN_S = 300.0  # a bus that was there is believed to be there for so long
LOOK_SOON_S = 5.0  # where it could not be looked for
PUT_MAX = 10_000  # letters that are known to be on the bus: a settle that is tried again puts none of them twice
PUT_AGAIN_S = 600.0  # longer than any settle is tried; a ledger that has lost its memory may give a token again

NO_BUS = "there is no such bus, and EventBridge would say yes to every letter and drop it: create the bus"

Fact = tuple[str, str]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class EventBridgeLetters:
    """One bus."""

    traits = Traits(name="EventBridge", durable=True, transactional=False)

    def __init__(self, url: str, clock: Callable[[], int] = _now_ms) -> None:
        self.address = parse(url)
        self._client = Client(self.address)
        self._clock = clock
        self._put: dict[str, float] = {}  # monotonic: until when nobody need put it again
        self._look_at = 0.0  # monotonic: when to see again whether the bus is there

    async def close(self) -> None:
        await self._client.close()

    # -------------------------------------------------------------------------------------------------------- keeping

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        """Raises LedgerUnavailable when a letter is not known to be on the bus."""
        await self._put_all([entry_of(settlement, self._clock(), self.address) for settlement in settlements])

    async def withdraw(self, leases: Sequence[Lease]) -> None:
        """A bus takes nothing back."""

    async def put_aside(self, body: bytes, reason: str) -> None:
        """Keep what is no event at all: `app.lambda_handler(put_aside=letters.put_aside)`. Raises LedgerUnavailable."""
        await self._put_all([entry_aside(body, reason, self._clock(), self.address)])

    async def _put_all(self, entries: Sequence[Entry]) -> None:
        await self._see_the_bus()
        ends = asyncio.get_running_loop().time() + DEADLINE_S
        now = time.monotonic()
        for group in calls([entry for entry in entries if self._put.get(entry.id, now) <= now]):
            await self._put_group(group, ends)

    async def _put_group(self, left: list[Entry], ends: float) -> None:
        """One call, and others for what it did not take."""
        loop, attempt = asyncio.get_running_loop(), 0
        while True:
            attempt += 1
            try:
                answer = await self._client.ask("put_events", Entries=[entry.request for entry in left])
            except Failed as failed:
                failure, definite = str(failed), failed.definite
            else:
                left, failure, definite = self._taken(left, answer)
            if not left:
                return
            wait_s = backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            if definite or loop.time() + wait_s > ends:
                raise LedgerUnavailable(
                    f"{self.address}: of the dead letters {len(left)} could not be put there in {attempt} tries, at "
                    f"last: {failure}; nothing was given up. Look at the bus, at who may events:PutEvents there, and "
                    "at the network"
                )
            await asyncio.sleep(wait_s)

    def _taken(self, put: Sequence[Entry], answer: Mapping[str, Any]) -> tuple[list[Entry], str, bool]:
        """What the bus did not take, why, and whether it never will. Only an entry with an id of its own was taken."""
        answers: Sequence[Mapping[str, Any]] = answer.get("Entries", [])
        if len(answers) != len(put):
            return list(put), f"{len(answers)} answers to {len(put)} entries", False
        left: list[Entry] = []
        failure, definite = "", False
        for entry, told in zip(put, answers, strict=True):
            if told.get("EventId") and not told.get("ErrorCode"):
                self._remember(entry.id)
                continue
            left.append(entry)
            code = str(told.get("ErrorCode", "no id"))
            if not definite:
                failure = f"{code}: {str(told.get('ErrorMessage', ''))[:300]}"
            definite = definite or (code != "no id" and not is_passing(code))
        return left, failure, definite

    def _remember(self, id: str) -> None:
        while len(self._put) >= PUT_MAX:
            del self._put[next(iter(self._put))]
        self._put[id] = time.monotonic() + PUT_AGAIN_S

    async def _see_the_bus(self) -> None:
        """PutEvents says yes for a bus that is not there. Whoever may not look is believed."""
        if time.monotonic() < self._look_at:
            return
        believed_s = LOOK_AGAIN_S
        try:
            await self._client.ask("describe_event_bus", Name=self.address.bus)
        except Failed as failed:
            if failed.code in MISSING:
                raise LedgerUnavailable(f"{self.address}: {NO_BUS}") from None
            log.warning("event_bus_unchecked", bus=self.address, error=str(failed))
            believed_s = LOOK_AGAIN_S if failed.code in DENIED else LOOK_SOON_S
        self._look_at = time.monotonic() + believed_s

    # ------------------------------------------------------------------------------------------------------ for people

    async def diagnose(self) -> list[Fact]:
        address = self.address
        said = [("bus", address.bus), ("region", address.region or "by the environment")]
        if address.endpoint is not None:
            said.append(("endpoint", f"warning: {address.endpoint}: not the service itself"))
        try:
            await self._client.ask("describe_event_bus", Name=address.bus)
        except Failed as failed:
            if failed.code in MISSING:
                return [*said, ("readable", f"error: {NO_BUS}")]
            if failed.code in DENIED:
                return [*said, ("readable", "warning: not allowed events:DescribeEventBus: is the bus there?")]
            return [*said, ("readable", f"error: {failed}")]
        said.append(await self._listeners())
        return [*said, ("oversize", f"{address.oversize}: beyond 256 KB, the ledger has the event")]

    async def _listeners(self) -> Fact:
        try:
            answer = await self._client.ask("list_rules", EventBusName=self.address.bus)
        except Failed as failed:
            return "rules", f"unknown: {failed}"
        enabled = [rule for rule in answer.get("Rules", []) if rule.get("State") != "DISABLED"]
        if not enabled:
            return "rules", "warning: none: nobody hears of what is put there; add a rule with a target, or an archive"
        return "rules", f"{len(enabled)}"
