"""Sends a storm like a real sender: waits for each response, and sends again what was not accepted.

    arrivals -> schedule -> request -> response -> accepted, refused, or back to the schedule

A delivery that waits for its next attempt holds no connection. The number of waiting deliveries is bounded: at the
bound, as while the service is down, nothing new is sent.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import os
import re
import socket
import ssl
import time
from array import array
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from msgspec import Struct

from semel.cli.sink import mark
from semel.testing.shapes import Shape
from semel.testing.traffic import BURST_EVENTS, Traffic, TrafficArrival
from semel.values.errors import ConfigError
from semel.values.retry import backoff_s, seconds

WAITING_MAX = 2_000  # deliveries between two attempts: 3 MB of bodies
BACKOFF_BASE_S = 0.1  # a restart takes a second or two: the first retries should find it soon
BACKOFF_CAP_S = 5.0
RETRY_AFTER_CAP_S = 10.0  # a service may request any delay, and the storm still ends
IDLE_S = 0.02  # the pause of a sender that has nothing to send yet
RETRIED = frozenset({408, 409, 425, 429})  # and all from 500; 409: another worker is processing it
REFUSAL_SHOWN_CHARS = 200
STATUSES_MAX = 20  # distinct texts that are counted: Semel has fewer, and another service may send anything
CONNECTIONS_MAX = 3  # attempts to find a usable connection for one request
BODY_MAX_BYTES = 4 * 1024 * 1024  # a page of the sink's counts is smaller than one MB

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run on uvloop, if it is installed."""
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:  # there is none for Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


# ------------------------------------------------------------------------------------------------------ the client


class Target(NamedTuple):
    """The destination of requests. Its addresses are resolved once, so its name cannot point elsewhere later."""

    url: str
    addresses: tuple[str, ...]
    is_loopback: bool


def find_target(url: str) -> Target:
    """Parse a URL and resolve its host. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ConfigError(f"{url!r}: expected a URL such as http://127.0.0.1:8080/events")
    if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
        raise ConfigError(f"{url!r}: a URL has no spaces and only ASCII characters; encode others with %")
    try:
        found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{url!r}: cannot resolve {parts.hostname} ({error})") from None
    addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Target(url, addresses, all(_is_loopback(address) for address in addresses))


def _is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])  # without the zone of a link-local address
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


class Response(Struct, frozen=True):
    status: int
    body: bytes
    retry_after_s: float | None = None


class NoResponse(Struct, frozen=True):
    """A request without a response. Unless it was not connected, its effect is unknown."""

    failure: Literal["not connected", "timeout", "closed", "not HTTP"]
    detail: str = ""


class HttpClient:
    """Sends requests to one target: no redirects, no cookies, no retries, no proxy. Belongs to one event loop."""

    def __init__(self, target: Target, connections: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            connector=_Connector(
                limit=connections, resolver=_FixedResolver(target.addresses), ssl=ssl.create_default_context()
            ),
            # The total ends a response that never ends. It is longer, so that a timeout of the connection is one.
            timeout=aiohttp.ClientTimeout(total=2 * timeout_s, sock_connect=timeout_s, sock_read=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "semel-storm"},
        )

    async def send(
        self, method: str, url: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Response | NoResponse:
        try:
            request = self._session.request(method, url, data=body, headers=headers, allow_redirects=False)
            async with request as response:
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > BODY_MAX_BYTES:
                        return NoResponse("not HTTP", f"a body of more than {BODY_MAX_BYTES:,} bytes")
                retry_after = response.headers.get("Retry-After")
                delay_s = seconds(retry_after, datetime.now(UTC)) if retry_after is not None else None
                return Response(response.status, bytes(content), delay_s)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            return NoResponse("not connected", str(error))
        except TimeoutError:
            return NoResponse("timeout", f"no response within {self._timeout_s:g} s")
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            return NoResponse("closed", str(error))
        except (aiohttp.ClientError, ValueError) as error:
            return NoResponse("not HTTP", str(error))

    async def close(self) -> None:
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Never reuses a connection with unread bytes: they would be taken for the response to the next request."""

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109 - the signature of aiohttp
        for _ in range(CONNECTIONS_MAX):
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        raise aiohttp.ClientConnectionError("the server sends data before a request")


class _FixedResolver(AbstractResolver):
    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


# ----------------------------------------------------------------------------------------------------- the sending


class StormRequest(Struct, frozen=True, kw_only=True):
    """The command line."""

    url: str
    events: int
    duplicates: float
    reorder: bool = True
    burst: bool = False
    shape: Shape = "eventbridge"
    seed: int = 0
    connections: int = 64
    rate: float | None = None  # deliveries a second; None: as fast as they are answered
    timeout_s: float = 10.0
    attempts: int = 20  # of one delivery
    scheme: Scheme | None = None
    secret: str = ""
    header: str = ""
    check: str | None = None  # the sink's URL
    settle_s: float = 60.0
    anywhere: bool = False  # not only to this machine

    def __repr__(self) -> str:
        return f"StormRequest({self.url!r})"  # without the secret


