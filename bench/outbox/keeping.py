"""An outbox with many finished messages: they must not slow down taking due messages or looking up one message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from statistics import median, quantiles
from typing import TypeAlias

from bench.outbox.far_end import Away
from bench.outbox.plan import BATCH, FEW, Figures, Sizes, Store
from bench.outbox.sending import (
    CHANNEL,
    LEASE_MS,
    NAME,
    SOON_S,
    add,
    carry,
    end,
    notification,
    notifications,
    outbox_at,
    provider_at,
)
from msgspec.structs import replace

from semel.cli.storm_load import run
from semel.core.relay import Relay, RelayBoundary
from semel.ports import Notifications, Outbox
from semel.values.outbox import Lane, Record

LATER = 10**9  # numbers of messages that are not among the finished ones
WAITS = "nobody"  # a provider without a relay: its messages wait through all rounds
CONCURRENCY = 16  # of the relay that sends at the same time
PAUSE_S = 0.001  # between two queries, so that other tasks run
WARM = 50  # queries before the measurement

Ask: TypeAlias = Callable[[int], Awaitable[str]]


class Full:
    """Two outboxes that are created once for all rounds: one with few finished messages, one with many."""

    def __init__(self, store: Store, sizes: Sizes) -> None:
        self._sizes = sizes
        self._random = Random(0)
        self._next = 2 * LATER
        self.fill_s = 0.0
        self.piled_up = 3_000 + 15 * sizes.asked
        self.few, self.many = store.new(), store.new()
        self._fill(store, self.few, FEW)
        begun = time.monotonic()
        self._fill(store, self.many, sizes.finished)
        self.fill_s = time.monotonic() - begun

    def _fill(self, store: Store, url: str, number: int) -> None:
        run(_one_is_over(url))
        store.multiply(url, number)
        run(_some_wait(url, self._sizes.takes * BATCH))

    # ------------------------------------------------------------------------------------------------------- taking

    async def taken(self) -> Figures:
        """Take due messages, a hundred at a time, from both in turn; then return them."""
        times: dict[str, list[float]] = {"few": [], "many": []}
        given_back: list[tuple[Outbox, list[Record]]] = []
        async with outbox_at(self.few) as few, outbox_at(self.many) as many:
            for turn in range(self._sizes.takes):
                for name, outbox in (("few", few), ("many", many)) if turn % 2 else (("many", many), ("few", few)):
                    begun = time.perf_counter()
                    dispatches = await outbox.take({WAITS: Lane(BATCH, WAITS)}, LEASE_MS)
                    times[name].append((time.perf_counter() - begun) * 1e6)
                    if len(dispatches) != BATCH:
                        raise AssertionError(f"{len(dispatches)} were due where {BATCH} had to be")
                    given_back.append((outbox, [Record(one, one.delivery_state, "released") for one in dispatches]))
            for taken_from, records in given_back:
                await taken_from.record(records)
        return {f"take_{name}.us": median(found[1:] or found) / BATCH for name, found in times.items()}

    # ------------------------------------------------------------------------------------------------------- asking

    async def asked(self) -> Figures:
        """Queries in sequence."""
        async with outbox_at(self.many) as outbox:
            return await self.percentiles("status", _status(outbox))

    async def asked_meanwhile(self, away: Away) -> Figures:
        """The same while a relay of the same process sends as fast as it can."""
        async with outbox_at(self.many) as outbox, self._sending(outbox, away):
            return await self.percentiles("status_busy", _status(outbox))

    async def percentiles(self, name: str, ask: Ask) -> Figures:
        """`ask` returns the state of a message, by its number."""
        times: list[float] = []
        for turn in range(self._sizes.asked + WARM):
            number = self._random.randrange(self._sizes.finished)
            await asyncio.sleep(PAUSE_S)
            begun = time.perf_counter()
            told = await ask(number)
            if turn >= WARM:
                times.append((time.perf_counter() - begun) * 1000)
            if told != "sent":
                raise AssertionError(f"message {number} is {told}: its time means nothing")
        cut = quantiles(times, n=100)
        return {f"{name}.p50": cut[49], f"{name}.p99": cut[98]}

    async def pile_up(self) -> None:
        """More messages than a relay can send during this number of queries."""
        async with outbox_at(self.many) as outbox:
            await add(outbox, notifications(self.piled_up, self._next))
        self._next += self.piled_up

    @asynccontextmanager
    async def _sending(self, outbox: Outbox, away: Away) -> AsyncIterator[None]:
        """Run a relay that never runs out of messages, and check at the end that it has sent some."""
        sent = 0
        begun = asyncio.Event()

        def observe(step: str) -> None:
            nonlocal sent
            if step == RelayBoundary.AFTER_RECORD:
                sent += 1
                begun.set()

        async def supply() -> None:
            added = 0
            while True:
                if added - sent < 2 * BATCH:
                    await add(outbox, notifications(BATCH, self._next))
                    self._next += BATCH
                    added += BATCH
                    relay.wake()
                await asyncio.sleep(0.005)

        provider = provider_at(away, CONCURRENCY)
        relay = Relay(outbox, {NAME: provider}, {CHANNEL: [NAME]}, observe=observe)
        relaying, supplying = asyncio.create_task(relay.run()), asyncio.create_task(supply())
        try:
            async with asyncio.timeout(SOON_S):
                await begun.wait()
            before = sent
            yield
            if sent == before:
                raise AssertionError("no relay was sending meanwhile: its time means nothing")
        finally:
            supplying.cancel()
            await end(relay, [relaying])
            await provider.close()
            away.forget()


def _status(outbox: Notifications) -> Ask:
    async def ask(number: int) -> str:
        one = notification(number)
        if number % 2:
            return (await outbox.status("", recipient=one.recipient, kind=one.kind)).answer
        return (await outbox.status("", key=one.key)).answer

    return ask


async def _one_is_over(url: str) -> None:
    async with outbox_at(url) as outbox:
        await add(outbox, [notification(0)])
        await carry(outbox, 1)


async def _some_wait(url: str, number: int) -> None:
    async with outbox_at(url) as outbox:
        await add(outbox, [replace(one, provider=WAITS) for one in notifications(number, LATER)])
