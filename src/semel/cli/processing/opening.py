"""Files and standard input as streams of bytes, packed or not, and how a file is known again."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import sys
import zlib
from pathlib import Path
from typing import Any

from msgspec import Struct

from semel.values.errors import ConfigError

STDIN = "-"
GZIP = b"\x1f\x8b"
WIDE = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
CHUNK_BYTES = 64 * 1024
HEAD_BYTES = 64 * 1024  # by which a file is known again
BEFORE_BYTES = 4 * 1024  # the same, right before the place where work goes on


class Input(Struct, frozen=True):
    """What was named on the command line, and looked at."""

    name: str
    is_file: bool  # it can be read again from any place; not so a pipe
    size: int | None  # bytes on disk, where that is known

    @property
    def shown(self) -> str:
        return "standard input" if self.name == STDIN else self.name


def look_at(name: str) -> Input:
    """Whether it can be read. Raises ConfigError, before anything is done."""
    if name == STDIN:
        if sys.stdin is None or getattr(sys.stdin, "closed", False):
            raise ConfigError("-: standard input is closed; name a file, or pipe events into this command")
        return Input(name, False, None)
    try:
        found = os.stat(name)
        if stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{name}: this is a folder; name the files in it, such as {Path(name) / '*.jsonl'}")
        if not stat.S_ISREG(found.st_mode):
            return Input(name, False, None)
        with open(name, "rb") as file:
            head = file.read(2)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: it cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if head in WIDE:
        raise ConfigError(
            f"{name}: this is {WIDE[head]}; have it written as UTF-8, such as by iconv -f {WIDE[head]} -t UTF-8"
        )
    return Input(name, True, found.st_size)


class Stream:
    """The unpacked bytes of an input. A thread reads, and another may ask how far it has come."""

    def __init__(self, given: Input) -> None:
        self.given = given
        self.packed = False
        self._raw: Any = None
        self._bytes: Any = None
        self._read_bytes = 0
        if given.is_file:  # a pipe is opened by the thread: that may take until somebody writes to it
            try:
                self._open()
            except OSError as error:
                raise ConfigError(f"{given.shown}: it cannot be read: {error.strerror}") from None

    def read(self, size: int) -> bytes:
        """What is there, at most so much; nothing at the end. Raises OSError."""
        if self._raw is None:
            self._open()
        try:
            read: bytes = self._bytes.read1(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"its packing is broken: {error}") from None
        self._read_bytes += len(read)
        return read

    def _open(self) -> None:
        self._raw = _standard_input() if self.given.name == STDIN else open(self.given.name, "rb", buffering=0)  # noqa: SIM115
        first = self._raw.read(CHUNK_BYTES) or b""
        self.packed = first.startswith(GZIP)
        if self.given.is_file:
            self._raw.seek(0)
            first = b""
        begun: Any = _Begun(self._raw, first)
        self._bytes = gzip.GzipFile(fileobj=begun, mode="rb") if self.packed else begun

    def go_to(self, at: int) -> None:
        """Raises OSError."""
        try:
            self._bytes.seek(at)
        except (EOFError, zlib.error) as error:
            raise OSError(f"its packing is broken: {error}") from None

    @property
    def taken(self) -> int:
        """How many bytes of it were read, as they are on disk."""
        try:
            return int(self._raw.tell()) if self.given.is_file else self._read_bytes
        except (OSError, ValueError):
            return self._read_bytes

    def has_grown(self, since: int) -> bool:
        return self.given.is_file and not self.packed and os.fstat(self._raw.fileno()).st_size > since

    def mark(self, at: int) -> Mark:
        """By what this file and this place in it are known again."""
        fd = self._raw.fileno()
        head = os.pread(fd, HEAD_BYTES, 0)
        before = b"" if self.packed else os.pread(fd, min(BEFORE_BYTES, at), max(0, at - BEFORE_BYTES))
        return Mark(self.packed, os.fstat(fd).st_size, len(head), _digest(head), _digest(before))

    def differs(self, mark: Mark, at: int) -> str:
        """What tells that this is another file than the one that the mark was made of, or that it was changed; empty
        where nothing does. It may have grown."""
        fd = self._raw.fileno()
        size = os.fstat(fd).st_size
        if self.packed != mark.packed:
            return "it is packed in another way"
        if size < mark.size:
            return f"it has {size:,} bytes and had {mark.size:,}"
        if self.packed and size != mark.size:
            return f"it is packed, has {size:,} bytes and had {mark.size:,}"
        if _digest(os.pread(fd, mark.head_bytes, 0)) != mark.head:
            return f"its first {mark.head_bytes:,} bytes are others"
        before = b"" if self.packed else os.pread(fd, min(BEFORE_BYTES, at), max(0, at - BEFORE_BYTES))
        return "" if _digest(before) == mark.before else f"what stands before byte {at:,} was changed"

    def close(self) -> None:
        if self._raw is not None and self.given.name != STDIN:
            self._raw.close()


class _Begun:
    """A stream whose first bytes were looked at. Without a buffer: its lock, held by a thread that waits for a pipe,
    would not let the process end."""

    def __init__(self, raw: Any, first: bytes) -> None:
        self._raw = raw
        self._first = first

    def read1(self, size: int) -> bytes:
        if self._first:
            some, self._first = self._first[:size], self._first[size:]
            return some
        read: bytes = self._raw.read(size) or b""
        return read

    read = read1

    def seek(self, at: int, whence: int = 0) -> int:
        return int(self._raw.seek(at, whence))


def _standard_input() -> Any:
    return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)


class Mark(Struct, frozen=True):
    """A file, and a place in it, by which it is known again. Not by its time: a copy is as good."""

    packed: bool
    size: int
    head_bytes: int
    head: str
    before: str


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
