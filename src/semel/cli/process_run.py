"""Runs documents through an app: a file as a source, the worker over it, `--force`, and the dry run.

A file cannot be acknowledged, and no position in it is kept. A second run reads all of it again, and the ledger answers
settled events as duplicates.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from semel.app import IncomingMessage, Semel
from semel.cli.describe import iso
from semel.cli.process_input import Document, Input, Splitter, Stream
from semel.cli.process_report import FileReport, ProcessReport, Show
from semel.core.crash_points import Observer
from semel.core.engine import Engine
from semel.core.routing import NoKeyStandIn
from semel.core.runner import in_thread
from semel.core.worker import RECEIVE_MAX, Worker
from semel.ports import Catalog, DeadLetters, Delivery
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.event import DecodeOptions
from semel.values.outcome import Outcome

READ_BYTES = 2 * 1024 * 1024  # that the thread reads ahead: three of these are in memory at most
WAITING_MAX = 20_000  # documents that wait for their retry; no new ones are read then
WAITING_BYTES = 64 * 1024 * 1024
OUTAGE_PAUSE_S = 1.0  # between two attempts while the ledger is unavailable
PACE_S = 0.25  # a limited rate is kept by four batches a second
INTERRUPTED = "interrupted"


class Step(StrEnum):
    """Crash points of the file source."""

    AFTER_READ = "files_after_read"
    AFTER_REJECT = "files_after_reject"


class ProcessOptions(Struct, frozen=True, kw_only=True):
    """Options of one run."""

    tenant: str = ""
    decode_options: DecodeOptions | None = None
    rejects: Path | None = None
    stop_on_error: bool = False  # stop before a document that is not an event; otherwise skip it
    patience_s: float = 120.0  # how long an event is retried after its first attempt
    rate: float | None = None  # events a second
    limit: int | None = None  # events


class FileDelivery(Delivery):
    """One document."""

    __slots__ = ("_source", "body", "decode_options", "document", "first_attempt", "outcome", "tenant")

    def __init__(self, source: FileSource, document: Document, options: ProcessOptions) -> None:
        self._source = source
        self.document = document
        self.body = document.body
        self.tenant = options.tenant
        self.decode_options = options.decode_options
        self.first_attempt = time.monotonic()
        self.outcome = Outcome("busy")  # of the last attempt

    def __lt__(self, other: FileDelivery) -> bool:
        return self.document.start < other.document.start

    async def ack(self) -> None:
        self._source.count(self, _status(self.outcome))

    async def retry(self, after_s: float) -> None:
        # The worker shortens the delay of a busy event. Here the full delay decides whether the patience is enough.
        self._source.retry(self, self.outcome.after or after_s)

    async def reject(self, reason: str) -> None:
        self._source.reject(self, reason)


class FileSource:
    """Delivers the documents of one input, and those that were returned for a retry when they are due.

    It counts each answer in the report. A thread reads ahead while a batch is processed.
    """

    def __init__(
        self,
        source: Input,
        options: ProcessOptions,
        report: ProcessReport,
        *,
        limit: int | None = None,
        rejects: Rejects | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.input = source
        self.stopped = asyncio.Event()
        self.remaining = limit  # documents that may still be delivered; None: all
        self.error = ""  # why the input could not be read to its end
        self._options = options
        self._report = report
        self._rejects = rejects
        self._observe = observe
        self._stream = Stream(source)
        self._splitter = Splitter(self._stream.read)
        self._read: deque[Document] = deque()  # not delivered yet
        self._reading: asyncio.Future[list[Document]] | None = None
        self._ended = False
        self._waiting: list[tuple[float, FileDelivery]] = []  # a heap, by due time
        self._waiting_bytes = 0
        self._left = 0
        self._delivered = 0
        self._delivered_to = 0  # byte
        self._started = time.monotonic()

    @property
    def bytes_read(self) -> int:
        """The progress in bytes on disk. Documents that were read ahead count only in a compressed input."""
        return self._stream.bytes_read if self._stream.is_gzip else self._delivered_to

    @property
    def cut_off(self) -> Document | None:
        """The incomplete document at the end of the input."""
        return self._splitter.cut_off if self._ended else None

    @property
    def finished(self) -> bool:
        """The input was read to its end, and every event is settled."""
        unsettled = self._read or self._waiting or self._left or self._reading or self.stopped.is_set()
        return self._ended and not (unsettled or self.error or self.cut_off)

    async def receive(self, limit: int) -> Sequence[Delivery]:
        if self._options.rate is not None:
            limit = max(1, min(limit, int(self._options.rate * PACE_S)))
            await self._pause(self._started + self._delivered / self._options.rate - time.monotonic())
        while not self.stopped.is_set():
            if due := self._due(limit):
                return due
            is_full = len(self._waiting) >= WAITING_MAX or self._waiting_bytes >= WAITING_BYTES
            if not is_full and (new := await self._next(limit)):
                return new
            if not self._waiting:
                return []
            await self._pause(self._waiting[0][0] - time.monotonic())
        return []

    def stop(self, reason: str = "") -> None:
        """Deliver no more."""
        self._report.stopped = self._report.stopped or reason
        self.stopped.set()

    async def close(self) -> None:
        """Stop, count the documents that wait for a retry as left, and close the input."""
        self.stop()
        while self._waiting:
            self._leave(heapq.heappop(self._waiting)[1], "waiting for its retry")
        if self._reading is not None and self.input.is_file:
            await asyncio.wait({self._reading})  # reading a pipe may block; it ends with the process
        if self._reading is None or self._reading.done():
            self._stream.close()

    # ---------------------------------------------------------------------------------------------------- reading

    def _due(self, limit: int) -> list[Delivery]:
        due: list[Delivery] = []
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now and len(due) < limit:
            _, delivery = heapq.heappop(self._waiting)
            self._waiting_bytes -= len(delivery.body)
            due.append(delivery)
        return due

    async def _next(self, limit: int) -> list[Delivery]:
        limit = limit if self.remaining is None else min(limit, self.remaining)
        if not self._read and limit:
            self._read.extend(await self._read_ahead())
        documents = [self._read.popleft() for _ in range(min(limit, len(self._read)))]
        if documents:
            self._delivered += len(documents)
            self._delivered_to = documents[-1].end
        if self.remaining is not None:
            self.remaining -= len(documents)
        return [FileDelivery(self, document, self._options) for document in documents]

    async def _read_ahead(self) -> list[Document]:
        """Return what the thread has read, and let it continue."""
        if self._reading is None:
            if self._ended:
                return []
            self._reading = in_thread(self._read_documents, "files")
        stopping = asyncio.ensure_future(self.stopped.wait())
        both: set[asyncio.Future[Any]] = {self._reading, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._reading.done():
            return []
        documents = self._reading.result()
        self._reading = None if self._ended else in_thread(self._read_documents, "files")
        self._at(Step.AFTER_READ)
        return documents

    def _read_documents(self) -> list[Document]:
        """Runs in a thread, one call at a time."""
        documents: list[Document] = []
        size = 0
        try:
            while len(documents) < RECEIVE_MAX and size < READ_BYTES:
                document = self._splitter.next()
                if document is None:
                    self._ended = True
                    break
                documents.append(document)
                size += len(document.body)
                if not self.input.is_file and not self._splitter.has_line:
                    break  # the next read may block until the pipe's writer continues
        except OSError as error:
            self.error, self._ended = f"cannot read further: {error.strerror or error}", True
        return documents

    # ---------------------------------------------------------------------------------------------------- answers

    def count(self, delivery: FileDelivery, status: str) -> None:
        self._report.count(status, delivery.outcome.reason, self.input, delivery.document)

    def retry(self, delivery: FileDelivery, after_s: float) -> None:
        due = time.monotonic() + after_s
        if self.stopped.is_set() or due > delivery.first_attempt + self._options.patience_s:
            self._leave(delivery, delivery.outcome.reason)
        else:
            heapq.heappush(self._waiting, (due, delivery))
            self._waiting_bytes += len(delivery.body)

    def _leave(self, delivery: FileDelivery, reason: str) -> None:
        self._left += 1
        self._report.count("left", reason, self.input, delivery.document)

    def reject(self, delivery: FileDelivery, reason: str) -> None:
        document = delivery.document
        self.count(delivery, delivery.outcome.status)
        if self._options.stop_on_error:
            self.stop(f"line {document.line:,}, byte {document.start:,} is {delivery.outcome.status}: {reason}")
        elif self._rejects is not None:
            try:
                self._rejects.add(self.input.name, document, reason)
            except OSError as error:
                self.stop(f"--rejects {self._options.rejects}: {error.strerror or error}")
            self._at(Step.AFTER_REJECT)

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), seconds)

    def _at(self, step: Step) -> None:
        if self._observe is not None:
            self._observe(step.value)


def _status(outcome: Outcome) -> str:
    """The outcome in the report. A duplicate of an event that did not succeed is not a success."""
    if outcome.status == "duplicate":
        for state in ("uncertain", "dead"):
            if any(part.reason.startswith(f"{state}:") for part in outcome.parts or (outcome,)):
                return f"{state} already"
    return outcome.status


class Rejects:
    """A file to which documents that are not events are appended, with the reason: one line of JSON each."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"--rejects {path}: cannot write the file: {error.strerror}") from None

    def add(self, name: str, document: Document, reason: str) -> None:
        """Append a document completely, or not at all. Raises OSError."""
        size = document.end - document.start
        entry: dict[str, Any] = {"file": name, "line": document.line, "byte": document.start, "bytes": size}
        entry["reason"] = reason
        try:
            entry["body"] = document.body.decode()
        except UnicodeDecodeError:
            entry["base64"] = base64.b64encode(document.body).decode()
        if len(document.body) < size:
            entry["cut"] = True
        end = os.fstat(self._file.fileno()).st_size
        remaining = memoryview(json.dumps(entry).encode() + b"\n")
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)
            raise

    def close(self) -> None:
        with suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


