"""Opens the database file: its settings, its schema and versions, its clock, and the check for removed files."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files

import apsw

from semel.values.errors import LedgerUnavailable

APPLICATION_ID = 0x53454D4C  # "SEML"
FIRST_VERSION = 7  # versions 1 to 6 were never released
SCHEMA_STEPS = ("007_schema.sql",)  # the step that leads to version 7, 8, …
SCHEMA_VERSION = FIRST_VERSION + len(SCHEMA_STEPS) - 1
BUSY_S = 5.0  # longest wait for the transaction of another process
CACHE_KIB = 64 * 1024  # interior pages of ten million keys stay in memory
READER_CACHE_KIB = 8 * 1024  # readers find most pages in the map
MMAP_BYTES = 4 * 1024**3  # old pages are read without a system call; this is address space, not memory
CHECKPOINT_PAGES = 8_000  # 32 MiB of WAL: one write of a hot page back to the file for many commits
CLOCKS_AGREE_MS = 1_000  # the wall clock is adjusted by small steps all the time
STATEMENTS = 256  # more than the number of distinct statements

Clock = Callable[[], int]

IN_USE: dict[int, tuple[int, int] | None] = {}
"""Files that ledgers of this process have open. `caller_transaction` refuses other SQLite libraries on them."""


def open_database(path: str, synchronous: str) -> apsw.Connection:
    """Open a connection with the ledger's settings and schema. Several processes may do so at the same time."""
    connection = apsw.Connection(path, statementcachesize=STATEMENTS)
    try:
        connection.set_busy_handler(_BusyHandler(BUSY_S))
        _read_version(connection, path)
        _set_wal(connection)
        for pragma in (
            f"synchronous={synchronous}",
            f"cache_size=-{CACHE_KIB}",
            f"mmap_size={MMAP_BYTES}",
            f"wal_autocheckpoint={CHECKPOINT_PAGES}",
            f"journal_size_limit={CHECKPOINT_PAGES * 4096}",
        ):
            connection.execute(f"pragma {pragma}")
        _ensure_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: str, synchronous: str, migrate: bool = True) -> apsw.Connection:
    """Open a connection that cannot write and never waits for a writer.

    `migrate`: create the file, or migrate its schema, first. Without it an older schema is read as it is."""
    if migrate and schema_version(path) != SCHEMA_VERSION:
        open_database(path, synchronous).close()
    keep_wal = not migrate and _has_wal(path)
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, statementcachesize=STATEMENTS)
    try:
        if keep_wal:  # the last connection to close would move the WAL into the file
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_busy_handler(_BusyHandler(BUSY_S))
        _read_version(connection, path)
        for pragma in ("query_only=1", f"cache_size=-{READER_CACHE_KIB}", f"mmap_size={MMAP_BYTES}"):
            connection.execute(f"pragma {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


class DatabaseFiles:
    """The files of one database, shared by all connections of a ledger. Detects that one of them was removed.

    Writes to a removed file are lost, because other processes cannot see it, and duplicates would run again there. A
    connection that opens late must not even create a file: it would take the WAL of the file that comes back. The WAL
    holds the commits since the last checkpoint. If it is deleted, SQLite continues to write to the deleted file, and
    a crash loses all of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None  # device and inode of the open file
        # the same by path, with its WAL and its shared-memory index
        self._identities: list[tuple[str, tuple[int, int] | None]] = []
        self._lock = threading.Lock()  # opening during a close must not see half of the files
        self._connections = 0  # of this ledger, in all its threads
        self._lost = ""  # path of a WAL or index that is gone
        self._saved = False  # the contents of the deleted WAL are in the database file

    def connect(self, open: Callable[[], apsw.Connection]) -> apsw.Connection:
        with self._lock:
            if self._connections:
                self.check_all()
            try:
                connection = open()
            except apsw.Error as error:
                first = error.__context__  # a rollback that fails too must not hide its cause
                cause = first if isinstance(first, apsw.Error) else error
                raise LedgerUnavailable(f"SQLite: cannot open {self._path}: {cause}") from error
            if not self._connections:
                self._file = file_identity(self._path)
                real = os.path.realpath(self._path)  # SQLite follows a symbolic link
                beside = [(path, file_identity(path)) for path in (f"{real}-wal", f"{real}-shm")]
                self._identities = [(self._path, self._file), *[item for item in beside if item[1] is not None]]
                self._lost, self._saved = "", False
                IN_USE[id(self)] = self._file
            self._connections += 1
            return connection

    def disconnect(self, connection: apsw.Connection) -> None:
        """Close a connection. After the last one SQLite removes the WAL itself; the next open may find another file."""
        with self._lock:
            self._connections -= 1
            if not self._connections:
                IN_USE.pop(id(self), None)
            connection.close()

    def check(self) -> None:
        """Check the database file before a transaction. One system call, as long as no file is lost."""
        try:
            status = os.stat(self._path)
            if (status.st_dev, status.st_ino) == self._file and not self._lost:
                return
        except OSError:
            pass
        self._check_each()

    def check_all(self) -> None:
        """Check every file: after a commit and before its answer, and periodically."""
        try:
            for path, identity in self._identities:
                status = os.stat(path)
                if (status.st_dev, status.st_ino) != identity:
                    break
            else:
                self._lost = ""  # it was moved away and is back
                return
        except OSError:
            pass
        self._check_each()

    def _check_each(self) -> None:
        """Raise LedgerUnavailable for the first file that is missing or replaced."""
        for path, identity in self._identities:
            if file_identity(path) == identity:
                continue
            if path == self._path:
                raise LedgerUnavailable(
                    f"SQLite: {path} was removed or replaced while in use; close the app to use the one there now"
                )
            self._lost = path
            saved = " Everything that was acknowledged is in the database file." if self._saved else ""
            raise LedgerUnavailable(
                f"SQLite: {path} was deleted or replaced while in use, so the ledger refuses all work. Stop every "
                f"process that uses {self._path}, by SIGTERM if possible, and start again. Never delete the "
                f"files -wal and -shm of a database.{saved}"
            )
        self._lost = ""

    def save(self, connection: apsw.Connection) -> None:
        """Copy the commits of a deleted WAL into the database file while a connection still has the WAL open.

        Do nothing if a new WAL exists: another process opened the database without these commits, and both would
        write to it."""
        if not self._lost or self._saved or file_identity(self._path) != self._file:
            return
        if any(file_identity(path) not in (None, identity) for path, identity in self._identities):
            return
        with suppress(apsw.Error):  # retried at the next check
            ((busy, frames, copied),) = connection.execute("pragma wal_checkpoint(full)").fetchall()
            self._saved = not busy and frames == copied


class _BusyHandler:
    """Waits in short random steps: SQLite's own handler sleeps up to 100 ms, which starves a process under load."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        if now - self._since > self._limit_s:
            return False
        time.sleep(random.uniform(0.0001, 0.002))
        return True


def _set_wal(connection: apsw.Connection) -> None:
    deadline = time.monotonic() + BUSY_S
    while True:  # the switch to WAL does not use the busy handler
        try:
            connection.execute("pragma journal_mode=wal")
            return
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))


