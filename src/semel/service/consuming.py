"""Sources of the settings, consumed beside the webhooks: started, watched, and stopped in time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from semel.app import Semel
from semel.core.consumer import QUIET_S, Consumer, words
from semel.core.engine import Engine
from semel.core.outage import Outage, pause
from semel.core.unmatched import Unmatched
from semel.core.worker import Answer
from semel.service.building import Supply
from semel.service.metrics import Metrics, OfSource
from semel.service.store import served_ledger
from semel.service.trouble import StoreHealth, Trouble
from semel.values.retry import backoff_s
from semel.wiring import OpenSource

LOOK_S = 1.0  # between two looks at a source's own numbers
AGAIN_BASE_S = 1.0
AGAIN_CAP_S = 60.0  # what only a person can change: looked at once a minute
CLOSE_S = 3.0  # for the last answers, when the drain is over: the process ends soon after


class Consuming:
    """Takes from all of them, on the loop that `start` is called on."""

    def __init__(self, app: Semel, supplies: Sequence[Supply], metrics: Metrics) -> None:
        self._app = app
        self._taps = [_Tap(supply, app, metrics.source(supply.name)) for supply in supplies]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Nothing is taken before the ledger has said that it can be written."""
        if not self._taps:
            return
        quiet = StoreHealth(Trouble("ledger_unavailable"), quiet=True)  # the outage says so, once
        ledger = served_ledger(self._app.ledger, self._app.telemetry, quiet)
        outage = Outage(partial(ledger.claim, []), random.random)
        engine = self._app.new_engine(ledger)
        self._tasks = [asyncio.create_task(tap.run(engine, outage)) for tap in self._taps]

    @property
    def trouble(self) -> str:
        """What is wrong, without names: anybody may ask whether we are ready."""
        broken = sum(tap.is_broken for tap in self._taps)
        return f"{broken} of {len(self._taps)} cannot be taken from now, the log says why" if broken else ""

    def begin_to_stop(self) -> None:
        """Take nothing more; what is in hand goes on."""
        for tap in self._taps:
            tap.stop()

    async def stop(self, within_s: float) -> None:
        """What has not ended by then goes back to its source."""
        self.begin_to_stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CLOSE_S)
        self._tasks.clear()


class _Tap:
    """One source. It is opened anew when only a person could help: perhaps somebody has."""

    def __init__(
        self, supply: Supply, app: Semel, numbers: OfSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._supply = supply
        self._app = app
        self._numbers = numbers
        self._clock = clock
        self._stopping = asyncio.Event()
        self._trouble = Trouble("source_unavailable", "source_resumed", source=supply.name)
        self._consumer: Consumer | None = None
        self._given_up = False  # the last one ended by an error, and the next is not known to work
        self._own = _OwnNumbers(numbers, clock)

    @property
    def is_broken(self) -> bool:
        return self._given_up or self._own.is_failing or (self._consumer is not None and self._consumer.is_broken)

    def stop(self) -> None:
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.stop()

    async def run(self, engine: Engine, outage: Outage) -> None:
        failures = 0
        unmatched = Unmatched(
            self._app.topic_of, self._supply.unmatched, self._supply.name, self._numbers.became["unmatched"].up
        )
        while not self._stopping.is_set():
            try:
                await self._consume(engine, outage, unmatched)
            except Exception as error:  # a ConfigError, or whatever a driver may come up with while it is closed
                failures = failures + 1 if self._given_up else 1
                self._given_up = True
                self._numbers.broken.set(1)
                self._trouble.is_there(words(error))
            else:
                failures = 0
            await pause(backoff_s(failures, random.random, AGAIN_BASE_S, AGAIN_CAP_S), self._stopping)

    async def _consume(self, engine: Engine, outage: Outage, unmatched: Unmatched) -> None:
        supply = self._supply
        source = supply.make()
        self._own.follow(source)
        workers = [
            self._app.worker(source, engine=engine, outage=outage, unmatched=unmatched, watch=self)
            for _ in range(supply.workers)
        ]
        self._consumer = Consumer(source, supply.name, workers, outage, random.random)
        looking = asyncio.create_task(self._look())
        try:
            await self._consumer.run()
        finally:
            looking.cancel()
            self._consumer = None
            await source.close()
            self._own.look()

    async def _look(self) -> None:
        begun = self._clock()
        while True:
            await asyncio.sleep(LOOK_S)
            self._own.look()
            if self._clock() - begun > QUIET_S:  # it may have nothing to give
                self._recovered()
            self._numbers.broken.set(float(self.is_broken))

    def _recovered(self) -> None:
        if self._given_up:
            self._given_up = False
            self._trouble.is_over()

    # ------------------------------------------------------------------------------------------ told by its workers

    def received(self, count: int) -> None:
        self._numbers.became["received"].add(count)
        self._numbers.in_hand.add(count)
        self._own.works()
        self._recovered()

    def answered(self, how: Answer) -> None:
        self._numbers.became[how].up()
        self._numbers.in_hand.down()


class _OwnNumbers:
    """What a source counts itself: what failed between it and its broker, which its workers do not see."""

    def __init__(self, numbers: OfSource, clock: Callable[[], float]) -> None:
        self._numbers = numbers
        self._clock = clock
        self._source: OpenSource | None = None
        self._failures = self._lost = 0  # so far, of this source
        self._failed_at: float | None = None  # None: it works, as far as we know

    @property
    def is_failing(self) -> bool:
        return self._failed_at is not None

    def follow(self, source: OpenSource) -> None:
        self._source = source
        self._failures = self._lost = 0

    def works(self) -> None:
        self._failed_at = None

    def look(self) -> None:
        counts = getattr(self._source, "counts", None)
        failures = int(getattr(counts, "failures", 0))
        lost = int(getattr(counts, "lost", 0)) + int(getattr(counts, "expired", 0))
        if failures > self._failures:
            self._failed_at = self._clock()
        elif self._failed_at is not None and self._clock() - self._failed_at > QUIET_S:
            self._failed_at = None
        self._numbers.failures.add(failures - self._failures)
        self._numbers.lost.add(lost - self._lost)
        self._failures, self._lost = failures, lost
