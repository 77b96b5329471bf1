"""Files and standard input as streams of bytes, packed or not, and how a file is known again."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from semel.values.errors import ConfigError, MalformedEvent
from semel.values.strict_json import DOCUMENT_MAX_BYTES, parse

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


DOCUMENT_CHUNK_BYTES = 256 * 1024
BLANKS_MAX = 256  # before a document, which are kept with it
NESTED_MAX = 1_000  # no event nests so deep: these are beginnings without ends, one below the other
CUT_OFF = "the file ends inside of a document: it was cut off, or is still being written"
OPEN_LIST = "the file ends inside of its list: it was cut off, or is still being written"

_BETWEEN = re.compile(rb"(?:[ \t\r\n\x1e]|\xef\xbb\xbf)*")  # also the marks of RFC 7464, and of files put together
_BETWEEN_MEMBERS = re.compile(rb"(?:[ \t\r\n\x1e,]|\xef\xbb\xbf)*")
_BLANKS = re.compile(rb"[ \t]*")
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|["{}\[\]]')
_MARKS = (b"\xef\xbb\xbf", b"\xef\xbb", b"\xef")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
BRACE = ord("{")
QUOTE = ord('"')
_CLOSING = {b"{": b"}", b"[": b"]"}

_validate = msgspec.json.Decoder(msgspec.Raw).decode


class FilePosition(Struct, frozen=True):
    """Between two documents: what is needed to go on from there."""

    at: int = 0
    line: int = 1
    in_list: bool = False
    begun: bool = False  # something else than white space came before


START = FilePosition()


class Document(Struct, gc=False):
    """One document, and where it is. `body` is all of it, or the beginning of what is too large."""

    body: bytes
    start: int  # bytes from the beginning of the file, unpacked
    end: int
    line: int  # of its first byte, from 1
    last_line: int
    in_list: bool
    broken: str = ""  # why it is no JSON

    @property
    def before(self) -> FilePosition:
        return FilePosition(self.start, self.line, self.in_list, begun=True)

    @property
    def after(self) -> FilePosition:
        return FilePosition(self.end, self.last_line, self.in_list, begun=True)


class Splitter:
    """Splits a stream into documents: JSON lines, concatenated documents, or one list.

        {"id": 1}                one on each line
        {"id": 1}{"id": 2}       no separator, as Firehose writes
        {                        laid out over several lines
          "id": 1
        }
        [{"id": 1}, {"id": 2}]   one list, if the file begins with it

    Text that is no JSON is a document too, a broken one. It reaches to the end of its line and includes the indented
    lines below it, so no part of a broken event is ever taken for an event. The next line starts a new document. Memory
    is bounded: of a document above the limit only the beginning and its position are kept.

    `next` returns the documents in order, and None at the end. It may be called again when the file has grown.
    """

    def __init__(
        self, read: Callable[[int], bytes], place: FilePosition = START, largest: int = DOCUMENT_MAX_BYTES
    ) -> None:
        self._read = read
        self._largest = largest
        self._buffer = b""
        self._base = place.at  # of the buffer, in the file
        self._at = 0  # in the buffer: all before it is done with
        self._line = place.line
        self._in_list = place.in_list
        self._begun = place.begun
        self._newline = -1  # the next one at or after `_at`; -1: none is in the buffer
        self.cut_off: Document | None = None  # what the file ends in the middle of

    @property
    def read_to(self) -> int:
        return self._base + len(self._buffer)

    @property
    def has_line(self) -> bool:
        """Whether the next document can perhaps be had without reading on."""
        between = _BETWEEN.match(self._buffer, self._at)
        return between is not None and self._buffer.find(b"\n", between.end()) >= 0

    def next(self) -> Document | None:
        self.cut_off = None
        if not self._to_the_next():
            return None
        if self._newline < self._at:
            self._newline = self._buffer.find(b"\n", self._at)
        document = self._a_line() or self._followed() or self._by_structure()
        return document if self.cut_off is None else None

    # ------------------------------------------------------------------------------------------- where one begins

    def _to_the_next(self) -> bool:
        """Skip what is between documents. False: there is none."""
        while True:
            between = _BETWEEN_MEMBERS if self._in_list else _BETWEEN
            found = between.match(self._buffer, self._at)
            assert found is not None  # it may be empty
            self._skip(found.end())
            rest = self._buffer[self._at : self._at + 3]
            if not rest or (len(rest) < 3 and rest in _MARKS):
                if self._more():
                    continue
                if not rest:
                    return self._at_the_end()
            if rest[:1] == b"[" and not self._begun:
                self._in_list = self._begun = True
                self._skip(self._at + 1)
            elif rest[:1] == b"]" and self._in_list:
                self._in_list = False
                self._skip(self._at + 1)
            else:
                self._begun = True
                return True

    def _at_the_end(self) -> bool:
        if self._in_list:
            at = self._base + self._at
            self.cut_off = Document(b"", at, at, self._line, self._line, True, OPEN_LIST)
        return False

    def _from(self) -> int:
        """Where the document begins: blanks before it on its line are its own, so that it is kept as it was written."""
        at = self._at
        while at > 0 and self._buffer[at - 1] in b" \t" and self._at - at < BLANKS_MAX:
            at -= 1
        return at

    # --------------------------------------------------------------------------------------------- where one ends

    def _a_line(self) -> Document | None:
        """The usual case: the line is the document."""
        end = self._newline
        if end < 0 or end - self._at > self._largest:
            return None
        line = self._buffer[self._at : end].rstrip()
        if self._in_list:
            line = line.removesuffix(b",").rstrip()
        if not line.startswith(b"{"):
            return None
        try:
            _validate(line)
        except (msgspec.DecodeError, RecursionError):
            return None
        return self._taken(self._at + len(line))

    def _followed(self) -> Document | None:
        """The next one begins in the buffer: the parser stumbles over it, and tells where."""
        if self._buffer[self._at] != BRACE:
            return None
        window = memoryview(self._buffer)[self._at : self._at + self._largest + 1]
        try:
            _validate(window)
        except RecursionError:
            return None
        except msgspec.DecodeError as error:
            stumbled = _TRAILING.search(str(error))
            if stumbled is None:
                return None
        else:
            return None
        body = bytes(window[: int(stumbled[1]) - 1]).rstrip()
        try:
            _validate(body)  # whatever it tells, this has to be a document
        except msgspec.DecodeError:
            return None
        return self._taken(self._at + len(body))

    def _by_structure(self) -> Document:
        """By its brackets, as far as they reach; it must be JSON then."""
        if self._buffer[self._at : self._at + 1] not in _CLOSING:
            return self._broken()
        looked_at, checked, depth = self._at, self._at, 0
        while True:
            lines_end = self._buffer.rfind(b"\n", checked) + 1
            if lines_end:
                if not _could_go_on(memoryview(self._buffer)[self._at : lines_end]):
                    return self._broken()
                checked = lines_end
            for token in _TOKEN.finditer(self._buffer, looked_at):
                first = self._buffer[token.start()]
                if first == QUOTE and token.end() - token.start() == 1:  # a string that does not end here
                    if self._buffer.find(b"\n", token.end()) >= 0:
                        return self._broken()
                    break
                looked_at = token.end()
                depth += 1 if first in b"{[" else -1 if first in b"}]" else 0
                if depth == 0:
                    return self._whole(looked_at)
                if depth > NESTED_MAX:
                    return self._broken()
            else:
                looked_at = len(self._buffer)
            if len(self._buffer) - self._at > self._largest:
                return self._broken()
            before = self._at
            if not self._more():
                return self._ended_inside()
            moved = before - self._at
            looked_at, checked = looked_at - moved, checked - moved

    def _whole(self, end: int) -> Document:
        if end - self._at > self._largest:
            return self._broken()
        try:
            _validate(self._buffer[self._at : end])
        except (msgspec.DecodeError, RecursionError):
            return self._broken()
        return self._taken(end)

    def _taken(self, end: int) -> Document:
        start = self._from()
        line = self._line
        self._skip(end)
        return Document(self._buffer[start:end], self._base + start, self._base + end, line, self._line, self._in_list)

    def _ended_inside(self) -> Document:
        """Not taken: whoever writes the file may come back to it."""
        start = self._from()
        end = self._base + len(self._buffer)
        self.cut_off = Document(
            self._buffer[start:], self._base + start, end, self._line, self._line, self._in_list, CUT_OFF
        )
        return self.cut_off

    # ----------------------------------------------------------------------------------------------- what is none

    def _broken(self) -> Document:
        """To the end of its line, and what is indented below it. Of more than the limit only the beginning is kept."""
        start = self._from()
        document = Document(b"", self._base + start, 0, self._line, 0, self._in_list)
        indent, closing = self._at - start, _CLOSING.get(self._buffer[self._at : self._at + 1], b"")
        kept = [self._buffer[start : self._at]]
        room = self._largest + 1
        while True:
            room, ended = self._take_line(kept, room)
            if not ended or not self._belongs(indent, closing):
                break
        document.body = b"".join(kept)
        document.end, document.last_line = self._base + self._at, self._line
        if ended:  # the end of its line is no part of it
            document.end, document.last_line = document.end - 1, self._line - 1
            document.body = document.body.removesuffix(b"\n").removesuffix(b"\r")
        document.broken = _why(document.body, document.end - document.start, self._largest)
        return document

    def _take_line(self, kept: list[bytes], room: int) -> tuple[int, bool]:
        """The rest of the line, and how much more may be kept. False: the file ends before the line does."""
        while True:
            end = self._buffer.find(b"\n", self._at) + 1
            till = end or len(self._buffer)
            if room > 0:
                kept.append(self._buffer[self._at : min(till, self._at + room)])
                room -= len(kept[-1])
            self._skip(till)
            if end or not self._more():
                return room, bool(end)

    def _belongs(self, indent: int, closing: bytes) -> bool:
        """Whether the next line is a part of what is broken: indented deeper, or its closing bracket."""
        while True:
            blanks = _BLANKS.match(self._buffer, self._at)
            assert blanks is not None  # it may be empty
            if blanks.end() < len(self._buffer) or len(self._buffer) - self._at > self._largest or not self._more():
                break
        deep, first = blanks.end() - self._at, self._buffer[blanks.end() : blanks.end() + 1]
        if first in (b"", b"\r", b"\n"):
            return False
        return deep > indent or (deep == indent and bool(closing) and first == closing)

    # ------------------------------------------------------------------------------------------------- the buffer

    def _skip(self, to: int) -> None:
        self._line += self._buffer.count(b"\n", self._at, to)
        self._at = to

    def _more(self) -> bool:
        """Read on. What was done with is dropped, except the blanks before the next document."""
        chunk = self._read(DOCUMENT_CHUNK_BYTES)
        if not chunk:
            return False
        keep = self._from()
        self._buffer = self._buffer[keep:] + chunk
        self._base += keep
        self._at -= keep
        self._newline = -1
        return True


def _could_go_on(lines: memoryview) -> bool:
    """Whether these whole lines are the beginning of a document. Numbers and words do not cross lines."""
    try:
        _validate(lines)
    except RecursionError:
        return False
    except msgspec.DecodeError as error:
        return "truncated" in str(error) or "trailing characters" in str(error)  # or it ends, and the next follows
    return True


def _why(body: bytes, size: int, largest: int) -> str:
    if size > largest:
        return f"no document ends within {largest:,} bytes; these are {size:,}"
    try:
        parse(body)
    except MalformedEvent as error:
        return str(error)
    return ""  # JSON, and no object: for the flow to judge