def _read_version(connection: apsw.Connection, path: str) -> int:
    """Return the version of the file's schema; 0 means none. A file that cannot be used is refused and not changed."""
    with connection:  # a savepoint: both values of one moment, even if another process is creating the schema
        owner, version = connection.pragma("application_id"), connection.pragma("user_version")
    if owner not in (0, APPLICATION_ID) or (owner == 0 and version != 0):
        raise LedgerUnavailable(
            f"{path} belongs to another application (application_id {owner:#x}, user_version {version}): "
            "use another file"
        )
    if owner == APPLICATION_ID and version < FIRST_VERSION:
        raise LedgerUnavailable(
            f"{path} has schema version {version} of an unreleased Semel, which cannot be migrated: process its events "
            "with the Semel that wrote it, then use another file"
        )
    if version > SCHEMA_VERSION:
        raise LedgerUnavailable(
            f"{path} has schema version {version}, this Semel knows {SCHEMA_VERSION}: "
            "use the Semel that wrote it, or another file"
        )
    return int(version)


def schema_version(path: str) -> int | None:
    """Return the version of the file's schema; None if there is no file. Changes nothing."""
    if not os.path.exists(path):
        return None
    connection = open_reader(path, "full", migrate=False)
    try:
        return _read_version(connection, path)
    finally:
        connection.close()