class StormDelivery(Struct):
    """One arrival, over all its attempts."""

    arrival: TrafficArrival
    attempts: int = 0


class _StatusBody(Struct):
    """The part of a response that is counted."""

    status: str = ""


_decode_status = msgspec.json.Decoder(_StatusBody).decode


class Tally:
    """The counts so far."""

    def __init__(self, events: int) -> None:
        self.taken = bytearray(events)  # 1 for each event of which a delivery was answered with 2xx
        self.ended = 0  # deliveries that were accepted, refused or given up
        self.copies: Counter[str] = Counter()  # "", "redelivery", "producer"
        self.requests = 0
        self.retries = 0
        self.refused = 0
        self.gave_up = 0
        self.codes: Counter[int] = Counter()
        self.statuses: Counter[str] = Counter()  # of the bodies with 2xx
        self.failures: Counter[str] = Counter()  # requests without a response
        self.problem = ""  # the first refusal, or the last failure of the first delivery that was given up
        self.waits_s = array("f")  # of each response

    def count_status(self, body: bytes) -> None:
        try:
            status = _decode_status(body).status[:40] or "(none)"
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            status = "(none)"
        known = status in self.statuses or len(self.statuses) < STATUSES_MAX
        self.statuses[status if known else "(others)"] += 1


class _Due(NamedTuple):
    at_s: float
    number: int
    delivery: StormDelivery


class Schedule:
    """The next delivery to send: first those due for a retry, then new ones."""

    def __init__(self, arrivals: Iterator[TrafficArrival], request: StormRequest, clock: Callable[[], float]) -> None:
        self._arrivals = arrivals
        self._rate = request.rate
        self._together = BURST_EVENTS if request.burst else 1  # deliveries that are due at the same moment
        self._clock = clock
        self._started_s = clock()
        self._retries: list[_Due] = []
        self._new = 0
        self._number = 0
        self._in_flight = 0
        self._exhausted = False

    async def next(self) -> StormDelivery | None:
        """Return the next delivery when it is due; None when all have ended."""
        while True:
            if self._retries and self._retries[0].at_s <= self._clock():
                self._in_flight += 1
                return heappop(self._retries).delivery
            if not self._exhausted and len(self._retries) + self._in_flight < WAITING_MAX:
                arrival = next(self._arrivals, None)
                if arrival is not None:
                    self._in_flight += 1
                    await self._keep_rate()
                    return StormDelivery(arrival)
                self._exhausted = True
            if self._exhausted and not self._retries and not self._in_flight:
                return None
            await asyncio.sleep(IDLE_S)

    def retry(self, delivery: StormDelivery, after_s: float) -> None:
        self._number += 1
        self._in_flight -= 1
        heappush(self._retries, _Due(self._clock() + after_s, self._number, delivery))

    def end(self) -> None:
        self._in_flight -= 1

    async def _keep_rate(self) -> None:
        """Each delivery has a fixed due time, so that late ones catch up."""
        number, self._new = self._new, self._new + 1
        if self._rate is not None:
            due_s = self._started_s + (number - number % self._together) / self._rate
            if (wait_s := due_s - self._clock()) > 0:
                await asyncio.sleep(wait_s)


