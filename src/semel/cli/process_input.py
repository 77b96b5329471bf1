"""Reads JSON documents from files, pipes and standard input, with bounded memory."""

from __future__ import annotations

import gzip
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
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
CHUNK_BYTES = 256 * 1024


class Input(Struct, frozen=True):
    """A file, a named pipe or standard input."""

    name: str  # as on the command line
    is_file: bool  # a regular file; a pipe may block, and has no size
    size: int | None  # bytes on disk, of a regular file

    @property
    def label(self) -> str:
        return "standard input" if self.name == STDIN else self.name


def find_input(name: str) -> Input:
    """Check that an input can be read. Raises ConfigError."""
    if name == STDIN:
        if sys.stdin is None or sys.stdin.closed:
            raise ConfigError("-: standard input is closed; name a file, or pipe events into this command")
        return Input(name, False, None)
    try:
        status = os.stat(name)
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{name}: this is a folder; name the files in it, such as {Path(name) / '*.jsonl'}")
        if not stat.S_ISREG(status.st_mode):
            return Input(name, False, None)
        with open(name, "rb") as file:
            head = file.read(2)
    except OSError as error:
        raise ConfigError(f"{name}: cannot read the file: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{name!r}: cannot read the file: {error}") from None
    if head in UTF_16:
        raise ConfigError(f"{name}: the file is UTF-16; convert it to UTF-8, such as by iconv -f UTF-16 -t UTF-8")
    return Input(name, True, status.st_size)


class Stream:
    """The bytes of an input, decompressed if they are gzip. One thread reads; any thread may ask for `bytes_read`."""

    def __init__(self, source: Input) -> None:
        self.source = source
        self.is_gzip = False
        self.bytes_read = 0  # as they are on disk
        self._raw: Any = None
        self._reader: Any = None

    def read(self, size: int) -> bytes:
        """Return the available bytes, at most `size`; empty at the end. Raises OSError.

        The first call opens the input, in the reading thread: to open a named pipe may take until it has a writer."""
        try:
            if self._reader is None:
                self._open()
            content: bytes = self._reader.read1(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"invalid gzip data: {error}") from None
        return content

    def _open(self) -> None:
        # Unbuffered: the lock of a buffer, held by a thread that waits for a pipe, would keep the process from ending.
        if self.source.name == STDIN:
            self._raw = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        else:
            self._raw = open(self.source.name, "rb", buffering=0)  # noqa: SIM115
        first = self._raw.read(CHUNK_BYTES) or b""
        self.is_gzip = first.startswith(GZIP)
        reader: Any = _CountingReader(self, self._raw, first)
        self._reader = gzip.GzipFile(fileobj=reader, mode="rb") if self.is_gzip else reader

    def close(self) -> None:
        if self._raw is not None and self.source.name != STDIN:
            self._raw.close()


class _CountingReader:
    """Returns the first bytes, which were read to detect gzip, and then those of the stream. Counts them."""

    def __init__(self, stream: Stream, raw: Any, first: bytes) -> None:
        self._stream = stream
        self._raw = raw
        self._first = first

    def read1(self, size: int) -> bytes:
        if self._first:
            content, self._first = self._first[:size], self._first[size:]
        else:
            content = self._raw.read(size) or b""
        self._stream.bytes_read += len(content)
        return content

    read = read1


BLANKS_MAX = 256  # blanks before a document that are kept with it
NESTED_MAX = 1_000  # brackets; events do not nest this deep, unclosed brackets do
CUT_OFF = "the file ends inside a document: it is cut off, or still being written"
OPEN_LIST = "the file ends inside its list: it is cut off, or still being written"

