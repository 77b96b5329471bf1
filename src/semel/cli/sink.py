"""`semel sink`: an HTTP destination that counts effects, for `semel storm --check`.

POST /            an effect of the event in the body; by default once for each Idempotency-Key
GET  /counts      the summary
GET  /counts/ids  a line for each event, "<mark> <effects>", in pages: ?from=0
POST /reset       deletes all counts
"""

from __future__ import annotations

import asyncio
import signal
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import typer
from aiohttp import web
from msgspec import Struct

BODY_MAX_BYTES = 2 * 1024 * 1024  # an event has at most one
DOUBLED_SHOWN = 100
MARK_BYTES = 16
PAGE_LINES = 20_000  # of /counts/ids: less than a megabyte


def register(app: typer.Typer) -> None:
    app.command()(sink)


def sink(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    keyed: Annotated[
        bool,
        typer.Option(
            "--keyed/--plain",
            help="Answer a repeated Idempotency-Key without a second effect; or count every POST.",
        ),
    ] = True,
    fail: Annotated[float, typer.Option(min=0, max=1, help="Share of requests answered with 500, no effect.")] = 0.0,
    drop: Annotated[
        float, typer.Option(min=0, max=1, help="Share of effects without a response: the connection is closed.")
    ] = 0.0,
    slow: Annotated[float, typer.Option(min=0, max=3600, help="Seconds before each response.")] = 0.0,
    down_after: Annotated[
        int | None, typer.Option(min=0, help="After this many effects, close all connections for a while, once.")
    ] = None,
    down_for: Annotated[float, typer.Option(min=0, help="Seconds for which it is down.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the faults: selects the requests that they affect.")] = 0,
) -> None:
    """Run a destination that counts effects, to check a storm against.

    Forward a route to the URL that it prints, with the whole document as the
    body. An effect belongs to the event in the body: its topic, participant,
    session and time, or its id.

    GET /counts returns the number of effects and the doubled ones, GET
    /counts/ids a line for each event. POST /reset deletes all counts. Ctrl-C
    ends the command.
    """
    from semel.cli.storm_load import run

    faults = Faults(fail=fail, drop=drop, slow_s=slow, down_after=down_after, down_s=down_for)
    try:
        run(serve(host, port, keyed, faults, seed))
    except OSError as error:
        typer.echo(f"semel: cannot listen on {host}:{port}: {error.strerror or error}", err=True)
        raise typer.Exit(2) from None


# The identity of an effect, for the sink and the storm. It uses no key code of Semel, which is what they check.


class Counts(Struct, frozen=True):
    """The summary of the sink."""

    effects: int
    distinct: int  # events
    repeats: int  # of a key, without a second effect
    doubled: list[str]  # events with more than one effect, the first of them
    doubled_events: int
    conflicts: int = 0  # a key that came with another event
    refused: int = 0  # requests without a key, or whose body is not a JSON object
    faults: int = 0  # injected


class _Body(Struct, gc=False):
    participantId: Any = None  # noqa: N815 - as on the wire
    sessionId: Any = None  # noqa: N815
    eventTime: Any = None  # noqa: N815


class _Detail(Struct, gc=False):
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    eventId: Any = None  # noqa: N815
    id: Any = None


class _Document(Struct, gc=False):
    id: Any = None
    topicName: str | None = None  # noqa: N815
    eventBody: _Body | None = None  # noqa: N815
    detail: _Detail | None = None


_decode = msgspec.json.Decoder(_Document).decode


def identity(body: bytes) -> str:
    """Return the identity of the event in a body. Raises ValueError if it is not a JSON object."""
    try:
        document = _decode(body)
    except msgspec.ValidationError:
        return _content(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a JSON object: {error}") from None
    detail = document.detail
    inner = detail if detail is not None else document
    if inner.topicName and inner.eventBody is not None:
        return _genesys(inner.topicName, inner.eventBody) or _content(body)
    event_id = detail.eventId or detail.id if detail is not None else document.id
    return str(event_id) if event_id else _content(body)


def mark(identity: str) -> bytes:
    """Return a digest of an identity: a million of them fit into memory."""
    return blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=MARK_BYTES).digest()


def _genesys(topic: str, body: _Body) -> str:
    if not (body.participantId and body.sessionId and body.eventTime):
        return ""
    return f"{topic}|{body.participantId}|{body.sessionId}|{body.eventTime}"


def _content(body: bytes) -> str:
    return f"content {blake2b(body, digest_size=MARK_BYTES).hexdigest()}"


# The server.


class Faults(Struct, frozen=True):
    """Faults that the sink injects."""

    fail: float = 0.0  # share of requests answered with 500, without an effect
    drop: float = 0.0  # share of effects without a response: the connection is closed
    slow_s: float = 0.0  # before each response
    down_after: int | None = None  # effects, after which the sink is down once
    down_s: float = 10.0


