"""Facts about the store, for `semel doctor`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

import apsw

from semel.ledgers.sqlite.database import SCHEMA_VERSION, open_reader
from semel.ledgers.sqlite.statements import rows
from semel.ports import Fact
from semel.values.errors import LedgerUnavailable

FREE_MIN_BYTES = 256 * 1024**2  # eight WALs at their usual size
CHECK_MAX_BYTES = 256 * 1024**2  # the check reads the whole file: about a second for this much
NETWORKED = ("9p", "afs", "beegfs", "ceph", "cifs", "fuse.s3fs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "smb")
LEVELS = ("off", "normal", "full", "extra")


def surroundings(path: str) -> list[Fact]:
    """Return the facts that are known without opening the file."""
    folder = Path(path).absolute().parent
    facts = [Fact("file", str(Path(path).absolute())), Fact("SQLite", apsw.sqlite_lib_version())]
    facts += [Fact("size", _size(path)), Fact("WAL", _size(f"{path}-wal"))]
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [*facts, Fact("folder", f"{error.strerror}: {folder}", "error")]
    level: Literal["info", "warning"] = "warning" if free < FREE_MIN_BYTES else "info"
    return [*facts, Fact("free disk", f"{free:,} bytes", level), _file_system(folder)]


def facts(connection: apsw.Connection) -> list[Fact]:
    """Return the facts that need only a reading connection."""
    version = connection.pragma("user_version")
    migration = f"; the next process that writes migrates it to {SCHEMA_VERSION}" if version != SCHEMA_VERSION else ""
    pages, free, page = (connection.pragma(name) for name in ("page_count", "freelist_count", "page_size"))
    journal = connection.pragma("journal_mode")
    return [
        Fact("schema", f"version {version}{migration}"),
        Fact("journal", journal)
        if journal == "wal"
        else Fact("journal", f"{journal}, expected wal: readers and writers would block each other", "error"),
        Fact("unused", f"{free * page:,} bytes in the file"),
        _integrity(connection, pages * page),
    ]


def writable(connection: apsw.Connection) -> list[Fact]:
    """Return facts of the writer's connection. Running there proves that the write lock can be taken."""
    return [Fact("synchronous", LEVELS[connection.pragma("synchronous")]), Fact("writable", "yes")]


def lockable(path: str, synchronous: str) -> list[Fact]:
    """Take the write lock on a separate connection and release it without writing."""
    try:
        connection = open_reader(path, synchronous, migrate=False)
        try:
            connection.pragma("query_only", 0)  # query_only refuses the lock as well
            connection.execute("begin immediate")
            connection.execute("rollback")
        finally:
            connection.close()
    except apsw.Error as error:
        raise LedgerUnavailable(f"SQLite: {error}") from error
    return [Fact("synchronous", synchronous), Fact("writable", "yes")]


def clock(ahead_ms: int) -> Fact:
    """Compare the clock of this boot, which measures leases, with the wall clock."""
    if not ahead_ms:
        return Fact("clock", "agrees with the wall clock")
    difference = f"{abs(ahead_ms) / 1000:,.0f} s {'ahead of' if ahead_ms > 0 else 'behind'} the wall clock"
    return Fact(
        "clock",
        f"{difference}, which was wrong when the ledger was first opened after the last boot. Leases are not "
        "affected, and not_after is compared with the wall clock. Times of events and attempts are shown with this "
        "error until the machine is started again",
        "warning",
    )


def _integrity(connection: apsw.Connection, size: int) -> Fact:
    if size > CHECK_MAX_BYTES:
        return Fact(
            "integrity", f"not checked: {size:,} bytes would take long; run `pragma quick_check` at a quiet time"
        )
    ((first,), *_) = rows(connection, "pragma quick_check(1)")
    if first == "ok":
        return Fact("integrity", "ok")
    return Fact("integrity", f"{first}; restore the file from a backup", "error")


def _size(path: str) -> str:
    try:
        return f"{os.path.getsize(path):,} bytes"
    except OSError:
        return "none"


def _file_system(folder: Path) -> Fact:
    """Return the type of the file system. Known on Linux only."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return Fact("file system", "unknown")
    here = str(folder.resolve())
    best, kind = "", "unknown"
    for mount in mounts:
        before, _, after = mount.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")  # a blank is written \\040
        if len(point) >= len(best) and (here + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, after.split(" ")[0]
    if kind.startswith(NETWORKED):
        return Fact("file system", f"{kind} is on the network, where locks may not hold: use a local disk", "warning")
    return Fact("file system", kind)
