"""The wire: one request, and what is known afterwards. It follows nothing, keeps nothing and believes nothing.

No redirects, no proxy and no credentials from the environment, no cookies, no decompression, TLS verified, limits on
the size of headers (the client's own, 8 KB a line) and of the body. Addresses are checked by `resolving`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace

import aiohttp
from aiohttp.connector import Connection

from semel.adapters.wire.answers import Answer, Answered, Unanswered, Unsent
from semel.adapters.wire.failures import why_not
from semel.adapters.wire.place import Place
from semel.adapters.wire.resolving import CheckedResolver
from semel.values import retry_after

CONNECT_S = 5.0  # whoever has not accepted by then is down or drops packets
KEEPALIVE_S = 1.5  # under the 2 s of the most impatient common server: a request into a closing connection is in doubt
DNS_S = 5  # a name that moved is followed within this time; what is kept has been checked
CONNECTIONS_MAX = 3  # tried for one request, while those at hand turn out to be unusable
BODY_MAX_BYTES = 64 * 1024  # of an answer; behind that the connection is dropped


class OutOfStep(aiohttp.ClientConnectionError):
    """There are bytes on this connection that answer no request of ours. Nothing was sent on it."""


class InStep(aiohttp.ClientRequest):
    """A request that looks before it speaks: what a server said unasked would else be taken for the answer to it, and
    an event be done that nobody acted on."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if conn.protocol is None or conn.protocol.should_close:
            raise OutOfStep
        return await super().send(conn)


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
        self._opened: aiohttp.ClientSession | None = None

    async def ask(self, url: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Answer:
        """One request, on a connection that is in step. The URL is one of this place, and is sent as it is written."""
        for _ in range(CONNECTIONS_MAX):
            try:
                return await self._try(url, body, headers, method)
            except OutOfStep:
                continue
        return Unsent("it speaks before it is asked")

    async def _try(self, url: str, body: bytes | None, headers: Mapping[str, str], method: str) -> Answer:
        contact = SimpleNamespace(made=False)
        try:
            async with self._session().request(
                method, url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=contact
            ) as response:
                return await _read(response, self._body_max_bytes)
        except OutOfStep:
            raise
        except TimeoutError:
            if contact.made:
                return Unanswered(f"no answer within {self._timeout_s:g} s")
            return Unsent(f"no connection within {self._connect_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Unanswered(why_not(error)) if contact.made else Unsent(why_not(error))

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is not None:
            return self._opened
        resolver = CheckedResolver(self._place.host, self._allow)
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=resolver,
                socket_factory=resolver.make_socket,
                ssl=tls_for(self._place) or True,
                limit=0,  # its destination counts
                keepalive_timeout=KEEPALIVE_S,
                ttl_dns_cache=DNS_S,
            ),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s, connect=self._connect_s, sock_connect=self._connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            trace_configs=[_contact_trace()],
            request_class=InStep,
        )
        return self._opened


def tls_for(place: Place) -> ssl.SSLContext | None:
    """Certificates are verified against those that the system trusts, or that SSL_CERT_FILE names."""
    if not place.secure:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def _read(response: aiohttp.ClientResponse, body_max_bytes: int) -> Answered:
    """The status is the answer. The body behind it is not worth a failure: an effect that was acknowledged happened."""
    headers = response.headers
    try:
        body = await _body(response, body_max_bytes)
    except (aiohttp.ClientError, OSError):  # it broke off, or took too long
        body = None
        response.close()
    return Answered(
        response.status,
        body if headers.get("Content-Encoding", "identity").lower() == "identity" else None,
        retry_after.seconds(headers.get("Retry-After", ""), datetime.now(UTC)),
        headers.get("Location", ""),
    )


async def _body(response: aiohttp.ClientResponse, room: int) -> bytes | None:
    """None when it is longer than we read; its connection is then dropped."""
    parts: list[bytes] = []
    async for part in response.content.iter_any():
        room -= len(part)
        if room < 0:
            response.close()
            return None
        parts.append(part)
    return b"".join(parts)


def _contact_trace() -> aiohttp.TraceConfig:
    """Marks a request as soon as it has a connection: from there on its bytes may have left."""

    async def made(session: object, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx.made = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(made)
    trace.on_connection_reuseconn.append(made)
    return trace