class Effects:
    """Counts effects by the marks of their events: a million events take about 150 MB."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self.reset()

    def reset(self) -> None:
        self._effects: dict[bytes, int] = {}
        self._keys: dict[bytes, bytes] = {}  # mark of the key: mark of its event
        self._doubled: dict[str, None] = {}
        self.total = self.repeats = self.doubled_events = self.conflicts = self.refused = self.faults = 0

    def judge(self, key: str, event: bytes) -> Literal["new", "repeat", "conflict"]:
        """Compare a key with those known. A conflict is a key that had its effect for another event."""
        known = self._keys.get(mark(key)) if self.keyed else None
        if known is None:
            return "new"
        return "repeat" if known == event else "conflict"

    def add(self, key: str, event: bytes, name: str) -> None:
        if self.keyed:
            self._keys[mark(key)] = event
        self.total += 1
        count = self._effects[event] = self._effects.get(event, 0) + 1
        if count == 2:
            self.doubled_events += 1
            if len(self._doubled) < DOUBLED_SHOWN:
                self._doubled[name] = None

    def counts(self) -> Counts:
        return Counts(
            effects=self.total,
            distinct=len(self._effects),
            repeats=self.repeats,
            doubled=list(self._doubled),
            doubled_events=self.doubled_events,
            conflicts=self.conflicts,
            refused=self.refused,
            faults=self.faults,
        )

    def page(self, first: int) -> str:
        lines = islice(self._effects.items(), first, first + PAGE_LINES)
        return "".join([f"{event.hex()} {count}\n" for event, count in lines])


class SinkServer:
    """Handles the requests."""

    def __init__(self, effects: Effects, faults: Faults, random: Random) -> None:
        self._effects = effects
        self._faults = faults
        self._random = random
        self._down_until_s: float | None = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_get("/counts", self.counts)
        app.router.add_get("/counts/ids", self.ids)
        app.router.add_post("/reset", self.reset)
        app.router.add_post("/{rest:.*}", self.count_effect)
        return app

    async def count_effect(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self._faults.slow_s:
            await asyncio.sleep(self._faults.slow_s)
        if self._is_down():
            return self._disconnect(request)
        if self._inject(self._faults.fail):
            return _response(500, b'{"status":"failed on purpose"}')
        key = request.headers.get("Idempotency-Key", "")
        if self._effects.keyed and not key:
            self._effects.refused += 1
            return _response(400, b'{"status":"refused: no Idempotency-Key"}')
        try:
            name = identity(body)
        except ValueError:
            self._effects.refused += 1
            return _response(400, b'{"status":"refused: no JSON object"}')
        event = mark(name)
        match self._effects.judge(key, event):
            case "conflict":
                self._effects.conflicts += 1
                return _response(422, b'{"status":"refused: this key came with another event"}')
            case "repeat":
                self._effects.repeats += 1
                return _response(200, b'{"status":"repeated"}')
            case "new":
                self._effects.add(key, event, name)
        return self._disconnect(request) if self._inject(self._faults.drop) else _response(200, b'{"status":"taken"}')

    async def counts(self, request: web.Request) -> web.Response:
        return _response(200, msgspec.json.encode(self._effects.counts()))

    async def ids(self, request: web.Request) -> web.Response:
        first = request.query.get("from", "0")
        if not first.isdecimal() or len(first) > 12:
            return _response(400, b'{"status":"from: expected a whole number"}')
        return web.Response(text=self._effects.page(int(first)))

    async def reset(self, request: web.Request) -> web.Response:
        self._effects.reset()
        return _response(200, b'{"status":"reset"}')

    def _inject(self, share: float) -> bool:
        injected = share > 0 and self._random.random() < share
        self._effects.faults += injected
        return injected

    def _is_down(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        after = self._faults.down_after
        if self._down_until_s is None and after is not None and self._effects.total >= after:
            self._down_until_s = now_s + self._faults.down_s
        down = self._down_until_s is not None and now_s < self._down_until_s
        self._effects.faults += down
        return down

    def _disconnect(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)  # it is not sent


def _response(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


async def serve(host: str, port: int, keyed: bool, faults: Faults, seed: int) -> None:
    """Serve until SIGTERM or SIGINT. The first line on stdout is the URL; it is printed when the port is open."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    runner = web.AppRunner(
        SinkServer(Effects(keyed), faults, Random(seed)).app(), access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        name, bound = runner.addresses[0][:2]
        print(f"http://{f'[{name}]' if ':' in name else name}:{bound}", flush=True)
        await stopping.wait()
    finally:
        await runner.cleanup()
