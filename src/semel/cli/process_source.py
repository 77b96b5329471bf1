"""A file as a source: deliveries in its order, and an end.

Nothing can be told to a file. What was settled is known by one place in it, kept elsewhere: everything below it is
settled. A document that is not, be it waiting for its retry or given up waiting for, holds that place back, whatever
came after it: a failure is never buried, and a resume begins there.
"""

from __future__ import annotations

import asyncio
import base64
import heapq
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from semel.cli.process_input import Document, FilePosition, Input, Mark, Splitter, Stream
from semel.core.runner import in_thread
from semel.ports import Delivery
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions

READ_MAX = 200  # documents that one turn of the thread reads, and a receive hands over
READ_BYTES = 2 * 1024 * 1024  # the same in bytes: three of these are in memory at most
OPEN_MAX = 100_000  # handed over above a document that is not settled: about 30 MB
WAITING_BYTES = 64 * 1024 * 1024  # of documents that wait for their retry
SAVE_EVERY_S = 1.0
LOOK_AGAIN_S = 0.1  # while something waits for its retry, the file may grow: that keeps nobody waiting


class Step(StrEnum):
    """Between any two of these the process may die."""

    AFTER_READ = "files_after_read"
    AFTER_REJECT = "files_after_reject"
    BEFORE_PROGRESS = "files_before_progress"
    AFTER_PROGRESS = "files_after_progress"


class FileDelivery(Delivery):
    """One document."""

    __slots__ = ("_source", "body", "decode_options", "document", "first_tried", "left", "settled", "status", "tenant")

    def __init__(self, source: FileSource, document: Document) -> None:
        self.document = document
        self.body = document.body
        self.tenant = source.tenant
        self.decode_options = source.decode_options
        self.status = ""  # what it came to, where somebody counts that
        self.settled = False
        self.left = False
        self.first_tried = 0.0  # monotonic seconds
        self._source = source

    def __lt__(self, other: FileDelivery) -> bool:
        return self.document.start < other.document.start

    async def ack(self) -> None:
        self._source._settle(self)

    async def retry(self, after_s: float) -> None:
        self._source._wait_for(self, after_s)

    async def reject(self, reason: str) -> None:
        self._source._reject(self, reason)


