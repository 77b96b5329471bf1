"""Consumes the configured sources beside the webhooks: starts, reopens and stops them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from semel.app import Semel
from semel.core.engine import Engine
from semel.core.ledger_breaker import Outage, pause
from semel.core.routing import Unmatched
from semel.core.worker import QUIET_S, Answer, Consumer, words
from semel.ports import CountingSource, ExpiringSourceCounts
from semel.service.assembly import SourceSpec
from semel.service.metrics import Metrics, SourceMetrics
from semel.service.served_ledger import ServedLedger, StoreHealth
from semel.values.log import IncidentLog
from semel.values.retry import backoff_s
from semel.wiring import OpenSource

CHECK_S = 1.0  # between two reads of a source's own counters
AGAIN_BASE_S = 1.0
AGAIN_CAP_S = 60.0  # an error that only an operator can fix: retried once a minute
CLOSE_S = 3.0  # for the last acknowledgements, when the drain is over: the process ends soon after


class Consumers:
    """Consumes all sources on the loop that `start` is called on."""

    def __init__(self, app: Semel, specs: Sequence[SourceSpec], metrics: Metrics) -> None:
        self._app = app
        self._consumers = [_SourceConsumer(spec, app, metrics.source(spec.name)) for spec in specs]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all consumers. Nothing is received before the ledger accepts writes."""
        if not self._consumers:
            return
        quiet = StoreHealth(IncidentLog("ledger_unavailable"), quiet=True)  # logged once by the outage
        ledger = ServedLedger(self._app.ledger, self._app.telemetry, quiet)
        outage = Outage(partial(ledger.claim, []), random.random)
        engine = self._app.new_engine(ledger)
        self._tasks = [asyncio.create_task(consumer.run(engine, outage)) for consumer in self._consumers]

    @property
    def problem(self) -> str:
        """How many sources are broken, without their names: the readiness path needs no token."""
        broken = sum(consumer.is_broken for consumer in self._consumers)
        return f"{broken} of {len(self._consumers)} sources are unavailable; see the log" if broken else ""

    def begin_to_stop(self) -> None:
        """Receive no more; finish the deliveries in flight."""
        for consumer in self._consumers:
            consumer.stop()

    async def stop(self, within_s: float) -> None:
        """Wait for the deliveries in flight, then return the rest to their sources."""
        self.begin_to_stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=within_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CLOSE_S)
        self._tasks.clear()


class _SourceConsumer:
    """Consumes one source. It reopens the source also after errors that only an operator can fix: one may have."""

    def __init__(
        self, spec: SourceSpec, app: Semel, metrics: SourceMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spec = spec
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._stopping = asyncio.Event()
        self._incident = IncidentLog("source_unavailable", "source_resumed", source=spec.name)
        self._consumer: Consumer | None = None
        self._broken = False  # the last run ended with an error, and none has worked since
        self._counts = _SourceCounts(metrics, clock)

    @property
    def is_broken(self) -> bool:
        return self._broken or self._counts.is_failing or (self._consumer is not None and self._consumer.is_broken)

    def stop(self) -> None:
        self._stopping.set()
        if self._consumer is not None:
            self._consumer.stop()

    async def run(self, engine: Engine, outage: Outage) -> None:
        failures = 0
        unmatched = Unmatched(
            self._app.topic_of, self._spec.unmatched, self._spec.name, self._metrics.became["unmatched"].up
        )
        while not self._stopping.is_set():
            try:
                await self._consume(engine, outage, unmatched)
            except Exception as error:  # a ConfigError, or any error of a driver while it closes
                failures = failures + 1 if self._broken else 1
                self._broken = True
                self._metrics.broken.set(1)
                self._incident.report(words(error))
            else:
                failures = 0
            await pause(backoff_s(failures, random.random, AGAIN_BASE_S, AGAIN_CAP_S), self._stopping)

    async def _consume(self, engine: Engine, outage: Outage, unmatched: Unmatched) -> None:
        spec = self._spec
        source = spec.make()
        self._counts.follow(source)
        workers = [
            self._app.worker(source, engine=engine, outage=outage, unmatched=unmatched, watch=self)
            for _ in range(spec.workers)
        ]
        self._consumer = Consumer(source, spec.name, workers, outage, random.random)
        checking = asyncio.create_task(self._check())
        try:
            await self._consumer.run()
        finally:
            checking.cancel()
            self._consumer = None
            await source.close()
            self._counts.update()

    async def _check(self) -> None:
        begun = self._clock()
        while True:
            await asyncio.sleep(CHECK_S)
            self._counts.update()
            if self._clock() - begun > QUIET_S:  # no error: the source may be empty
                self._recovered()
            self._metrics.broken.set(float(self.is_broken))

    def _recovered(self) -> None:
        if self._broken:
            self._broken = False
            self._incident.resolve()

    def received(self, count: int) -> None:
        self._metrics.became["received"].add(count)
        self._metrics.in_flight.add(count)
        self._counts.succeeded()
        self._recovered()

    def answered(self, answer: Answer) -> None:
        self._metrics.became[answer].up()
        self._metrics.in_flight.down()


class _SourceCounts:
    """Reads the counters of a source: failures between it and its broker, which its workers do not see."""

    def __init__(self, metrics: SourceMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._source: CountingSource | None = None  # None: it has no counters
        self._failures = self._lost = 0  # of this source, so far
        self._failed_at: float | None = None  # None: no recent failure

    @property
    def is_failing(self) -> bool:
        return self._failed_at is not None

    def follow(self, source: OpenSource) -> None:
        self._source = source if isinstance(source, CountingSource) else None
        self._failures = self._lost = 0

    def succeeded(self) -> None:
        self._failed_at = None

    def update(self) -> None:
        if self._source is None:
            return
        counts = self._source.counts
        failures = counts.failures
        lost = counts.lost + (counts.expired if isinstance(counts, ExpiringSourceCounts) else 0)
        if failures > self._failures:
            self._failed_at = self._clock()
        elif self._failed_at is not None and self._clock() - self._failed_at > QUIET_S:
            self._failed_at = None
        self._metrics.failures.add(failures - self._failures)
        self._metrics.lost.add(lost - self._lost)
        self._failures, self._lost = failures, lost