class FileRun:
    """Processes inputs one after the other with one app. `interrupt` finishes the current batch and ends the run."""

    def __init__(
        self,
        app: Semel,
        options: ProcessOptions,
        show: Show,
        force: Force | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.report = ProcessReport(rejects=str(options.rejects or ""))
        self._app = app
        self._options = options
        self._show = show
        self._force = force
        self._observe = observe
        self._source: FileSource | None = None
        self._engine: Engine | None = None

    async def run(self, inputs: Sequence[Input]) -> ProcessReport:
        started = time.monotonic()
        self._engine = self._app.new_engine(self._app.ledger)
        self.report.forced_before = iso(self._force.before_ms) if self._force is not None else ""
        rejects = Rejects(self._options.rejects) if self._options.rejects is not None else None
        remaining = self._options.limit
        try:
            for source in inputs:
                if not self.report.stopped and remaining != 0:
                    remaining = await self._run_input(source, remaining, rejects)
        finally:
            self.report.seconds = time.monotonic() - started
            if rejects is not None:
                rejects.close()
        return self.report

    def interrupt(self) -> None:
        self.report.interrupted = True
        self.report.stopped = self.report.stopped or INTERRUPTED
        if self._source is not None:
            self._source.stop()

    async def _run_input(self, source: Input, limit: int | None, rejects: Rejects | None) -> int | None:
        """Returns how many events may still be processed."""
        file = FileReport(source.label, source.size)
        self.report.files.append(file)
        files = self._source = FileSource(
            source, self._options, self.report, limit=limit, rejects=rejects, observe=self._observe
        )
        worker = Worker(files, lambda: self, self._app.ledger, self._observe)
        try:
            while await worker.turn():
                self._show(self.report, source, files.bytes_read)
        finally:
            if files.cut_off is not None and not files.stopped.is_set():
                self.report.count("malformed", files.cut_off.error, source, files.cut_off)
            file.finished, file.stopped = files.finished, files.error
            await files.close()
            self._source = None
        return files.remaining

    async def process(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """Process one batch, for the worker. Each delivery keeps its outcome, for the report."""
        batch = [delivery for delivery in deliveries if isinstance(delivery, FileDelivery)]
        whole = [delivery for delivery in batch if not delivery.document.error]
        outcomes = iter(await self._decide(whole))
        for delivery in batch:
            error = delivery.document.error
            delivery.outcome = Outcome("malformed", reason=error) if error else next(outcomes)
        return [delivery.outcome for delivery in batch]

    async def _decide(self, deliveries: Sequence[FileDelivery]) -> list[Outcome]:
        """Wait for an unavailable ledger as long as for an event."""
        assert self._engine is not None
        assert self._source is not None
        deadline = time.monotonic() + self._options.patience_s
        while True:
            try:
                outcomes = await self._engine.process(deliveries)
                if self._force is not None:
                    reopened = await self._force.reopen(outcomes)
                    again = await self._engine.process([deliveries[at] for at in reopened])
                    self.report.forced += len(reopened)
                    for at, outcome in zip(reopened, again, strict=True):
                        outcomes[at] = outcome
                return outcomes
            except LedgerUnavailable as error:
                if time.monotonic() >= deadline or self._source.stopped.is_set():
                    self._source.stop(f"the ledger is unavailable: {error}")
                    return [Outcome("busy", reason=str(error), after=0.0)] * len(deliveries)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._source.stopped.wait(), OUTAGE_PAUSE_S)


# `--force` runs events again that have succeeded, once for each forced run.
#
# A forced run is identified by its time. The decision is stored with the key and contains this time: a copy of the
# event later in the file, or a second run with the same time after a crash, finds it. Events that this run processes
# for the first time are not forced: the ledger has a later time for them. The ledger's clock may differ, so their keys
# are also kept in memory.

KEYS_AT_ONCE = 32  # keys that are looked up concurrently
OWN_KEYS_MAX = 1_000_000  # about 100 MB; clocks are closer to each other than the time that so many events take


class ForcingLedger(Catalog, DeadLetters, Protocol):
    """A ledger with a catalog and decisions."""


class Force:
    """Begins a new generation of each key that was done before this run."""

    def __init__(self, ledger: ForcingLedger, reason: str, by: str, before_ms: int) -> None:
        self.before_ms = before_ms
        self._ledger = ledger
        self._mark = f"[semel process {iso(before_ms)}]"
        self._reason = f"{self._mark} {reason}"  # a store may truncate a long reason at its end
        self._by = by
        self._own: set[str] = set()

    async def reopen(self, outcomes: Sequence[Outcome]) -> list[int]:
        """Return the indexes of the outcomes whose keys can be claimed again."""
        done: dict[str, int] = {}
        for at, outcome in enumerate(outcomes):
            for part in outcome.parts or (outcome,):
                if part.status == "done" and len(self._own) < OWN_KEYS_MAX:
                    self._own.add(part.key)
                elif part.status == "duplicate" and not part.reason and part.key and part.key not in self._own:
                    done.setdefault(part.key, at)  # a dead or uncertain one has a reason, and its own commands
        reopened: set[int] = set()
        keys = list(done)
        for first in range(0, len(keys), KEYS_AT_ONCE):
            batch = keys[first : first + KEYS_AT_ONCE]
            # Wait for all, also if one fails: a late one would reopen a key that was forced in the meantime.
            results = await asyncio.gather(*map(self._reopen, batch), return_exceptions=True)
            for key, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                if result:
                    reopened.add(done[key])
        return sorted(reopened)

    async def _reopen(self, key: str) -> bool:
        history = await self._ledger.history(key)
        if any(self._mark in entry.decision for entry in history):
            return False  # this run has forced it already
        if not history or history[0].at_ms >= self.before_ms:
            return False
        return await self._ledger.replay(key, self._reason, self._by, force=True)


# The dry run reads the ledger and writes nothing.

NEW = "new"
WITHOUT_KEY = "without key"  # it would become a dead letter of its handler
COUNTED_AS = {"done": "duplicate", "dead": "dead already", "uncertain": "uncertain already"}


class Preview(Struct, frozen=True):
    """The action of one handler for one document, or the reason why no handler runs."""

    file: str
    line: int
    byte: int
    event: str
    handler: str
    key: str
    state: str  # NEW, WITHOUT_KEY, a state of the ledger, "ignored" or "malformed"
    reason: str = ""


async def preview(
    app: Semel,
    ledger: Catalog | None,
    inputs: Sequence[Input],
    options: ProcessOptions,
    show: Callable[[Preview], None],
) -> Counter[str]:
    """Show each document, and count them by the outcome they would have. `ledger` is None if it does not exist yet."""
    counts: Counter[str] = Counter()
    remaining = options.limit
    for source in inputs:
        for document in _documents(source):
            if remaining == 0:
                return counts
            remaining = None if remaining is None else remaining - 1
            for line in await _preview_document(app, ledger, source.label, document, options):
                counts[COUNTED_AS.get(line.state, line.state)] += 1
                show(line)
    return counts


def _documents(source: Input) -> Iterator[Document]:
    stream = Stream(source)
    try:
        splitter = Splitter(stream.read)
        while (document := splitter.next()) is not None:
            yield document
        if splitter.cut_off is not None:
            yield splitter.cut_off
    except OSError as error:
        raise ConfigError(f"{source.label}: cannot read further: {error.strerror or error}") from None
    finally:
        stream.close()


async def _preview_document(
    app: Semel, ledger: Catalog | None, name: str, document: Document, options: ProcessOptions
) -> list[Preview]:
    position = (name, document.line, document.start)
    if document.error:
        return [Preview(*position, "", "", "", "malformed", document.error)]
    plan = app.planner.plan(IncomingMessage(document.body, options.tenant, options.decode_options))
    if isinstance(plan, Outcome):
        return [Preview(*position, "", "", "", plan.status, plan.reason)]
    lines = []
    for handler, claim in zip(plan.handlers, plan.claims, strict=True):
        key = claim.digest.hex()
        history = await ledger.history(key) if ledger is not None else []
        reason = handler.fn.reason if isinstance(handler.fn, NoKeyStandIn) else ""
        state = history[0].state if history else WITHOUT_KEY if reason else NEW
        lines.append(Preview(*position, plan.event.id, handler.name, key, state, reason))
    return lines
