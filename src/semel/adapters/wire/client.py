"""The wire: one request, and what is known afterwards. It follows nothing, keeps nothing and believes nothing.

No redirects, no retries, no proxy and no credentials from the environment, no cookies, no decompression, TLS verified,
limits on the size of headers (the parser's own, 8 KB a line) and of the body. Addresses are checked by `resolving`.

Of aiohttp it uses what connects, keeps connections and reads HTTP. Its sessions are left out: they do much that is
switched off here, cost twice as much as all the rest, and send a PUT again when its connection breaks.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from aiohttp.streams import StreamReader
from yarl import URL

from semel.adapters.wire.answers import Answer, Answered, Unanswered, Unsent
from semel.adapters.wire.failures import OutOfStep, why_not
from semel.adapters.wire.place import Place
from semel.adapters.wire.resolving import CheckedResolver
from semel.adapters.wire.writing import written
from semel.values import retry_after
from semel.values.first_byte import check_first_byte

CONNECT_S = 5.0  # whoever has not accepted by then is down or drops packets
KEEPALIVE_S = 1.5  # under the 2 s of the most impatient common server: a request into a closing connection is in doubt
DNS_S = 5  # a name that moved is followed within this time; what is kept has been checked
CONNECTIONS_MAX = 3  # tried for one request, while those at hand turn out to be unusable
BODY_MAX_BYTES = 64 * 1024  # of an answer; behind that the connection is dropped


class Client:
    """Asks one place. Lives on one event loop; opens at the first request."""

    def __init__(
        self, place: Place, allow: Sequence[str], timeout_s: float, body_max_bytes: int = BODY_MAX_BYTES
    ) -> None:
        self._place = place
        self._allow = allow
        self._timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        self._connect_s = min(CONNECT_S, timeout_s)
        self._opened: _Way | None = None

    async def ask(self, url: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Answer:
        """One request, tried once. The URL is one of this place."""
        try:
            where = URL(url)
            request = written(method, where, headers, body)
        except ValueError:  # which may show the URL, or a secret
            return Unsent("its URL or one of its headers cannot be sent as it is written")
        said = _Said()
        why = ""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._exchange(await self._way(where).connection(), request, said)
        except TimeoutError:
            why = (
                f"no answer within {self._timeout_s:g} s"
                if said.ours
                else f"no connection within {self._connect_s:g} s"
            )
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            why = why_not(error)
        return said.known(why)

    async def _exchange(self, connection: Connection, request: bytes, said: _Said) -> None:
        """The connection is in step, and nobody else has run since that was seen."""
        whole = False
        try:
            protocol, transport = connection.protocol, connection.transport
            assert protocol is not None
            assert transport is not None
            protocol.set_response_params(read_until_eof=True, auto_decompress=False)
            check_first_byte()
            said.ours = True  # from here on bytes may have left
            transport.write(request)
            said.theirs, content = await _head(protocol)
            said.body = await _body(content, self._body_max_bytes)
            whole = said.body is not None and not transport.get_write_buffer_size()
        finally:
            connection.release() if whole else connection.close()

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _way(self, where: URL) -> _Way:
        if self._opened is None:
            self._opened = _Way(self._place, where, self._allow, self._connect_s)
        return self._opened


class _Way:
    """Connections to one place: those that are kept, and new ones."""

    def __init__(self, place: Place, where: URL, allow: Sequence[str], connect_s: float) -> None:
        resolver = CheckedResolver(place.host, allow)
        self._connector = aiohttp.TCPConnector(
            resolver=resolver,
            socket_factory=resolver.make_socket,
            ssl=tls_for(place) or True,
            limit=0,  # its destination counts
            keepalive_timeout=KEEPALIVE_S,
            ttl_dns_cache=DNS_S,
        )
        self._where = aiohttp.ClientRequest("POST", where, loop=asyncio.get_running_loop())  # never sent: an address
        self._timeout = aiohttp.ClientTimeout(connect=connect_s, sock_connect=connect_s)

    async def connection(self) -> Connection:
        """One that is in step: what a server said unasked would else be taken for the answer to the next request, and
        an event be done that nobody acted on. Raises OutOfStep."""
        for _ in range(CONNECTIONS_MAX):
            connection = await self._connector.connect(self._where, [], self._timeout)
            protocol = connection.protocol
            if protocol is not None and protocol.is_connected() and not protocol.should_close:
                return connection
            connection.close()
        raise OutOfStep

    async def close(self) -> None:
        await self._connector.close()


class _Said:
    """What has been said until now."""

    def __init__(self) -> None:
        self.ours = False
        self.theirs: RawResponseMessage | None = None
        self.body: bytes | None = None

    def known(self, why: str) -> Answer:
        """The status is the answer. The body behind it is not worth a failure: an effect that was acknowledged
        happened."""
        if self.theirs is None:
            return Unanswered(why) if self.ours else Unsent(why)
        headers = self.theirs.headers
        plain = headers.get("Content-Encoding", "identity").lower() == "identity"
        after = headers.get("Retry-After")
        return Answered(
            self.theirs.code,
            self.body if plain else None,
            None if after is None else retry_after.seconds(after, datetime.now(UTC)),
            headers.get("Location", ""),
            headers,
        )


async def _head(protocol: ResponseHandler) -> tuple[RawResponseMessage, StreamReader]:
    """The first status that is more than "I am at it"."""
    while True:
        message, content = await protocol.read()
        if not 100 <= message.code < 200 or message.code == 101:
            return message, content


async def _body(content: StreamReader, room: int) -> bytes | None:
    """None when it is longer than we read; its connection is then dropped."""
    parts: list[bytes] = []
    async for part in content.iter_any():
        room -= len(part)
        if room < 0:
            return None
        parts.append(part)
    return b"".join(parts)


def tls_for(place: Place) -> ssl.SSLContext | None:
    """Certificates are verified against those that the system trusts, or that SSL_CERT_FILE names."""
    if not place.secure:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
