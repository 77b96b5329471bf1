"""The run: receive, decide, count, answer. The answer to the source comes last, as everywhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from semel.app import Semel
from semel.cli.describe import iso
from semel.cli.process_input import Input, Stream
from semel.cli.process_report import FileReport, ProcessReport
from semel.cli.process_source import (
    READ_MAX,
    FileDelivery,
    FileSource,
    Progress,
    Rejects,
    load,
    path_for,
    refuse_other_work,
)
from semel.core.crash_points import Boundary, Observer
from semel.core.engine import Engine
from semel.ports import Catalog, DeadLetters
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.event import DecodeOptions
from semel.values.outcome import Outcome

OUTAGE_PAUSE_S = 1.0  # between two tries while the ledger is out of reach
PACE_S = 0.25  # batches of a limited rate: four a second, at most
INTERRUPTED = "interrupted"


class ProcessOptions(Struct, frozen=True, kw_only=True):
    """What the command line says."""

    tenant: str = ""
    decode_options: DecodeOptions | None = None
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


def begin(given: Input, options: ProcessOptions, work: Mapping[str, str]) -> Begun:
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
        options: ProcessOptions,
        work: Mapping[str, str],
        show: Callable[[ProcessReport, FileSource], None],
        observe: Observer | None = None,
    ) -> None:
        self.report = ProcessReport(rejects=str(options.rejects or ""))
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

    async def run(self, inputs: Sequence[Begun]) -> ProcessReport:
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
                decode_options=options.decode_options,
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


# `--force`: what has succeeded is run again, once for each run of the command, and never without a reason.
#
# The decision is kept with the key, under a name that this run and those that resume it have in common: a copy of the
# event further down in the file, or a second reading after a crash, finds it there. What was done for the first time by
# this very run is left alone too: it is known by its time, and by memory, since the ledger's clock may be another.

TOGETHER = 32  # keys that are asked about at a time
OURS_MAX = 1_000_000  # done by this run, in memory: about 100 MB; by then clocks are the same to a minute


class Decided(Catalog, DeadLetters, Protocol):
    """A ledger in which people can look and decide."""


class Forcing:
    """Begins new generations of keys that were done before this run."""

    def __init__(self, ledger: Decided, reason: str, by: str, began_ms: int) -> None:
        self.began_ms = began_ms  # of the first run, where this one goes on from it
        self._ledger = ledger
        self._name = f"[semel process {iso(began_ms)}]"
        self._reason = f"{self._name} {reason}"  # a store may cut what is very long, at its end
        self._by = by
        self._ours: set[str] = set()

    async def reopened(self, outcomes: Sequence[Outcome]) -> list[int]:
        """The places of those whose keys can be claimed again now."""
        known: dict[str, int] = {}
        for at, outcome in enumerate(outcomes):
            for part in outcome.parts or (outcome,):
                if part.status == "done" and len(self._ours) < OURS_MAX:
                    self._ours.add(part.key)
                elif _had_succeeded(part) and part.key not in self._ours:
                    known.setdefault(part.key, at)
        again: set[int] = set()
        keys = list(known)
        for first in range(0, len(keys), TOGETHER):
            some = keys[first : first + TOGETHER]
            # All are waited for, also when one fails: whoever is late would reopen what was forced meanwhile.
            answers = await asyncio.gather(*map(self._reopen, some), return_exceptions=True)
            for key, reopened in zip(some, answers, strict=True):
                if isinstance(reopened, BaseException):
                    raise reopened
                if reopened:
                    again.add(known[key])
        return sorted(again)

    async def _reopen(self, key: str) -> bool:
        history = await self._ledger.history(key)
        if any(self._name in entry.decision for entry in history):
            return False  # it has had its turn
        if not history or history[0].at_ms >= self.began_ms:
            return False
        return await self._ledger.replay(key, self._reason, self._by, force=True)


def _had_succeeded(part: Outcome) -> bool:
    """Not those that are dead or in doubt: they wait for a person, who has other commands for them."""
    return part.status == "duplicate" and not part.reason and bool(part.key)
