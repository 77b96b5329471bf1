"""Numbers that processes share: one array of doubles for each process, in memory or in a mapped file.

The values of prometheus_client cost 0.4 µs an increment, and 1 µs (a histogram: 2 µs) where processes share them: a
lock, a system call and a pack each time. Here an increment is one addition in an array, about 0.1 µs in both cases.
What a process has counted is seen by the others at once, and outlives its kill.

A file holds the numbers of one process, and their names:

    | bytes of names | number | number | … | spill | ["family",2,"label"]⏎ ["family",1]⏎ …

Its owner holds a lock on it for as long as it lives, so nobody has to be told when it dies. What it counted stays; its
present state (`fleeting`) is left out; the next process that starts takes the file over and counts on in it. So there
are never more files than there were processes at a time.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Collection, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from semel.values.log import log

NUMBERS = 65_536  # 500 handlers, 500 endpoints and 500 destinations with all their histograms need 43,000
SPILL = 64  # numbers at the end, which nobody reads: what does not fit any more is counted there
NAMES_BYTES = 512 * 1024
SIZE = NUMBERS * 8 + NAMES_BYTES

Name: TypeAlias = tuple[str, ...]  # the family, then the values of its labels
Sheet: TypeAlias = dict[Name, tuple[float, ...]]  # what one process says

_decode_name = msgspec.json.Decoder(tuple[str, int, tuple[str, ...]]).decode


class SharedCounters:
    """Made in the process that counts, and used there only. `numbers[at] += 1` is one increment.

    No lock is needed for that: an interpreter with a lock of its own does not change threads between the reading and
    the writing of one element.
    """

    def __init__(self, directory: Path | None, fleeting: Collection[str]) -> None:
        """`fleeting` families say how it is now: they end with their process."""
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
        """Where the numbers of this name begin; made at the first ask. The same for every thread."""
        with self._lock:
            at = self._rows.get((name, width))
            if at is None:
                at = self._rows[name, width] = self._add(name, width)
            return at

    def read(self) -> list[Sheet]:
        """What each process says, also those that are gone."""
        if self._directory is None or self._file is None:
            return [_sheet(self._map, frozenset())]
        return [self._read_file(path) for path in sorted(self._directory.glob("*.numbers"))]

    def close(self) -> None:
        """As if the process had ended."""
        self.numbers.release()
        self._map.close()
        if self._file is not None:
            self._file.close()

    # ------------------------------------------------------------------------------------------------ its parts

    def _add(self, name: Name, width: int) -> int:
        """The name is written before its length: a process that dies in between has written nothing."""
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
        """The file of a process that is gone, or a new one. A service without metrics is better than none."""
        assert self._directory is not None
        file: FileIO | None = None
        try:
            file = _taken_over(self._directory) or _created(self._directory)
            mapped = mmap.mmap(file.fileno(), SIZE)
        except (ImportError, OSError, ValueError) as error:  # no locks here, no room, not our file
            log.warning("metrics_not_shared", directory=str(self._directory), error=str(error))
            if file is not None:
                file.close()
            return _in_memory()
        self._file = file
        return mapped

    def _read_file(self, path: Path) -> Sheet:
        with FileIO(path) as file:
            alive = not _lock(file, exclusive=False)
            with mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_READ) as content:
                return _sheet(content, frozenset() if alive else self._fleeting)


def _in_memory() -> mmap.mmap:
    return mmap.mmap(-1, SIZE)


def _taken_over(directory: Path) -> FileIO | None:
    for path in sorted(directory.glob("*.numbers")):
        file = FileIO(path, "r+")
        if _lock(file, exclusive=True):
            return file
        file.close()
    return None


def _created(directory: Path) -> FileIO:
    """Locked and at full length before it gets its name: nobody sees half of it, and no disk fills up under a map."""
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
    """False: someone holds it. The system lets go of it when a process ends, however it ends."""
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(content: mmap.mmap) -> Iterator[tuple[Name, int, int]]:
    """Each name with its width and place, in the order in which they were made."""
    with memoryview(content) as raw, raw.cast("d") as numbers:
        used = min(int(numbers[0]), NAMES_BYTES)
    at = 1
    for line in content[NUMBERS * 8 : NUMBERS * 8 + used].splitlines():
        family, width, labels = _decode_name(line)
        yield (family, *labels), width, at
        at += width


def _sheet(content: mmap.mmap, without: Collection[Any]) -> Sheet:
    names = list(_names(content))
    with memoryview(content) as raw, raw.cast("d") as numbers:
        return {name: tuple(numbers[at : at + width]) for name, width, at in names if name[0] not in without}