class FileSource:
    """Hands over documents while there are any, and those that were returned for later when their time has come.

    patience_s: for so long after its first try a document is tried again; then it is left.
    progress: where it is kept how far the file is settled; None: nowhere, as for a pipe.
    most: hand over so many documents, and end.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        tenant: str = "",
        decode_options: DecodeOptions | None = None,
        place: FilePosition | None = None,
        counts: Mapping[str, int] | None = None,
        progress: Path | None = None,
        work: Mapping[str, str] | None = None,
        began_ms: int | None = None,
        rejects: Rejects | None = None,
        most: int | None = None,
        patience_s: float = 60.0,
        save_every_s: float = SAVE_EVERY_S,
        observe: Callable[[str], None] | None = None,
    ) -> None:
        self.stream = stream
        self.tenant = tenant
        self.decode_options = decode_options
        self.place = place or FilePosition()  # everything below it is settled
        self.counts = Counter(counts or {})  # of what is below it, by outcome
        self.trouble = ""  # why it could not be read to its end
        self.unsaved = ""  # why progress could not be kept, the last time
        self.left = 0  # documents that are not settled, and were waited for long enough
        self.ended = False
        self.most = most  # still to be handed over; None: all
        self._splitter = Splitter(stream.read, self.place)
        self._progress = progress
        self._work = dict(work or {})
        self._began_ms = began_ms
        self._rejects = rejects
        self._patience_s = patience_s
        self._save_every_s = save_every_s
        self._saved: tuple[FilePosition, bool] | None = None
        self._saved_at = 0.0
        self._observe = observe
        self._read: deque[Document] = deque()  # not yet handed over
        self._ahead: asyncio.Future[list[Document]] | None = None
        self._decode_options = asyncio.Lock()
        self._open: deque[FileDelivery] = deque()  # handed over, from the first that is not settled
        self._waiting: list[tuple[float, FileDelivery]] = []  # a heap, by when they are due
        self._waiting_bytes = 0
        self._handed_to = self.place.at
        self._closed = False
        self._stopped = asyncio.Event()
        self._changed = asyncio.Event()
        if place is not None and place.at:
            stream.go_to(place.at)

    @property
    def given(self) -> Input:
        return self.stream.given

    @property
    def cut_off(self) -> Document | None:
        """What the file ends in the middle of. It is not settled: a resume reads it again, when it is whole."""
        return self._splitter.cut_off if self.ended else None

    @property
    def come_to(self) -> int:
        """How far it has come, in bytes on disk: what the thread has read ahead does not count where that is known."""
        return self.stream.taken if self.stream.packed else self._handed_to

    @property
    def is_settled(self) -> bool:
        """All of it, to its end."""
        unsettled = self._open or self.left or self.trouble or self.cut_off
        return self.ended and not (unsettled or self._read or self._ahead)

    # -------------------------------------------------------------------------------------------------- receiving

    async def receive(self, limit: int) -> Sequence[Delivery]:
        if self._saved is None:  # before anything is done: a resume must know this run, and no place of an earlier one
            self._save(at_once=True)
        while not self._stopped.is_set():
            if due := self._due(limit):
                return due
            if not self._is_full and (new := await self._next(limit)):
                return new
            self._save(at_once=not self._waiting)
            if not self._waiting and not (self._is_full and self._open):
                return []
            await self._until_something_is_due()
        return []

    def stop(self) -> None:
        """Hand over nothing more."""
        self._stopped.set()
        self._changed.set()

    async def close(self) -> None:
        """Keep how far it came, and let go of the file."""
        self.stop()
        self._save(at_once=True)
        self._closed = True
        if self._ahead is not None and self.given.is_file:
            await asyncio.wait({self._ahead})  # else it may take for ever, and ends with the process
        if self._ahead is None or self._ahead.done():
            self.stream.close()

    @property
    def _is_full(self) -> bool:
        return len(self._open) >= OPEN_MAX or self._waiting_bytes >= WAITING_BYTES

    def _due(self, limit: int) -> list[Delivery]:
        due: list[Delivery] = []
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now and len(due) < limit:
            _, delivery = heapq.heappop(self._waiting)
            self._waiting_bytes -= len(delivery.body)
            due.append(delivery)
        return due

    async def _until_something_is_due(self) -> None:
        self._changed.clear()
        pause_s = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else LOOK_AGAIN_S
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), min(pause_s, LOOK_AGAIN_S))

    async def _next(self, limit: int) -> list[Delivery]:
        """What the thread has read. It reads on meanwhile."""
        async with self._decode_options:
            if self.most is not None:
                limit = min(limit, self.most)
            if not self._read and limit:
                self._read.extend(await self._what_was_read())
            now = time.monotonic()
            new: list[Delivery] = []
            while self._read and len(new) < limit:
                delivery = FileDelivery(self, self._read.popleft())
                delivery.first_tried = now
                if not self.left:  # else the place stays where it is
                    self._open.append(delivery)
                new.append(delivery)
                self._handed_to = delivery.document.end
            if self.most is not None:
                self.most -= len(new)
            return new

    async def _what_was_read(self) -> list[Document]:
        if self._ahead is None:
            if self.trouble or (self.ended and not self.stream.has_grown(self._splitter.read_to)):
                return []
            self._ahead = in_thread(self._read_some, "files")
        stopping = asyncio.ensure_future(self._stopped.wait())
        both: set[asyncio.Future[Any]] = {self._ahead, stopping}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._ahead.done():
            return []
        documents = self._ahead.result()
        self._ahead = None if self.ended else in_thread(self._read_some, "files")
        self._at(Step.AFTER_READ)
        return documents

    def _read_some(self) -> list[Document]:
        """In a thread, one at a time."""
        documents: list[Document] = []
        size = 0
        self.ended = False
        try:
            while len(documents) < READ_MAX and size < READ_BYTES:
                document = self._splitter.next()
                if document is None:
                    self.ended = True
                    break
                documents.append(document)
                size += len(document.body)
                if not self.given.is_file and not self._splitter.has_line:
                    break  # whoever writes may take its time with the next one
        except OSError as error:
            self.trouble, self.ended = f"it cannot be read any further: {error.strerror or error}", True
        return documents

    # -------------------------------------------------------------------------------------------------- answering

    def _settle(self, delivery: FileDelivery) -> None:
        if delivery.settled or self._closed:  # too late, and harmless: whoever reads it next is told that it is known
            return
        delivery.settled, delivery.body, delivery.document.body = True, b"", b""
        while self._open and self._open[0].settled:
            first = self._open.popleft()
            self.place = first.document.after
            self.counts[first.status] += 1
        self._changed.set()
        self._save()

    def _wait_for(self, delivery: FileDelivery, after_s: float) -> None:
        due = time.monotonic() + after_s
        if due > delivery.first_tried + self._patience_s:
            self.leave(delivery)
            return
        heapq.heappush(self._waiting, (due, delivery))
        self._waiting_bytes += len(delivery.body)
        self._changed.set()

    def leave(self, delivery: FileDelivery) -> None:
        """It is not settled, and comes no more. The place where a resume begins cannot pass it."""
        if delivery.left or delivery.settled:
            return
        delivery.left, delivery.body, delivery.document.body = True, b"", b""
        self.left += 1
        while self._open and not self._open[-1] < delivery:  # what is behind it need not be known
            self._open.pop()
        self._changed.set()

    def leave_what_waits(self) -> list[FileDelivery]:
        waiting = sorted(delivery for _, delivery in self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        for delivery in waiting:
            self.leave(delivery)
        return waiting

    def _reject(self, delivery: FileDelivery, reason: str) -> None:
        """Kept first, settled then."""
        if self._rejects is not None and not self._closed:
            self._rejects.add(self.given.name, delivery.document, reason)
            self._at(Step.AFTER_REJECT)
        self._settle(delivery)

    # --------------------------------------------------------------------------------------------------- progress

    def _save(self, at_once: bool = False) -> None:
        """A disk that is full costs nothing but time: what is settled is known to the ledger too."""
        if self._progress is None or not (at_once or time.monotonic() - self._saved_at >= self._save_every_s):
            return
        finished = self.is_settled
        if self._saved == (self.place, finished):
            return
        self._at(Step.BEFORE_PROGRESS)
        try:
            if self._rejects is not None:
                self._rejects.sync()
            save(self._progress, self._now(finished))
            self._saved, self.unsaved = (self.place, finished), ""
        except OSError as error:
            self.unsaved = f"{self._progress}: {error.strerror or error}"
        self._saved_at = time.monotonic()
        self._at(Step.AFTER_PROGRESS)

    def _now(self, finished: bool) -> Progress:
        return Progress(
            file=self.given.name,
            mark=self.stream.mark(self.place.at),
            place=self.place,
            counts=dict(self.counts),
            work=self._work,
            began_ms=self._began_ms,
            finished=finished,
        )

    def _at(self, step: Any) -> None:
        if self._observe is not None:
            self._observe(str(step.value))


# How far a file was worked off: a small file beside it, so that work goes on after an end of any kind.
#
# It names the lowest place below which everything is settled, and is replaced as a whole: whoever is killed leaves the
# old one or the new one. It can only be too old. Then some events are read again, and the ledger knows them.

SUFFIX = ".semel-progress"
VERSION = 1
MAX_BYTES = 1024 * 1024  # more is another file


class Progress(Struct, frozen=True, kw_only=True):
    """What is known of a file."""

    version: int = VERSION
    file: str
    mark: Mark
    place: FilePosition
    counts: dict[str, int]  # of what came before that place, by outcome
    work: dict[str, str]  # for whom it was read: another ledger has seen nothing of it
    began_ms: int | None = None  # of a run with --force: what it has run again is not run once more
    finished: bool = False  # nothing came behind that place


def path_for(name: str) -> Path:
    return Path(f"{name}{SUFFIX}")


def load(path: Path) -> Progress | None:
    """None: there is none. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        progress = msgspec.json.decode(content, type=Progress)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: the progress cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path}: this is no progress of semel process ({error}). Leave --resume out to begin anew"
        ) from None
    if progress.version != VERSION:
        raise ConfigError(f"{path}: written by another version of Semel. Leave --resume out to begin anew")
    return progress