class StormSender:
    """Sends one storm. `tally` is updated meanwhile."""

    def __init__(
        self, target: Target, request: StormRequest, sign: Sign, traffic: Traffic, random: Callable[[], float]
    ) -> None:
        self.tally = Tally(request.events)
        self._target = target
        self._request = request
        self._sign = sign
        self._traffic = traffic
        self._random = random

    async def run(self, arrivals: Iterator[TrafficArrival]) -> None:
        schedule = Schedule(arrivals, self._request, asyncio.get_running_loop().time)
        client = HttpClient(self._target, self._request.connections, self._request.timeout_s)
        try:
            async with asyncio.TaskGroup() as senders:
                for _ in range(self._request.connections):
                    senders.create_task(self._send(client, schedule))
        finally:
            await client.close()

    async def _send(self, client: HttpClient, schedule: Schedule) -> None:
        tally = self.tally
        while (delivery := await schedule.next()) is not None:
            delivery.attempts += 1
            tally.requests += 1
            tally.retries += delivery.attempts > 1
            body = delivery.arrival.body
            headers = {"Content-Type": "application/json"}
            headers |= self._sign(body, partial(self._message_id, delivery.arrival))
            started_s = perf_counter()  # uvloop's clock counts whole milliseconds
            response = await client.send("POST", self._target.url, body, headers)
            if isinstance(response, Response):
                tally.waits_s.append(perf_counter() - started_s)
            after_s = self._judge(delivery, response)
            if after_s is None:
                tally.copies[delivery.arrival.copy] += 1
                tally.ended += 1
                schedule.end()
            else:
                schedule.retry(delivery, after_s)

    def _message_id(self, arrival: TrafficArrival) -> str:
        """Standard Webhooks: every retry has the id of the first attempt."""
        return f"msg_{mark(self._traffic.identity(arrival.at)).hex()}"

    def _judge(self, delivery: StormDelivery, response: Response | NoResponse) -> float | None:
        """Return the seconds until the next attempt; None if this delivery has ended."""
        tally = self.tally
        requested_s: float | None = None
        if isinstance(response, NoResponse):
            tally.failures[response.failure] += 1
            problem = f"{response.failure} {response.detail}"
        else:
            status = response.status
            tally.codes[status] += 1
            if 200 <= status < 300:
                tally.taken[delivery.arrival.at] = 1
                tally.count_status(response.body)
                return None
            problem = f"{status} {response.body[:REFUSAL_SHOWN_CHARS].decode('utf-8', 'replace')}"
            if status < 500 and status not in RETRIED:
                tally.refused += 1
                tally.problem = tally.problem or problem
                return None
            requested_s = response.retry_after_s
        if delivery.attempts >= self._request.attempts:
            tally.gave_up += 1
            tally.problem = tally.problem or problem
            return None
        backoff = backoff_s(delivery.attempts, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S)
        return backoff if requested_s is None else min(requested_s, RETRY_AFTER_CAP_S) + backoff * 0.1


# ---------------------------------------------------------------------------------------------------- the signature

# Written from the sender's side: no code of Semel's verifiers is used.

Scheme = Literal["genesys", "standard-webhooks", "hmac-hex", "header", "basic"]

Sign: TypeAlias = Callable[[bytes, Callable[[], str]], dict[str, str]]
"""Returns the headers that sign a body. The second argument returns the message id, which few schemes need."""

HUB = "X-Hub-Signature-256"


def signer(scheme: Scheme | None, secret: str, header: str = "") -> Sign:
    """`secret` may be a reference, "env:NAME" or "file:path", as in semel.toml. Raises ConfigError."""
    if scheme is None:
        if secret or header:
            raise ConfigError("--secret and --header need --scheme")
        return lambda body, message_id: {}
    if header and scheme not in ("hmac-hex", "header"):
        raise ConfigError(f"--header: --scheme {scheme} has a fixed header; only hmac-hex and header take another")
    if header and not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", header):
        raise ConfigError(f"--header {header!r}: not a valid header name")
    value = _resolve(secret)
    key = value.encode()
    match scheme:
        case "genesys":
            return lambda body, message_id: {HUB: "sha256=" + b64encode(_mac(key, body)).decode()}
        case "hmac-hex":
            return lambda body, message_id: {header or HUB: "sha256=" + _mac(key, body).hex()}
        case "standard-webhooks":
            return _standard_webhooks(value)
        case "header":
            if not re.fullmatch(r"[ -~]*", value):
                raise ConfigError("--secret: a header can only contain printable ASCII")
            fixed = {header or "X-Api-Key": value}
        case "basic":
            if ":" not in value:
                raise ConfigError("--secret: for --scheme basic it is user:password")
            fixed = {"Authorization": "Basic " + b64encode(key).decode()}
    return lambda body, message_id: fixed


def _standard_webhooks(secret: str) -> Sign:
    try:
        key = b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        raise ConfigError("--secret: a Standard Webhooks secret is base64, usually after whsec_") from None

    def sign(body: bytes, message_id: Callable[[], str]) -> dict[str, str]:
        own_id, now = message_id(), int(time.time())
        signature = b64encode(_mac(key, f"{own_id}.{now}.".encode() + body)).decode()
        return {"webhook-id": own_id, "webhook-timestamp": str(now), "webhook-signature": f"v1,{signature}"}

    return sign


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")


def _resolve(secret: str) -> str:
    kind, _, name = secret.partition(":")
    if kind == "env":
        secret = os.environ.get(name, "")
    elif kind == "file":
        try:
            secret = Path(name).read_text("utf-8").strip()
        except OSError as error:
            raise ConfigError(f"--secret {kind}:{name}: {error.strerror}") from None
        except UnicodeError:
            raise ConfigError(f"--secret {kind}:{name}: not text") from None
    if not secret:
        problem = f" {kind}:{name}: it is empty or not set" if kind in ("env", "file") else ": a scheme needs one"
        raise ConfigError(f"--secret{problem}")
    return secret
