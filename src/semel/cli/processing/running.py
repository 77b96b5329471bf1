"""The run: receive, decide, count, answer. The answer to the source comes last, as everywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct

from semel.app import Semel
from semel.cli.processing.forcing import Forcing
from semel.cli.processing.opening import Input, Stream
from semel.cli.processing.progress import Progress, load, path_for, refuse_other_work
from semel.cli.processing.rejects import Rejects
from semel.cli.processing.report import FileReport, Report
from semel.cli.processing.source import READ_MAX, FileDelivery, FileSource
from semel.core.boundaries import Boundary, Observer
from semel.core.engine import Engine
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.outcome import Outcome
from semel.values.reading import Reading

OUTAGE_PAUSE_S = 1.0  # between two tries while the ledger is out of reach
PACE_S = 0.25  # batches of a limited rate: four a second, at most
INTERRUPTED = "interrupted"


class Options(Struct, frozen=True, kw_only=True):
    """What the command line says."""

    tenant: str = ""
    reading: Reading | None = None
    resume: bool = False
    progress: Path | None = None  # None: beside the file
    rejects: Path | None = None
    on_error: Literal["skip", "stop"] = "skip"
    patience_s: float = 120.0
    rate: float | None = None  # events a second
    most: int | None = None
    forcing: Forcing | None = None


class Begun(Struct, frozen=True):
    """An input, and where to begin with it."""

    given: Input
    progress: Path | None
    done: Progress | None


def begin(given: Input, options: Options, work: Mapping[str, str]) -> Begun:
    """Where to begin. Raises ConfigError where a resume would not be right."""
    if not given.is_file:
        if options.resume:
            raise ConfigError(
                f"--resume: {given.shown} cannot be read again from where it ended; write it to a file first"
            )
        return Begun(given, None, None)
    path = options.progress or path_for(given.name)
    if not options.resume:
        return Begun(given, path, None)
    done = load(path)
    if done is not None:
        refuse_other_work(path, done, work)
        stream = Stream(given)
        try:
            differs = stream.differs(done.mark, done.place.at)
        finally:
            stream.close()
        if differs:
            raise ConfigError(
                f"{given.name} is not the file that {path} tells of: {differs}. Leave --resume out to begin anew"
            )
    return Begun(given, path, done)


class Run:
    """All inputs, one after the other, through the flow of one app. `stop` finishes the batch in hand."""

    def __init__(
        self,
        app: Semel,
        options: Options,
        work: Mapping[str, str],
        show: Callable[[Report, FileSource], None],
        observe: Observer | None = None,
    ) -> None:
        self.report = Report(rejects=str(options.rejects or ""))
        self._app = app
        self._options = options
        self._work = work
        self._began_ms = options.forcing.began_ms if options.forcing is not None else None
        self._show = show
        self._observe = observe
        self._most = options.most
        self._source: FileSource | None = None
        self._stopping = asyncio.Event()
        self._began = time.monotonic()

    async def run(self, inputs: Sequence[Begun]) -> Report:
        engine = self._app.new_engine(self._app.ledger)
        rejects = Rejects(self._options.rejects) if self._options.rejects is not None else None
        try:
            for begun in inputs:
                if not self._stopping.is_set() and self._most != 0:
                    await self._work_off(engine, begun, rejects)
        finally:
            self.report.seconds = time.monotonic() - self._began
            if rejects is not None:
                rejects.close()
        return self.report

    def interrupt(self) -> None:
        """Somebody wants it to end."""
        self.report.interrupted = True
        self._stop(INTERRUPTED)

    def _stop(self, why: str) -> None:
        self.report.stopped = self.report.stopped or why
        self._stopping.set()
        if self._source is not None:
            self._source.stop()

    # -------------------------------------------------------------------------------------------------- one input

    async def _work_off(self, engine: Engine, begun: Begun, rejects: Rejects | None) -> None:
        source = self._source = self._opened(begun, rejects)
        self.report.before.update(source.counts)
        told = FileReport(begun.given.shown, begun.given.size, source.place.at, progress=str(begun.progress or ""))
        self.report.files.append(told)
        try:
            while deliveries := await source.receive(self._batch):
                await self._one_batch(engine, source, [one for one in deliveries if isinstance(one, FileDelivery)])
                self._show(self.report, source)
        finally:
            for delivery in source.leave_what_waits():
                self._count_left(source, delivery, "it waits for its retry")
            await source.close()
            self._source, self._most = None, source.most
            self._tell(source, told)

    def _opened(self, begun: Begun, rejects: Rejects | None) -> FileSource:
        options, done = self._options, begun.done
        stream = Stream(begun.given)
        try:
            return FileSource(
                stream,
                tenant=options.tenant,
                reading=options.reading,
                place=done.place if done is not None else None,
                counts=done.counts if done is not None else None,
                progress=begun.progress,
                work=self._work,
                began_ms=self._began_ms,
                rejects=rejects,
                most=self._most,
                patience_s=options.patience_s,
                observe=self._observe,
            )
        except OSError as error:
            stream.close()
            raise ConfigError(f"{begun.given.shown}: it cannot be read: {error.strerror or error}") from None

    def _tell(self, source: FileSource, told: FileReport) -> None:
        told.settled_to, told.finished, told.unsaved = source.place.at, source.is_settled, source.unsaved
        told.stopped = source.trouble
        if (cut := source.cut_off) is not None and not self._stopping.is_set():
            self.report.count("malformed", cut.broken, source.given.shown, cut.line, cut.start)

    @property
    def _batch(self) -> int:
        rate = self._options.rate
        return READ_MAX if rate is None else max(1, min(READ_MAX, int(rate * PACE_S)))

    # -------------------------------------------------------------------------------------------------- one batch

    async def _one_batch(self, engine: Engine, source: FileSource, deliveries: Sequence[FileDelivery]) -> None:
        outcomes = await self._decide(engine, deliveries)
        self._at(Boundary.BEFORE_ACK)
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            await self._answer(source, delivery, outcome)
        self._at(Boundary.AFTER_ACK)
        await self._keep_pace()

    async def _decide(self, engine: Engine, deliveries: Sequence[FileDelivery]) -> list[Outcome]:
        """What is no JSON is not worth the flow's time."""
        whole = [one for one in deliveries if not one.document.broken]
        decided = iter(await self._asked(engine, whole))
        return [
            Outcome("malformed", reason=one.document.broken) if one.document.broken else next(decided)
            for one in deliveries
        ]

    async def _asked(self, engine: Engine, deliveries: Sequence[FileDelivery]) -> list[Outcome]:
        """A ledger out of reach is waited for, as long as an event is."""
        ends = time.monotonic() + self._options.patience_s
        while True:
            try:
                outcomes = await engine.process(deliveries)
                if self._options.forcing is not None:
                    outcomes = await self._forced(engine, deliveries, outcomes)
                return outcomes
            except LedgerUnavailable as error:
                if time.monotonic() >= ends or self._stopping.is_set():
                    self._stop(f"the ledger is out of reach: {error}")
                    return [Outcome("busy", reason=str(error), after=0.0)] * len(deliveries)
            await self._pause(OUTAGE_PAUSE_S)

    async def _forced(
        self, engine: Engine, deliveries: Sequence[FileDelivery], outcomes: list[Outcome]
    ) -> list[Outcome]:
        assert self._options.forcing is not None
        again = await self._options.forcing.reopened(outcomes)
        if again:
            self.report.forced += len(again)
            for at, outcome in zip(again, await engine.process([deliveries[at] for at in again]), strict=True):
                outcomes[at] = outcome
        return outcomes

    async def _answer(self, source: FileSource, delivery: FileDelivery, outcome: Outcome) -> None:
        document = delivery.document
        status = _named(outcome)
        if not outcome.final:
            await self._again(source, delivery, outcome)
            return
        self.report.count(status, outcome.reason, source.given.shown, document.line, document.start)
        delivery.status = status
        if outcome.status not in ("malformed", "conflict"):
            await delivery.ack()
        elif self._options.on_error == "stop":
            source.leave(delivery)
            self._stop(f"line {document.line:,}, byte {document.start:,} is {outcome.status}: {outcome.reason}")
        else:
            await self._reject(source, delivery, outcome.reason)

    async def _again(self, source: FileSource, delivery: FileDelivery, outcome: Outcome) -> None:
        if self._stopping.is_set():
            source.leave(delivery)
        else:
            await delivery.retry(outcome.after or 0.0)
        if delivery.left:
            self._count_left(source, delivery, outcome.reason)

    def _count_left(self, source: FileSource, delivery: FileDelivery, reason: str) -> None:
        document = delivery.document
        self.report.count("left", reason, source.given.shown, document.line, document.start)

    async def _reject(self, source: FileSource, delivery: FileDelivery, reason: str) -> None:
        try:
            await delivery.reject(reason)
        except OSError as error:
            source.leave(delivery)
            self._stop(f"--rejects {self._options.rejects}: {error.strerror or error}")

    async def _keep_pace(self) -> None:
        if self._options.rate is not None:
            ahead_s = self._began + self.report.counts.total() / self._options.rate - time.monotonic()
            await self._pause(ahead_s)

    async def _pause(self, seconds: float) -> None:
        """Nobody who wants to stop waits for the end of it."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)

    def _at(self, boundary: Boundary) -> None:
        if self._observe is not None:
            self._observe(boundary.value)


def _named(outcome: Outcome) -> str:
    """A duplicate of what did not end well is no success."""
    if outcome.status != "duplicate":
        return outcome.status
    reasons = [part.reason for part in outcome.parts or (outcome,)]
    for state in ("uncertain", "dead"):
        if any(reason.startswith(f"{state}:") for reason in reasons):
            return f"{state} already"
    return "duplicate"