def save(path: Path, progress: Progress) -> None:
    """Durable, and whole or not at all. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(progress), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def refuse_other_work(path: Path, progress: Progress, work: Mapping[str, str]) -> None:
    """What one app has settled is new to another."""
    for name in sorted({*work, *progress.work}):
        then, now = progress.work.get(name, ""), work.get(name, "")
        if then != now:
            raise ConfigError(
                f"{path}: this progress was made with another {name} ({then or 'none'}; now {now or 'none'}), for "
                "which the file is not done up to there. Leave --resume out to begin anew"
            )


# What is no event, kept with its reason: a line of JSON for each.


class Rejects:
    """A file that is only added to. Written before anybody is told that it was; synced before progress is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.added = 0
        self._synced = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"--rejects {path}: it cannot be written: {error.strerror}") from None

    def add(self, name: str, document: Document, reason: str) -> None:
        """Raises OSError."""
        line: dict[str, Any] = {"file": name, "line": document.line, "byte": document.start}
        size = document.end - document.start
        line |= {"bytes": size, "reason": reason, **_body(document.body)}
        if len(document.body) < size:
            line["cut"] = True  # all of it is in the file, at that byte
        self._write(json.dumps(line).encode() + b"\n")
        self.added += 1

    def _write(self, line: bytes) -> None:
        """All of it, or nothing."""
        begin = os.fstat(self._file.fileno()).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
            raise

    def sync(self) -> None:
        if self._synced < self.added:
            os.fsync(self._file.fileno())
            self._synced = self.added

    def close(self) -> None:
        self._file.close()


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
