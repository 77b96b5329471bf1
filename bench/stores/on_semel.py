"""The measures of Semel itself, the same on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.stores.plan import CALLERS, Sample
from bench.stores.timing import Watch

from semel.app import Semel
from semel.ports import Ledger
from semel.values.claim import Claim, Granted, Settlement
from semel.values.outcome import NOTHING

TOPIC = "v2.detail.events.**"


async def claim_and_settle(ledger: Ledger, batches: Sequence[Sequence[Claim]]) -> None:
    """The ledger alone: two round trips for each batch."""
    for claims in batches:
        verdicts = await ledger.claim(claims)
        settled = await ledger.settle(
            [Settlement(verdict.lease, NOTHING) for verdict in verdicts if isinstance(verdict, Granted)]
        )
        if len(settled) != len(claims) or not all(settled):
            raise AssertionError("measured something else than new keys")


async def on_ledger(
    watch: Watch, ledger: Ledger, warm: Sequence[Sequence[Claim]], batches: Sequence[Sequence[Claim]]
) -> Sample:
    """Claims and settles, after a few that are not timed. Closes the ledger."""
    try:
        await claim_and_settle(ledger, warm)
        return await watch.timed(sum(map(len, batches)), claim_and_settle(ledger, batches))
    finally:
        await ledger.close()


class Counted:
    """An app on a ledger whose handler does nothing but count."""

    def __init__(self, url: str) -> None:
        self.ran = 0
        self.app = Semel(url)
        self.app.on(TOPIC, name="bench")(self._handle)

    async def _handle(self, event: Any, ctx: Any) -> None:
        self.ran += 1


async def process_many(
    watch: Watch, url: str, warm: Sequence[bytes], batches: Sequence[Sequence[bytes]], distinct: int
) -> Sample:
    """Whole batches through the flow. `distinct`: how often the handler has to run."""
    counted = Counted(url)

    async def work() -> None:
        for batch in batches:
            await counted.app.process_many(batch)

    return await _through(watch, counted, warm, work, sum(map(len, batches)), distinct)


async def process_singly(watch: Watch, url: str, warm: Sequence[bytes], bodies: Sequence[bytes]) -> Sample:
    """As many concurrent callers as a busy webhook has, each with one event at a time."""
    counted = Counted(url)

    async def work() -> None:
        queue = iter(bodies)

        async def caller() -> None:
            for body in queue:
                await counted.app.process(body)

        await asyncio.gather(*[caller() for _ in range(CALLERS)])

    return await _through(watch, counted, warm, work, len(bodies), len(bodies))


async def _through(
    watch: Watch,
    counted: Counted,
    warm: Sequence[bytes],
    work: Callable[[], Awaitable[None]],
    events: int,
    distinct: int,
) -> Sample:
    async with counted.app as app:
        await app.process_many(warm)
        counted.ran = 0
        sample = await watch.timed(events, work())
    if counted.ran != distinct:
        raise AssertionError(f"{counted.ran:,} handlers ran where {distinct:,} had to: its time means nothing")
    return sample
