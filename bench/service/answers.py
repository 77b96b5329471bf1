"""Reads HTTP responses off a connection: the least that a load generator needs, with limits on what it accepts.

The usual response arrives in one piece with its Content-Length and costs one search. One that arrives in parts is put
together, up to a limit.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from semel.values import retry as retry_after

HEAD_MAX_BYTES = 64 * 1024
BODY_MAX_BYTES = 4 * 1024 * 1024  # of one response
CHUNK_LINE_MAX_BYTES = 256  # the size of a chunk in hex, and extensions

_FIELD = re.compile(rb"(?i)\n(content-length|transfer-encoding|connection|retry-after)[ \t]*:[ \t]*([^\r\n]*)")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?:[ \r]|$)")
_NO_BODY = (204, 304)


class Answer(NamedTuple):
    """One response."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    keep: bool = True  # the connection can be used again


class BadAnswer(Exception):
    """The received bytes are not an HTTP response, or one above the limits."""


class Head(NamedTuple):
    status: int
    keep: bool
    retry_after_s: float | None
    length: int | None  # None: chunked, or until the connection ends
    chunked: bool


class AnswerReader:
    """Parses one response at a time from the received bytes. Returns it when it is complete."""

    __slots__ = ("_at", "_body", "_buffer", "_head")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Head | None = None
        self._body = bytearray()  # of a chunked answer
        self._at = 0  # the buffer is parsed up to here

    def feed(self, data: bytes) -> Answer | None:
        if self._head is None and not self._buffer:
            answer = _whole(data)
            if answer is not None:
                return answer
        self._buffer += data
        while self._head is None:
            if not self._read_head():
                return None
        return self._chunked(self._head) if self._head.chunked else self._measured(self._head)

    def end(self) -> Answer | None:
        """End of the connection, which completes a response without a length."""
        head = self._head
        if head is None or head.chunked or head.length is not None:
            return None
        return self._give(head, bytes(self._buffer), keep=False)

    def _read_head(self) -> bool:
        """True when the head of an answer was taken off the buffer; interim answers (1xx) are skipped."""
        end = self._buffer.find(b"\r\n\r\n", max(0, self._at - 3))
        if end > HEAD_MAX_BYTES or (end < 0 and len(self._buffer) > HEAD_MAX_BYTES):
            raise BadAnswer(f"a head of more than {HEAD_MAX_BYTES:,} bytes")
        if end < 0:
            self._at = len(self._buffer)
            return False
        head = _head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        self._at = 0
        if head.status >= 200:
            self._head = head
        return bool(self._buffer) or self._head is not None

    def _measured(self, head: Head) -> Answer | None:
        if len(self._buffer) > BODY_MAX_BYTES:
            raise BadAnswer(f"a body of more than {BODY_MAX_BYTES:,} bytes")
        if head.length is None or len(self._buffer) < head.length:
            return None
        # Bytes after the response belong to no request, so the connection is not used again.
        return self._give(head, bytes(self._buffer[: head.length]), keep=len(self._buffer) == head.length)

    def _chunked(self, head: Head) -> Answer | None:
        """Takes whole chunks off the buffer, up to the last, empty one and the trailer behind it."""
        while True:
            line_end = self._buffer.find(b"\r\n", self._at, self._at + CHUNK_LINE_MAX_BYTES)
            if line_end < 0:
                if len(self._buffer) - self._at >= CHUNK_LINE_MAX_BYTES:
                    raise BadAnswer("a chunk without its size")
                break
            size = _chunk_size(bytes(self._buffer[self._at : line_end]))
            begin = line_end + 2
            if size == 0:
                return self._trailer(head, line_end)
            if len(self._body) + size > BODY_MAX_BYTES:
                raise BadAnswer(f"a body of more than {BODY_MAX_BYTES:,} bytes")
            if len(self._buffer) < begin + size + 2:
                break
            if self._buffer[begin + size : begin + size + 2] != b"\r\n":
                raise BadAnswer("a chunk that is not as long as it says")
            self._body += self._buffer[begin : begin + size]
            self._at = begin + size + 2
        if self._at > HEAD_MAX_BYTES:  # what was read need not be kept
            del self._buffer[: self._at]
            self._at = 0
        return None

    def _trailer(self, head: Head, line_end: int) -> Answer | None:
        end = self._buffer.find(b"\r\n\r\n", line_end)  # the line of the last chunk ends with the first of them
        if end < 0:
            if len(self._buffer) - line_end > HEAD_MAX_BYTES:
                raise BadAnswer(f"a trailer of more than {HEAD_MAX_BYTES:,} bytes")
            return None
        return self._give(head, bytes(self._body), keep=len(self._buffer) == end + 4)

    def _give(self, head: Head, body: bytes, keep: bool) -> Answer:
        self._buffer, self._body, self._head, self._at = bytearray(), bytearray(), None, 0
        return Answer(head.status, body, head.retry_after_s, keep and head.keep)


def _whole(data: bytes) -> Answer | None:
    """The answer, if `data` is exactly one with a Content-Length."""
    end = data.find(b"\r\n\r\n")
    if end < 0 or end > HEAD_MAX_BYTES:
        return None
    head = _head(data[:end])
    if head.length is None or head.length != len(data) - end - 4 or head.status < 200:
        return None
    return Answer(head.status, data[end + 4 :], head.retry_after_s, head.keep)


def _head(head: bytes) -> Head:
    begin = _STATUS.match(head)
    if begin is None:
        raise BadAnswer(f"not HTTP/1.1: {head[:40]!r}")
    status = int(begin[2])
    keep = begin[1] == b"1"
    retry_after_s: float | None = None
    length: int | None = None
    chunked = False
    for name, value in _FIELD.findall(head):
        match name.lower():
            case b"content-length":
                own = _content_length(value)
                if length not in (None, own):
                    raise BadAnswer("two different Content-Length")
                length = own
            case b"transfer-encoding":
                chunked = value.strip().lower() == b"chunked"
                if not chunked:
                    raise BadAnswer(f"Transfer-Encoding {value[:40]!r}")
            case b"connection":
                keep = value.strip().lower() == b"keep-alive" or (keep and value.strip().lower() != b"close")
            case _:
                retry_after_s = retry_after.seconds(value.decode("latin-1"), datetime.now(UTC))
    if status in _NO_BODY or status < 200:
        return Head(status, keep, retry_after_s, 0, False)
    if length is not None and length > BODY_MAX_BYTES:
        raise BadAnswer(f"a body of {length:,} bytes; the limit is {BODY_MAX_BYTES:,}")
    return Head(status, keep, retry_after_s, None if chunked else length, chunked)


def _content_length(value: bytes) -> int:
    digits = value.strip()
    if not digits.isdigit() or len(digits) > 12:
        raise BadAnswer(f"Content-Length {value[:40]!r}")
    return int(digits)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", digits):
        raise BadAnswer(f"a chunk of size {line[:20]!r}")
    return int(digits, 16)
