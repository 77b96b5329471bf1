"""The thread that owns a connection and commits in groups: jobs that arrive during a commit form the next group.

A job is a function of the connection. All jobs of a group run in one transaction and get their results after its
commit, so a result is always durable. If one job fails, the group is rolled back and each job runs again in its own
transaction, so that the error of one caller does not affect the others.

Queries use a thread of the same kind with another connection: its transactions begin without a lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

import apsw

from semel.ledgers.sqlite.database import DatabaseFiles
from semel.values.errors import LedgerUnavailable, TransactionOver

T = TypeVar("T")
AnyJob = TypeVar("AnyJob", bound="Job")

ENDED_ITSELF = "the handler ended its transaction itself; it commits when the handler returns"
OUTLASTED = "the transaction was open for as long as its lease lasted: it was rolled back"
FORKED = (
    "SQLite: this process was forked from one that has the ledger open, and a SQLite connection cannot be used "
    "after a fork: close the app before forking, or create it in the child"
)
READING = "begin deferred"
FILES_S = 0.5  # interval at which an idle writer checks that its files exist
SESSIONS_S = 0.02  # time in which a group starts transactions of handlers before it commits


class Job:
    """A function of the connection, and the future for its result on the caller's event loop."""

    __slots__ = ("error", "future", "loop", "value", "work")

    def __init__(self, work: Callable[[apsw.Connection], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class Closable(Protocol):
    """The object that the handler uses while its session is open."""

    def close(self) -> None:
        """Refuse further use."""


Opened = TypeVar("Opened", bound=Closable)


class Session(Job, Generic[Opened]):
    """A handler's transaction. The writer thread keeps it open, as a savepoint of the group, until it ends."""

    __slots__ = ("ended", "keep", "limit_s", "opened", "started")

    def __init__(self, open: Callable[[apsw.Connection], Opened], limit_s: float) -> None:
        """`limit_s`: the lease cannot be renewed while the session is open, so this is its longest duration."""
        super().__init__(open)
        self.opened: asyncio.Future[Opened] = self.loop.create_future()
        self.limit_s = limit_s
        self.ended = threading.Event()
        self.keep = False
        self.started = False

    def run(self, connection: apsw.Connection) -> None:
        if self.started and self.keep:  # it ended and its group failed: a handler does not run twice
            raise LedgerUnavailable("SQLite: the transaction was rolled back with others of its group")
        if self.ended.is_set() or self.error is not None:
            return
        self.started = True
        connection.execute("savepoint handler")
        opened: Opened = self.work(connection)
        self.loop.call_soon_threadsafe(self._open, opened)
        begun = time.monotonic()
        while not self.ended.wait(min(1.0, self.limit_s)):
            if self.loop.is_closed() or time.monotonic() - begun >= self.limit_s:
                opened.close()  # its loop is closed or stuck: other jobs do not wait for it
                self.error = None if self.ended.is_set() else TransactionOver(OUTLASTED)
                break
        keep = self.keep and self.error is None
        try:
            if not keep:
                connection.execute("rollback to handler")
            connection.execute("release handler")
        except apsw.SQLError:
            raise TransactionOver(ENDED_ITSELF) from None

    def end(self, keep: bool) -> None:
        self.keep = keep
        self.ended.set()

    def answer(self) -> None:
        if not self.opened.done() and self.error is not None:
            self.opened.set_exception(self.error)
        super().answer()

    def _open(self, opened: Opened) -> None:
        if not self.opened.done():
            self.opened.set_result(opened)


class Writer:
    """Submits jobs to the thread, which starts with the first job, and again with the first job after `close`."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        files: DatabaseFiles,
        observe: Callable[[str], None] | None = None,
        begin: str = "begin immediate",
    ) -> None:
        """IMMEDIATE takes the write lock before the first read, so that a write never relies on a stale read."""
        self._new_thread = partial(_Thread, connect, files, observe, begin)
        self._thread: _Thread | None = None
        self._changing = threading.Lock()

    @property
    def in_session(self) -> bool:
        return self._thread is not None and self._thread.in_session

    def submit(self, work: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        return self.put(Job(work)).future

    def put(self, job: AnyJob) -> AnyJob:
        with self._changing:
            thread = self._thread
            if thread is None:
                thread = self._thread = self._new_thread()
                thread.start()
            elif thread.pid != os.getpid():
                raise LedgerUnavailable(FORKED)
            thread.queue.put(job)
        return job

    def close(self) -> None:
        """Finish the queued jobs, then close the file."""
        with self._changing:
            if self._thread is None or self._thread.pid != os.getpid():
                return
            thread, self._thread = self._thread, None
            thread.queue.put(None)  # the last item: later jobs get a new thread
        thread.join()


class _Thread(threading.Thread):
    """Owns one connection from open to close. It retries after an error on opening."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        files: DatabaseFiles,
        observe: Callable[[str], None] | None,
        begin: str,
    ) -> None:
        super().__init__(name="semel-sqlite", daemon=True)
        self.queue: SimpleQueue[Job | None] = SimpleQueue()
        self.pid = os.getpid()
        self._connect = connect
        self._files = files
        self._observe = observe
        self._begin = begin
        self._writes = begin != READING
        self._connection: apsw.Connection | None = None
        self.in_session = False
        self._rolled_back = False

    def run(self) -> None:
        sessions: list[Job] = []
        stopping = False
        while sessions or not stopping:
            jobs: list[Job] = []
            received = self._receive(wait=not sessions)
            for job in received:
                if job is None:
                    stopping = True
                elif isinstance(job, Session):
                    sessions.append(job)
                else:
                    jobs.append(job)
            group = jobs + sessions  # handlers last: no other job waits for all of them
            if group:
                decided, sessions = self._commit(group)
                self._answer(decided)
        if self._connection is not None:
            self._files.disconnect(self._connection)

    def _receive(self, wait: bool) -> list[Job | None]:
        """Return all queued jobs; at least one if `wait`. While it waits, the writer checks its files."""
        jobs: list[Job | None] = []
        while wait and not jobs:
            try:
                jobs.append(self.queue.get(timeout=FILES_S if self._writes else None))
            except Empty:
                self._check_idle_files()
        while True:
            try:
                jobs.append(self.queue.get_nowait())
            except Empty:
                return jobs

    def _commit(self, group: list[Job]) -> tuple[list[Job], list[Job]]:
        """Run and commit a group. Returns the decided jobs, and the sessions left for the next transaction."""
        begun = False
        try:
            connection = self._connection or self._open()
            self._files.check()
            connection.execute(self._begin)
            begun = True
            taken = self._run_jobs(connection, group)
            if self._observe is not None:
                self._observe("before_commit")
            connection.execute("commit")
            if self._observe is not None:
                self._observe("after_commit")
            if self._writes:
                self._files.check_all()  # a commit into a deleted file is not acknowledged
            return group[:taken], group[taken:]
        except BaseException as error:
            self._recover(error)
            if len(group) == 1 or not begun:
                for job in group:
                    job.error = _translate(error)
                return group, []
        # One job failed: each of the others runs alone. A handler that has not started stays for the next transaction.
        left: list[Job] = [
            job for job in group if isinstance(job, Session) and not job.started and not job.ended.is_set()
        ]
        decided = [job for job in group if job not in left]
        for job in decided:
            self._commit([job])
        return decided, left

    def _open(self) -> apsw.Connection:
        self._connection = self._connect()
        self._connection.set_rollback_hook(self._mark_rollback)
        return self._connection

    def _mark_rollback(self) -> None:
        self._rolled_back = True

    def _run_jobs(self, connection: apsw.Connection, group: list[Job]) -> int:
        """Run the jobs of a group. Returns how many ran: sessions that do not start in time are left."""
        begun = time.monotonic()
        for number, job in enumerate(group):
            if not isinstance(job, Session):
                job.value = job.work(connection)
                continue
            if number and time.monotonic() - begun > SESSIONS_S:
                return number
            self.in_session, self._rolled_back = True, False
            connection.set_commit_hook(lambda: True)  # refuses a COMMIT of the handler
            try:
                job.run(connection)
            finally:
                connection.set_commit_hook(None)
                self.in_session = False
            if self._rolled_back:  # the other jobs of this group are rolled back, too
                raise TransactionOver(ENDED_ITSELF)
        return len(group)

    def _recover(self, error: BaseException) -> None:
        """Roll back an open transaction. If a file is lost, save the commits that are only in its WAL."""
        if self._connection is None:
            return
        with suppress(apsw.Error):  # the first error is reported, and the next BEGIN fails if it still exists
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        if self._writes and isinstance(error, LedgerUnavailable):
            self._files.save(self._connection)

    def _check_idle_files(self) -> None:
        """Check the files of an idle writer. The next caller gets the error."""
        if self._connection is not None:
            try:
                self._files.check_all()
            except LedgerUnavailable:
                self._files.save(self._connection)

    def _answer(self, jobs: list[Job]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, answered in by_loop.items():
            try:
                loop.call_soon_threadsafe(_answer_all, answered)
            except RuntimeError:
                continue  # that loop is closed: its callers are gone


def _answer_all(jobs: list[Job]) -> None:
    for job in jobs:
        job.answer()


def _translate(error: BaseException) -> BaseException:
    if isinstance(error, apsw.BusyError):
        return LedgerUnavailable(f"SQLite: another process holds the write lock ({error})")
    if isinstance(error, apsw.FullError):
        return LedgerUnavailable(f"SQLite: the disk is full ({error})")
    if isinstance(error, apsw.SQLError) and str(error).startswith(("no such table: semel_", "no such column")):
        return LedgerUnavailable(f"SQLite: the file has an older schema ({error}): run `semel migrate`")
    if isinstance(error, apsw.Error):
        return LedgerUnavailable(f"SQLite: {error}")
    return error if isinstance(error, Exception) else LedgerUnavailable(f"SQLite: {error!r}")
