"""Sends one HTTP request: no redirects, no cookies, no retries.

It also uses no proxy and no credentials from the environment, and does not decompress. It verifies TLS and limits the
size of headers (the parser's limit, 8 KB a line) and of the body. `resolver` checks the addresses.

It uses aiohttp's connector and parser, and not its sessions: they do much that is switched off here, cost twice as much
as everything else, and repeat a PUT when its connection breaks.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeAlias

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader
from msgspec import Struct
from yarl import URL

from semel.http_client.resolver import AddressRefused, CheckedResolver, ServerAddress
from semel.values import retry
from semel.values.outbox import check_first_byte


class Answered(Struct, frozen=True):
    """The server responded with a status."""

    status: int
    body: bytes | None = None  # None: too large, compressed, or incomplete
    after_s: float | None = None  # Retry-After
    location: str = ""
    headers: Mapping[str, str] = {}  # looked up by lower-case names


class Unsent(Struct, frozen=True):
    """The request was not sent: no byte left this machine."""

    why: str


class Unanswered(Struct, frozen=True):
    """Bytes were sent and no status came back: the server may have processed the request."""

    why: str


Answer: TypeAlias = Answered | Unsent | Unanswered


class OutOfStep(aiohttp.ClientConnectionError):
    """These connections hold bytes that belong to no request. Nothing was sent on them."""


def why_not(error: BaseException) -> str:
    """Describe an error of the client or a socket. The text contains only the host: a path can hold a token."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return why_not(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return why_not(error.os_error)
        case OutOfStep():
            return "it sends data before a request"
        case AddressRefused():
            return str(error)
        case ssl.SSLCertVerificationError():
            return f"its TLS certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"the TLS handshake failed: {error.reason or type(error).__name__}"
        case socket.gaierror():
            return f"its name does not resolve: {error.strerror}"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError() | BrokenPipeError():
            return "it closed the connection without an answer"
        case aiohttp.ClientPayloadError() | HttpProcessingError():
            return "its answer is not valid HTTP"
        case OSError():
            return f"no connection: {error.strerror or error}"
        case _:
            return type(error).__name__


