"""One connection of the HTTP server, with the limits that uvicorn leaves open: headers, reading time, idle time.

Deadlines are numbers that a sweep compares once a second; a timer for each request would cost more than its parsing.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

NEVER = float("inf")
URL_MAX_BYTES = 8 * 1024
CHUNK_BYTES = 256 * 1024  # what the loop may hand over at once, part of it already body


class Limits(Struct, frozen=True):
    """See [server] in the settings."""

    header_max: int
    header_count_max: int
    read_timeout_s: float
    idle_timeout_s: float
    connections_max: int


class TooLarge(Exception):
    """Raised into the parser, which stops there."""


class Connection(HttpToolsProtocol):
    """Refuses what is too large, and has a deadline at every moment when it waits for the other side."""

    limits: Limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.idle_timeout_s
        self._in_headers = True
        self._arrived = self._header_bytes = 0
        self._too_large = False
        if len(self.connections) > self.limits.connections_max:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._arrived += len(data)
            if self._arrived > self.limits.header_max + CHUNK_BYTES:  # one endless header, which nobody is told of yet
                self._too_large = True
                self.send_400_response("")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0
        self.deadline = self.loop.time() + self.limits.read_timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._check(len(self.url) <= URL_MAX_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        self._check(self._header_bytes <= self.limits.header_max)
        self._check(len(self.headers) < self.limits.header_count_max)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._arrived = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.deadline = NEVER  # the time of the answer is the application's business

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.deadline == NEVER:  # else its body is still on the way
            self.deadline = self.loop.time() + self.limits.idle_timeout_s

    def close_if_late(self, now: float) -> None:
        if now > self.deadline and not self.transport.is_closing():
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