_BETWEEN = re.compile(rb"(?:[ \t\r\n\x1e]|\xef\xbb\xbf)*")  # also RFC 7464 separators and byte order marks
_BETWEEN_MEMBERS = re.compile(rb"(?:[ \t\r\n\x1e,]|\xef\xbb\xbf)*")
_BLANKS = re.compile(rb"[ \t]*")
_TOKEN = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|["{}\[\]]')
_PARTIAL_MARKS = (b"\xef\xbb", b"\xef")  # of a byte order mark
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
BRACE = ord("{")
QUOTE = ord('"')
_CLOSING = {b"{": b"}", b"[": b"]"}

_validate = msgspec.json.Decoder(msgspec.Raw).decode


class Document(Struct, gc=False):
    """One document and its position. `body` is complete, or the beginning of a document above the limit."""

    body: bytes
    start: int  # bytes from the beginning of the decompressed input
    end: int
    line: int  # of its first byte, from 1
    error: str = ""  # why it is not JSON


class Splitter:
    """Splits a stream into documents: JSON lines, concatenated documents, or one list.

        {"id": 1}                one on each line
        {"id": 1}{"id": 2}       no separator, as Firehose writes
        {                        formatted over several lines
          "id": 1
        }
        [{"id": 1}, {"id": 2}]   one list, if the file begins with it

    Text that is not JSON is a document with an `error`. It extends to the end of its line and includes the indented
    lines below it, so no part of a broken event is ever taken for an event. The next line starts a new document. Memory
    is bounded: of a document above the limit only the beginning and its position are kept.

    `next` returns the documents in order, and None at the end.
    """

    def __init__(self, read: Callable[[int], bytes], largest: int = DOCUMENT_MAX_BYTES) -> None:
        self._read = read
        self._largest = largest
        self._buffer = b""
        self._base = 0  # position of the buffer in the input
        self._at = 0  # position in the buffer; everything before it is done
        self._line = 1
        self._in_list = False
        self._started = False  # something other than white space was read
        self._newline = -1  # position of the next newline at or after `_at`; -1: none in the buffer
        self.cut_off: Document | None = None  # the incomplete document at the end of the input

    @property
    def has_line(self) -> bool:
        """Whether the buffer may contain the next document."""
        between = _BETWEEN.match(self._buffer, self._at)
        return between is not None and self._buffer.find(b"\n", between.end()) >= 0

    def next(self) -> Document | None:
        if not self._find_start():
            return None
        if self._newline < self._at:
            self._newline = self._buffer.find(b"\n", self._at)
        document = self._match_line() or self._match_followed() or self._match_brackets()
        return document if self.cut_off is None else None

    # ------------------------------------------------------------------------------------ the start of a document

    def _find_start(self) -> bool:
        """Skip the separators before the next document. False: there is none."""
        while True:
            between = (_BETWEEN_MEMBERS if self._in_list else _BETWEEN).match(self._buffer, self._at)
            assert between is not None  # it may be empty
            self._skip(between.end())
            first = self._buffer[self._at : self._at + 3]
            if (not first or first in _PARTIAL_MARKS) and self._read_more():
                continue
            if not first:
                if self._in_list:
                    at = self._base + self._at
                    self.cut_off = Document(b"", at, at, self._line, OPEN_LIST)
                return False
            if first[:1] == b"[" and not self._started:
                self._in_list = self._started = True
                self._skip(self._at + 1)
            elif first[:1] == b"]" and self._in_list:
                self._in_list = False
                self._skip(self._at + 1)
            else:
                self._started = True
                return True

    def _start(self) -> int:
        """The position of the document, including the blanks before it on its line: its bytes are kept as written."""
        at = self._at
        while at > 0 and self._buffer[at - 1] in b" \t" and self._at - at < BLANKS_MAX:
            at -= 1
        return at

    # -------------------------------------------------------------------------------------- the end of a document

    def _match_line(self) -> Document | None:
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
        return self._take(self._at + len(line))

    def _match_followed(self) -> Document | None:
        """The next document follows in the buffer. The parser's error contains its position."""
        if self._buffer[self._at] != BRACE:
            return None
        window = memoryview(self._buffer)[self._at : self._at + self._largest + 1]
        try:
            _validate(window)
        except RecursionError:
            return None
        except msgspec.DecodeError as error:
            trailing = _TRAILING.search(str(error))
            if trailing is None:
                return None
        else:
            return None
        body = bytes(window[: int(trailing[1]) - 1]).rstrip()
        try:
            _validate(body)  # the position in the error is not documented
        except msgspec.DecodeError:
            return None
        return self._take(self._at + len(body))

    def _match_brackets(self) -> Document:
        """The document ends with its closing bracket, and must be JSON."""
        if self._buffer[self._at : self._at + 1] not in _CLOSING:
            return self._take_broken()
        scanned, checked, depth = self._at, self._at, 0
        while True:
            lines_end = self._buffer.rfind(b"\n", checked) + 1
            if lines_end:
                if not _may_continue(memoryview(self._buffer)[self._at : lines_end]):
                    return self._take_broken()
                checked = lines_end
            for token in _TOKEN.finditer(self._buffer, scanned):
                first = self._buffer[token.start()]
                if first == QUOTE and token.end() - token.start() == 1:  # a string that does not end in the buffer
                    if self._buffer.find(b"\n", token.end()) >= 0:
                        return self._take_broken()
                    break
                scanned = token.end()
                depth += 1 if first in b"{[" else -1 if first in b"}]" else 0
                if depth == 0:
                    return self._take_if_valid(scanned)
                if depth > NESTED_MAX:
                    return self._take_broken()
            else:
                scanned = len(self._buffer)
            if len(self._buffer) - self._at > self._largest:
                return self._take_broken()
            before = self._at
            if not self._read_more():
                start = self._start()
                end = self._base + len(self._buffer)
                self.cut_off = Document(self._buffer[start:], self._base + start, end, self._line, CUT_OFF)
                return self.cut_off
            moved = before - self._at
            scanned, checked = scanned - moved, checked - moved

    def _take_if_valid(self, end: int) -> Document:
        if end - self._at > self._largest:
            return self._take_broken()
        try:
            _validate(self._buffer[self._at : end])
        except (msgspec.DecodeError, RecursionError):
            return self._take_broken()
        return self._take(end)

    def _take(self, end: int) -> Document:
        start, line = self._start(), self._line
        self._skip(end)
        return Document(self._buffer[start:end], self._base + start, self._base + end, line)

    # ------------------------------------------------------------------------------------------- broken documents

    def _take_broken(self) -> Document:
        """Take the rest of the line and the indented lines below it. Above the limit, only the beginning is kept."""
        start = self._start()
        position, line = self._base + start, self._line
        indent, closing = self._at - start, _CLOSING.get(self._buffer[self._at : self._at + 1], b"")
        kept = [self._buffer[start : self._at]]
        room = self._largest + 1
        while True:
            room, line_ended = self._take_line(kept, room)
            if not line_ended or not self._belongs(indent, closing):
                break
        body, end = b"".join(kept), self._base + self._at
        if line_ended:  # the newline is not part of the document
            body, end = body.removesuffix(b"\n").removesuffix(b"\r"), end - 1
        return Document(body, position, end, line, _reason(body, end - position, self._largest))

    def _take_line(self, kept: list[bytes], room: int) -> tuple[int, bool]:
        """Take the rest of the line. Returns the bytes that may still be kept, and whether the line has a newline."""
        while True:
            end = self._buffer.find(b"\n", self._at) + 1
            till = end or len(self._buffer)
            if room > 0:
                kept.append(self._buffer[self._at : min(till, self._at + room)])
                room -= len(kept[-1])
            self._skip(till)
            if end or not self._read_more():
                return room, bool(end)

    def _belongs(self, indent: int, closing: bytes) -> bool:
        """Whether the next line belongs to the broken document: it is indented deeper, or is its closing bracket."""
        while True:
            blanks = _BLANKS.match(self._buffer, self._at)
            assert blanks is not None  # it may be empty
            if blanks.end() < len(self._buffer) or len(self._buffer) - self._at > self._largest:
                break
            if not self._read_more():
                break
        depth, first = blanks.end() - self._at, self._buffer[blanks.end() : blanks.end() + 1]
        if first in (b"", b"\r", b"\n"):
            return False
        return depth > indent or (depth == indent and bool(closing) and first == closing)

    # ------------------------------------------------------------------------------------------------- the buffer

    def _skip(self, to: int) -> None:
        self._line += self._buffer.count(b"\n", self._at, to)
        self._at = to

    def _read_more(self) -> bool:
        """Read into the buffer and drop what is done, except the blanks before the next document."""
        chunk = self._read(CHUNK_BYTES)
        if not chunk:
            return False
        keep = self._start()
        self._buffer = self._buffer[keep:] + chunk
        self._base += keep
        self._at -= keep
        self._newline = -1
        return True


def _may_continue(lines: memoryview) -> bool:
    """Whether these complete lines can be the beginning of a document. Numbers and words do not cross lines."""
    try:
        _validate(lines)
    except RecursionError:
        return False
    except msgspec.DecodeError as error:
        return "truncated" in str(error) or "trailing characters" in str(error)  # trailing: the next document follows
    return True


def _reason(body: bytes, size: int, largest: int) -> str:
    if size > largest:
        return f"no document ends within {largest:,} bytes; this text has {size:,}"
    try:
        parse(body)
    except MalformedEvent as error:
        return str(error)
    return ""  # JSON, but not an object: the engine rejects it