_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def written(method: str, url: URL, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Encode a request, with the framing headers set here. Of equal header names in any case, the last one wins.

    Raises ValueError for control characters: a server could parse them as additional header lines.
    """
    fields = {"host": f"Host: {url.host_port_subcomponent}"}
    for name, value in headers.items():
        fields[name.lower()] = f"{name}: {value}"
    fields.pop("transfer-encoding", None)
    if body or method != "GET":
        fields["content-length"] = f"Content-Length: {len(body or b'')}"
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1", *fields.values()]
    if any(_CONTROL.search(line) for line in lines):
        raise ValueError("a control character in a header")
    return "\r\n".join([*lines, "\r\n"]).encode() + (body or b"")


CONNECT_S = 5.0  # a server that has not accepted by then is down or drops packets
KEEPALIVE_S = 1.5  # below the 2 s of common servers: the result of a request into a closing connection is unknown
DNS_S = 5  # a changed DNS record takes effect within this time; cached addresses are checked ones
CONNECTIONS_MAX = 3  # tries for one request, if kept connections turn out to be unusable
BODY_MAX_BYTES = 64 * 1024  # of a response; the connection of a larger one is closed


class Client:
    """Sends requests to one address. The first request opens it on its event loop."""

    def __init__(
        self, address: ServerAddress, allow: Sequence[str], timeout_s: float, body_max_bytes: int = BODY_MAX_BYTES
    ) -> None:
        self._address = address
        self._allow = allow
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        self._connect_s = min(CONNECT_S, timeout_s)
        self._opened: _Connections | None = None

    async def ask(self, url: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Answer:
        """Send one request once. The URL must belong to the client's address."""
        try:
            target = URL(url)
            request = written(method, target, headers, body)
        except ValueError:  # its text can contain the URL or a secret
            return Unsent("its URL or one of its headers contains a character that cannot be sent")
        exchange = _Exchange()
        why = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(await self._connections(target).connection(), request, exchange)
        except TimeoutError:
            why = (
                f"no answer within {self._timeout_s:g} s"
                if exchange.sent
                else f"no connection within {self._connect_s:g} s"
            )
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            why = why_not(error)
        return exchange.result(why)

    async def _exchange(self, connection: Connection, request: bytes, exchange: _Exchange) -> None:
        """Send the request and read the response. No other task has run since the connection was checked."""
        complete = False
        try:
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            assert transport is not None
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            check_first_byte()
            exchange.sent = True  # from here on bytes may have been sent
            transport.write(request)
            exchange.response, content = await _head(protocol)
            exchange.body = await _body(content, self._body_max_bytes)
            complete = exchange.body is not None and not transport.get_write_buffer_size()
        finally:
            connection.release() if complete else connection.close()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _connections(self, target: URL) -> _Connections:
        if self._opened is None:
            self._opened = _Connections(self._address, target, self._allow, self._connect_s)
        return self._opened


class _Connections:
    """Connections to one address: kept ones and new ones."""

    def __init__(self, address: ServerAddress, target: URL, allow: Sequence[str], connect_s: float) -> None:
        resolver = CheckedResolver(address.host, allow)
        self._connector = aiohttp.TCPConnector(
            resolver=resolver,
            socket_factory=resolver.make_socket,
            ssl=tls_for(address) or True,
            limit=0,  # the destination limits its requests
            keepalive_timeout=KEEPALIVE_S,
            ttl_dns_cache=DNS_S,
        )
        self._request_target = aiohttp.ClientRequest(
            "POST", target, loop=asyncio.get_running_loop()
        )  # never sent: an address
        self._timeout = aiohttp.ClientTimeout(connect=connect_s, sock_connect=connect_s)

    async def connection(self) -> Connection:
        """Return a connection without unread bytes. Raises OutOfStep.

        Unrequested bytes would be read as the response to the next request, and an event would count as done although
        the server did not process it.
        """
        for _ in range(CONNECTIONS_MAX):
            connection = await self._connector.connect(self._request_target, [], self._timeout)
            protocol = connection.protocol
            if protocol is not None and protocol.is_connected() and not protocol.should_close:
                return connection
            connection.close()
        raise OutOfStep

    async def close(self) -> None:
        await self._connector.close()


class _Exchange:
    """Progress of one request and its response."""

    def __init__(self) -> None:
        self.sent = False
        self.response: RawResponseMessage | None = None
        self.body: bytes | None = None

    def result(self, why: str) -> Answer:
        """Return the result. A status is enough: after it, a broken body is no failure, because the effect was
        acknowledged."""
        if self.response is None:
            return Unanswered(why) if self.sent else Unsent(why)
        headers = self.response.headers
        plain = headers.get("Content-Encoding", "identity").lower() == "identity"
        after = headers.get("Retry-After")
        return Answered(
            self.response.code,
            self.body if plain else None,
            None if after is None else retry.seconds(after, datetime.now(UTC)),
            headers.get("Location", ""),
            headers,
        )


async def _head(protocol: ResponseHandler) -> tuple[RawResponseMessage, StreamReader]:
    """Read the first status that is not informational (1xx)."""
    while True:
        message, content = await protocol.read()
        if not 100 <= message.code < 200 or message.code == 101:
            return message, content


async def _body(content: StreamReader, limit: int) -> bytes | None:
    """Read the body. None if it is too large; its connection is closed then."""
    parts: list[bytes] = []
    async for part in content.iter_any():
        limit -= len(part)
        if limit < 0:
            return None
        parts.append(part)
    return b"".join(parts)


def tls_for(address: ServerAddress) -> ssl.SSLContext | None:
    """TLS context that trusts the certificates of the system or of SSL_CERT_FILE. None for http."""
    if not address.secure:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


REACH_S = 5.0  # an operator waits for it


async def reach(address: ServerAddress, allow: Sequence[str], timeout_s: float = REACH_S) -> str | None:
    """Check for `semel doctor` that an address is reachable. Returns None, or the reason why not.

    Opens a connection and sends nothing. The name must resolve to addresses that can be called, one of them must accept
    a connection, and its TLS certificate must be valid.
    """
    within_s = min(REACH_S, timeout_s)
    try:
        async with asyncio.timeout(within_s):
            await _connect(address, CheckedResolver(address.host, allow))
    except TimeoutError:
        return f"no connection within {within_s:g} s"
    except OSError as error:
        return why_not(error)
    return None


async def _connect(address: ServerAddress, resolver: CheckedResolver) -> None:
    """Connect to the first address that accepts. Raises the OSError of the last one if none does."""
    failure: OSError | None = None
    tls = tls_for(address)
    for found in await resolver.resolve(address.host, address.port):
        try:
            _, writer = await asyncio.open_connection(
                found["host"], found["port"], ssl=tls, server_hostname=address.host.rstrip(".") if tls else None
            )
        except OSError as error:
            failure = error
            continue
        writer.transport.abort()
        return
    if failure is not None:
        raise failure
