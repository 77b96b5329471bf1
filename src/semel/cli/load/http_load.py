"""A lean HTTP client for loads: keep-alive connections that open themselves again, one request at a time on each.

It shares two processors with the service that it loads, so it does the least: one write for a request, one search for
an answer, and a clock that is looked at rarely. What goes wrong is a value, because to a sender it is an answer too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from typing import Literal, NamedTuple, cast
from urllib.parse import urlsplit

from semel.cli.load.http_answer import Answer, AnswerReader, BadAnswer
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
