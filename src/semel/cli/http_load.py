"""A lean HTTP client for loads: keep-alive connections that open themselves again, one request at a time on each.

It shares two processors with the service that it loads, so it does the least: one write for a request, one search for
an answer, and a clock that is looked at rarely. What goes wrong is a value, because to a sender it is an answer too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from semel.values import retry as retry_after
from semel.values.errors import ConfigError

Failure = Literal["not connected", "timeout", "closed", "not HTTP"]


class NoAnswer(NamedTuple):
    """Nobody knows what became of the request, except when there was no connection."""

    failure: Failure
    detail: str = ""


class Target(NamedTuple):
    """Where requests go. The addresses were looked up once, so that a name cannot point elsewhere in the middle."""

    host: str  # as in the URL, for the Host header
    addresses: tuple[str, ...]  # tried in this order
    port: int
    path: str
    tls: ssl.SSLContext | None
    loopback: bool

    def head(self, method: str, path: str | None = None, *fields: str) -> bytes:
        """The head of a request up to the fields that differ from request to request."""
        lines = [f"{method} {path or self.path} HTTP/1.1", f"Host: {self.host}", "User-Agent: semel-storm", *fields]
        return "".join(f"{line}\r\n" for line in lines).encode("ascii")


def target(url: str) -> Target:
    """What a URL points to. Raises ConfigError, with what to change, for what cannot be sent to."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(f"{url!r}: expected a URL such as http://127.0.0.1:8080/events")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
        raise ConfigError(f"{url!r}: a URL has no spaces and no letters beyond ASCII; spell them with %")
    port = port if port is not None else 443 if parts.scheme == "https" else 80
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{url!r}: {parts.hostname} cannot be looked up ({error})") from None
    addresses = tuple(dict.fromkeys(str(place[4][0]) for place in found))
    loopback = all(_is_loopback(address) for address in addresses)
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(parts.netloc, addresses, port, path, tls, loopback)


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of a link-local one
    mapped = getattr(ip, "ipv4_mapped", None)
    return (mapped or ip).is_loopback


class Line:
    """One connection to a target, opened when it is needed and again when it is gone."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._talk: _Talk | None = None
        self.opened = 0  # how often

    async def ask(self, request: bytes) -> Answer | NoAnswer:
        """Send a request and wait for its answer, or for the reason why there is none."""
        talk = self._talk
        if talk is None or talk.over:
            opened = await self._open()
            if isinstance(opened, NoAnswer):
                return opened
            talk = opened
        return await talk.ask(request)

    def close(self) -> None:
        if self._talk is not None:
            self._talk.hang_up()

    async def _open(self) -> _Talk | NoAnswer:
        """A new connection. `localhost` may be two addresses, of which the service listens on one."""
        problem = ""
        for address in self._target.addresses:
            try:
                async with asyncio.timeout(self._timeout_s):
                    self._talk = await self._connect(address)
                self.opened += 1
                return self._talk
            except TimeoutError:
                problem = f"no connection within {self._timeout_s:g} s"
            except OSError as error:  # of TLS too
                problem = str(error)
        return NoAnswer("not connected", problem)

    async def _connect(self, address: str) -> _Talk:
        where = self._target
        _, talk = await self._loop.create_connection(
            lambda: _Talk(self._loop, self._timeout_s),
            address,
            where.port,
            ssl=where.tls,
            server_hostname=urlsplit(f"//{where.host}").hostname if where.tls else None,
        )
        return talk


class _Talk(asyncio.Protocol):
    """The life of one connection. At most one request is under way on it."""

    __slots__ = ("_deadline", "_loop", "_reader", "_timeout_s", "_timer", "_transport", "_waiting", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._reader = AnswerReader()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer | NoAnswer] | None = None
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False

    def ask(self, request: bytes) -> asyncio.Future[Answer | NoAnswer]:
        assert self._transport is not None
        assert self._waiting is None
        self._waiting = waiting = self._loop.create_future()
        self._deadline = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_clock)
        self._transport.write(request)
        return waiting

    def hang_up(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    # ---------------------------------------------------------------------------------- what asyncio tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is not a subclass

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:  # an answer to nothing
            self.hang_up()
            return
        try:
            answer = self._reader.feed(data)
        except BadAnswer as error:
            self._end(NoAnswer("not HTTP", str(error)))
            return
        if answer is not None:
            if not answer.keep:
                self.hang_up()
            self._give(answer)

    def connection_lost(self, error: Exception | None) -> None:
        whole = self._reader.end() if error is None and self._waiting is not None else None
        self._end(whole or NoAnswer("closed", str(error or "")))

    def _look_at_the_clock(self) -> None:
        """One timer for a connection, not one for a request: it looks when the oldest deadline that it knew is past."""
        self._timer = None
        if self.over:
            return
        if self._waiting is not None and self._loop.time() >= self._deadline:
            self._end(NoAnswer("timeout", f"no answer within {self._timeout_s:g} s"))
        elif self._waiting is not None:
            self._timer = self._loop.call_at(self._deadline, self._look_at_the_clock)

    def _end(self, answer: Answer | NoAnswer) -> None:
        self.hang_up()
        self._give(answer)

    def _give(self, answer: Answer | NoAnswer) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)


# Reads HTTP answers off a connection. Only what a load generator needs, and nothing that a hostile server can abuse.
#
# The common answer, all of it in one piece with its Content-Length, costs one search. Whatever comes in parts is put
# together, up to a limit, and looked at only where it is new.

HEAD_MAX_BYTES = 64 * 1024
BODY_MAX_BYTES = 4 * 1024 * 1024  # the sink hands over its counts in pages of less than one MB
CHUNK_LINE_MAX_BYTES = 256  # the size of a chunk in hex, and extensions that nobody uses

_FIELD = re.compile(rb"(?i)\n(content-length|transfer-encoding|connection|retry-after)[ \t]*:[ \t]*([^\r\n]*)")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?:[ \r]|$)")
_NO_BODY = (204, 304)


class Answer(NamedTuple):
    """What the server said."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    keep: bool = True  # the connection can be used again


class BadAnswer(Exception):
    """What came is no HTTP answer, or too large a one."""


class Head(NamedTuple):
    status: int
    keep: bool
    retry_after_s: float | None
    length: int | None  # None: chunked, or until the connection ends
    chunked: bool


class AnswerReader:
    """One answer at a time. Feed it what arrives; it gives the answer when that is whole."""

    __slots__ = ("_at", "_body", "_buffer", "_head")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: Head | None = None
        self._body = bytearray()  # of a chunked answer
        self._at = 0  # up to here the buffer was looked at

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
        """The connection ended. That is the end of an answer that has no other."""
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
        # Bytes behind the answer belong to nothing that was asked: such a connection is not used again.
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


# Runs a coroutine on the quickest loop there is.

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:  # it is no part of the plain installation, and there is none for Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
