"""Counters that several processes share: one array of doubles per process, in memory or in a mapped file.

A value of prometheus_client costs 0.4 µs per increment, and 1 µs (a histogram: 2 µs) if processes share it: a lock, a
system call and a pack each time. Here an increment is one addition in an array, about 0.1 µs in both cases. Other
processes see it at once, and it survives a kill of its process.

A file contains the numbers of one process, and their names:

    | bytes of names | number | number | … | spill | ["family",2,"label"]⏎ ["family",1]⏎ …

The owner locks its file for as long as it lives, so its death needs no message. Counters of a dead process stay, and
its gauges (`fleeting`) are left out. The next process that starts takes the file over and continues its counters. So
there are never more files than there were concurrent processes.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Iterator
from io import FileIO
from pathlib import Path
from typing import TypeAlias

import msgspec

from semel.values.log import log

NUMBERS = 65_536  # 500 handlers, 500 endpoints and 500 destinations with all their histograms need 43,000
SPILL = 64  # numbers at the end that are never read: series that no longer fit are counted there
NAMES_BYTES = 512 * 1024
SIZE = NUMBERS * 8 + NAMES_BYTES

Name: TypeAlias = tuple[str, ...]  # the family, then its label values
Sheet: TypeAlias = dict[Name, tuple[float, ...]]  # the numbers of one process

_decode_name = msgspec.json.Decoder(tuple[str, int, tuple[str, ...]]).decode


class SharedCounters:
    """The counters of this process. `numbers[index] += 1` is one increment.

    It needs no lock: an interpreter with a global lock does not switch threads between the read and the write of one
    element.
    """

    def __init__(self, directory: Path | None, fleeting: Collection[str]) -> None:
        """`fleeting` families are gauges: their values end with their process."""
        self._directory = directory
        self._fleeting = frozenset(fleeting)
        self._file: FileIO | None = None
        self._map = self._open() if directory is not None else _in_memory()
        self.numbers: memoryview[float] = memoryview(self._map).cast("d")
        self._lock = threading.Lock()
        self._rows: dict[tuple[Name, int], int] = {}
        self._full = False
        self._next = 1  # number 0 is the length of the names
        for name, width, at in _names(self._map):
            self._rows[name, width] = at
            self._next = at + width
            if name[0] in self._fleeting:
                self.numbers[at : at + width] = memoryview(bytes(8 * width)).cast("d")

    def row(self, name: Name, width: int) -> int:
        """Return the index of the first number of this name. The first call allocates it. Thread-safe."""
        with self._lock:
            at = self._rows.get((name, width))
            if at is None:
                at = self._rows[name, width] = self._add(name, width)
            return at

    def read(self) -> list[Sheet]:
        """Read the numbers of every process, including ended ones."""
        if self._directory is None or self._file is None:
            return [_sheet(self._map, frozenset())]
        sheets: list[Sheet] = []
        for path in sorted(self._directory.glob("*.numbers")):
            with FileIO(path) as file:
                alive = not _lock(file, exclusive=False)
                with mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as content:
                    sheets.append(_sheet(content, frozenset() if alive else self._fleeting))
        return sheets

    def close(self) -> None:
        """Release the file, as the end of the process does."""
        self.numbers.release()
        self._map.close()
        if self._file is not None:
            self._file.close()

    def _add(self, name: Name, width: int) -> int:
        """Write the name before its length: a process that dies in between has added nothing."""
        line = msgspec.json.encode([name[0], width, name[1:]]) + b"\n"
        used = int(self.numbers[0])
        if self._next + width > NUMBERS - SPILL or used + len(line) > NAMES_BYTES:
            if not self._full:
                log.warning("metrics_full", metric=name[0])
            self._full = True
            return NUMBERS - SPILL
        begin = NUMBERS * 8 + used
        self._map[begin : begin + len(line)] = line
        at, self._next = self._next, self._next + width
        self.numbers[0] = used + len(line)
        return at

    def _open(self) -> mmap.mmap:
        """Map the file of an ended process, or a new one. If that fails, count in memory: the service must start."""
        assert self._directory is not None
        file: FileIO | None = None
        try:
            file = _take_over(self._directory) or _create(self._directory)
            mapped = mmap.mmap(file.fileno(), SIZE)
        except (ImportError, OSError, ValueError) as error:  # no file locks, no space, or a foreign file
            log.warning("metrics_not_shared", directory=str(self._directory), error=str(error))
            if file is not None:
                file.close()
            return _in_memory()
        self._file = file
        return mapped


def _in_memory() -> mmap.mmap:
    return mmap.mmap(-1, SIZE)


def _take_over(directory: Path) -> FileIO | None:
    for path in sorted(directory.glob("*.numbers")):
        file = FileIO(path, "r+")
        if _lock(file, exclusive=True):
            return file
        file.close()
    return None


def _create(directory: Path) -> FileIO:
    """Create a file that is locked and has its full size before it gets its name: no process sees half of it, and the
    disk cannot fill up under the map."""
    unique = f"{os.getpid()}-{os.urandom(4).hex()}"
    hidden = directory / f"{unique}.new"
    file = FileIO(hidden, "x+")
    try:
        if not _lock(file, exclusive=True) or file.write(bytes(SIZE)) != SIZE:
            raise OSError(f"{hidden} could not be written")
        hidden.rename(directory / f"{unique}.numbers")
    except (ImportError, OSError):
        file.close()
        hidden.unlink(missing_ok=True)
        raise
    return file


def _lock(file: FileIO, *, exclusive: bool) -> bool:
    """Returns False if another process has the lock. The system releases it at the end of the process."""
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(content: mmap.mmap) -> Iterator[tuple[Name, int, int]]:
    """Each name with its width and index, in order of creation."""
    with memoryview(content) as raw, raw.cast("d") as numbers:
        used = min(int(numbers[0]), NAMES_BYTES)
    at = 1
    for line in content[NUMBERS * 8 : NUMBERS * 8 + used].splitlines():
        family, width, labels = _decode_name(line)
        yield (family, *labels), width, at
        at += width


def _sheet(content: mmap.mmap, without: Collection[str]) -> Sheet:
    names = list(_names(content))
    with memoryview(content) as raw, raw.cast("d") as numbers:
        return {name: tuple(numbers[at : at + width]) for name, width, at in names if name[0] not in without}