def _has_wal(path: str) -> bool:
    try:
        return os.path.getsize(f"{os.path.realpath(path)}-wal") > 0
    except OSError:
        return False


def _ensure_schema(connection: apsw.Connection, path: str) -> None:
    """Run all missing schema steps in one transaction."""
    if _read_version(connection, path) == SCHEMA_VERSION:
        return
    with _immediately(connection):
        version = _read_version(connection, path)  # read again: another process may have migrated
        for step in SCHEMA_STEPS[max(0, version - FIRST_VERSION + 1) :]:
            connection.execute(files(__package__).joinpath("schema", step).read_text())
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", SCHEMA_VERSION)


@contextmanager
def _immediately(connection: apsw.Connection) -> Iterator[None]:
    """Run a block in one transaction that holds the write lock from its start."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def file_identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of the file at the path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_clock(connection: apsw.Connection) -> Clock:
    """Return the time since boot as UTC: equal in all processes, and without jumps.

    Leases compare times written by different processes, so corrections of the wall clock must not affect them. Every
    boot has its own offset. The holder of a lease of an earlier boot is dead, so that lease is over.
    """
    clock = known_clock(connection)
    if clock is not None:
        return clock
    with _immediately(connection):
        clock = known_clock(connection)  # read again under the lock: another process may have set it
        if clock is None:
            now = wall_clock()
            connection.execute(
                "insert or replace into semel_meta values ('boot', ?), ('boot_offset', ?)",
                (_boot_id(), now - _since_boot_ms()),
            )
            connection.execute("update semel_lease set until_ms = 0 where state = 1")
            connection.execute("update semel_inbox set due_ms = 0 where state = 2")
            connection.execute("update semel_dispatch set due_ms = 0 where taken = 1")
            connection.execute("update semel_rate set next_ms = 0")
            # Accepted in the future: the clock went back between the boots. Waiting items must not be delayed by that.
            connection.execute("update semel_inbox set due_ms = ?1 where state = 1 and accepted_ms > ?1", (now,))
            connection.execute("update semel_lease set until_ms = ?1 where state = 2 and first_granted_ms > ?1", (now,))
            connection.execute(
                "update semel_dispatch set due_ms = ?1 where state = 'pending' and due_ms > ?1"
                " and id in (select id from semel_notification where added_ms > ?1)",
                (now,),
            )
            clock = known_clock(connection)
    assert clock is not None
    return clock


def known_clock(connection: apsw.Connection) -> Clock | None:
    """Return the clock of this boot, shared by all processes; None if no process has written since the boot."""
    boot_id = _boot_id()
    if not boot_id:  # not Linux: the wall clock is the only one that processes share
        return wall_clock
    known = dict(connection.execute("select name, value from semel_meta where name in ('boot', 'boot_offset')"))
    if known.get("boot") != boot_id:
        return None
    offset_ms: int = known["boot_offset"]
    now_ns, boot_time = time.clock_gettime_ns, time.CLOCK_BOOTTIME
    return lambda: offset_ms + now_ns(boot_time) // 1_000_000


def ahead_of_wall_ms(clock: Clock) -> int:
    """Return how far the clock of this boot is ahead of the wall clock; 0 if both agree.

    They differ until the next boot if the wall clock was wrong when the first process opened the database after this
    boot, and was corrected later."""
    ahead_ms = clock() - wall_clock()
    return 0 if abs(ahead_ms) < CLOCKS_AGREE_MS else ahead_ms


def this_boot() -> tuple[str, int]:
    """Return the id of this boot and the time since it (ms). The id is empty if the system has none."""
    boot_id = _boot_id()
    return boot_id, _since_boot_ms() if boot_id else 0


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


def closed_clock() -> int:
    """The clock of a ledger whose database is not open."""
    raise LedgerUnavailable("SQLite: the database is not open")


def _since_boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
