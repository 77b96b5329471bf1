"""One connection of the HTTP server, with the limits that uvicorn leaves open: headers, pipelining, time.

Deadlines are numbers that a sweep compares once a second; a timer for each request would cost more than its parsing.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

NEVER = float("inf")
URL_MAX_BYTES = 8 * 1024
SLICE_BYTES = 16 * 1024  # what the parser is given at once: it keeps what it has no word for yet
PIPELINE_MAX = 8  # requests behind the one that is being answered; hardly anybody sends even one


class Limits(Struct, frozen=True):
    """See [server] in the settings."""

    header_max: int
    header_count_max: int
    read_timeout_s: float
    idle_timeout_s: float
    connections_max: int


class TooLarge(Exception):
    """Raised into the parser, which stops there."""


class WrongHost(Exception):
    """Raised into the parser, which stops there: the request is answered 400."""


class Connection(HttpToolsProtocol):
    """Refuses what is too large, and has a deadline at every moment when it waits for the other side."""

    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.idle_timeout_s
        self._write_deadline = NEVER
        self._in_headers = True
        self._unsaid = self._header_bytes = self._hosts = 0
        self._too_large = False
        if len(self.connections) > self.limits.connections_max:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        for at in range(0, len(data), SLICE_BYTES):
            if not self._parsed(data[at : at + SLICE_BYTES]):
                return

    def _parsed(self, data: bytes) -> bool:
        """False: it was refused, and the connection is closed."""
        self._unsaid += len(data)
        while data:
            try:
                self.parser.feed_data(data)
                break
            except httptools.HttpParserUpgrade as offer:
                data = self._without_the_offer(data[offer.args[0] :])
            except httptools.HttpParserError:
                self.logger.warning("Invalid HTTP request received.")
                self.send_400_response("Invalid HTTP request received.")
                return False
        if self._unsaid > self.limits.header_max:  # one endless header, trailer or chunk extension
            self._too_large = True
            self.send_400_response("")
        return not self.transport.is_closing()

    def _without_the_offer(self, rest: bytes) -> bytes:
        """The same request again without `Upgrade`, because the parser left its body unread. Java's client offers h2c
        with every request, and an offer may be ignored. Not so CONNECT, which is nothing but an upgrade."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("Invalid HTTP request received.")
            return b""
        head = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s" % (name, value) for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return b"\r\n".join(head) + b"\r\n\r\n" + rest

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = self._hosts = 0
        self.deadline = self.loop.time() + self.limits.read_timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._unsaid = 0
        self._check(len(self.url) <= URL_MAX_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unsaid = 0
        self._header_bytes += len(name) + len(value)
        self._check(self._header_bytes <= self.limits.header_max)
        if not self._in_headers:
            return  # a trailer: what comes behind the body decides nothing
        self._check(len(self.headers) < self.limits.header_count_max)
        if len(name) == 4 and name.lower() == b"host":
            self._hosts += 1
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unsaid = 0
        if self.parser.should_upgrade():
            return
        self._in_headers = False
        # RFC 9112, 3.2: of two hosts a proxy in front may have chosen the other one. HTTP/1.0 knows none.
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() != "1.0"):
            raise WrongHost
        if len(self.pipeline) >= PIPELINE_MAX:
            self.transport.abort()
            raise TooLarge
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unsaid = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unsaid = 0
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self.deadline = NEVER  # the time of the answer is the application's business

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.deadline == NEVER and self.cycle.response_complete:  # else another one is being read or answered
            self.deadline = self.loop.time() + self.limits.idle_timeout_s

    def pause_writing(self) -> None:
        """It does not read its answers, and may be doing so for good."""
        super().pause_writing()
        self._write_deadline = self.loop.time() + self.limits.idle_timeout_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_deadline = NEVER

    def close_if_late(self, now: float) -> None:
        """Also where it is closing: that waits until everything is read."""
        if now > min(self.deadline, self._write_deadline):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Also called by the parser's own refusals: bad syntax, both Content-Length and Transfer-Encoding."""
        if self.transport.is_closing():
            return
        if not self._too_large:
            super().send_400_response(msg)
            return
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        )
        self.transport.close()

    def _check(self, fits: bool) -> None:
        if not fits:
            self._too_large = True
            raise TooLarge


def connection_class(limits: Limits) -> type[Connection]:
    """uvicorn makes connections from a class: the limits are part of it."""
    return type("LimitedConnection", (Connection,), {"limits": limits})


def sweep(connections: set[Any], now: float) -> None:
    """Close the connections that have kept us waiting for too long."""
    for connection in list(connections):
        connection.close_if_late(now)
