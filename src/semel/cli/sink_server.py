"""The counting sink: a destination that remembers every effect, so that a lost or doubled one can be named.

POST /            an effect of the event in the body; in keyed mode once for each Idempotency-Key
GET  /counts      the summary
GET  /counts/ids  a line for each event, "<mark> <effects>", in pages: ?from=0
POST /reset       forgets everything
"""

from __future__ import annotations

import asyncio
import signal
import sys
from itertools import islice
from random import Random
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from semel.cli.storm_check import PAGE_LINES, Counts, identity, mark

BODY_MAX_BYTES = 2 * 1024 * 1024  # an event has at most one
DOUBLED_SHOWN = 100
TAKEN = b'{"status":"taken"}'
REPEATED = b'{"status":"repeated"}'


class Faults(Struct, frozen=True):
    """What the sink does wrong on purpose."""

    fail: float = 0.0  # share of requests that are answered with 500 and have no effect
    drop: float = 0.0  # share of effects whose answer never leaves: the connection ends instead
    slow_s: float = 0.0  # how long an answer takes
    down_after: int | None = None  # so many effects, and then it is down once
    down_s: float = 10.0


class Effects:
    """What has happened here. Everything is held as short marks: a million events take about 150 MB."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self.forget()

    def forget(self) -> None:
        self._effects: dict[bytes, int] = {}
        self._keys: dict[bytes, bytes] = {}  # mark of the key: mark of its event
        self._doubled: dict[str, None] = {}
        self.total = self.repeats = self.doubled_events = self.conflicts = self.refused = self.faults = 0

    def judge(self, key: str, event: bytes) -> Literal["new", "repeat", "conflict"]:
        """A conflict: this key had its effect for another event."""
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


class Sink:
    """Answers requests."""

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
        app.router.add_post("/{rest:.*}", self.take)
        return app

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self._faults.slow_s:
            await asyncio.sleep(self._faults.slow_s)
        if self._is_down():
            return self._hang_up(request)
        if self._happens(self._faults.fail):
            return _answer(500, b'{"status":"failed on purpose"}')
        key = request.headers.get("Idempotency-Key", "")
        if self._effects.keyed and not key:
            self._effects.refused += 1
            return _answer(400, b'{"status":"refused: no Idempotency-Key"}')
        try:
            name = identity(body)
        except ValueError:
            self._effects.refused += 1
            return _answer(400, b'{"status":"refused: no JSON object"}')
        event = mark(name)
        match self._effects.judge(key, event):
            case "conflict":
                self._effects.conflicts += 1
                return _answer(422, b'{"status":"refused: this key came with another event"}')
            case "repeat":
                self._effects.repeats += 1
                return _answer(200, REPEATED)
            case "new":
                self._effects.add(key, event, name)
        return self._hang_up(request) if self._happens(self._faults.drop) else _answer(200, TAKEN)

    async def counts(self, request: web.Request) -> web.Response:
        return _answer(200, msgspec.json.encode(self._effects.counts()))

    async def ids(self, request: web.Request) -> web.Response:
        first = request.query.get("from", "0")
        if not first.isdecimal() or len(first) > 12:
            return _answer(400, b'{"status":"from: expected a whole number"}')
        return web.Response(text=self._effects.page(int(first)))

    async def reset(self, request: web.Request) -> web.Response:
        self._effects.forget()
        return _answer(200, b'{"status":"forgotten"}')

    def _happens(self, share: float) -> bool:
        happens = share > 0 and self._random.random() < share
        self._effects.faults += happens
        return happens

    def _is_down(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        after = self._faults.down_after
        if self._down_until_s is None and after is not None and self._effects.total >= after:
            self._down_until_s = now_s + self._faults.down_s
        down = self._down_until_s is not None and now_s < self._down_until_s
        self._effects.faults += down
        return down

    def _hang_up(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=503)  # nobody reads it


def _answer(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json")


async def serve(host: str, port: int, keyed: bool, faults: Faults, seed: int) -> None:
    """Serve until SIGTERM or SIGINT. The first line on stdout is the URL: whoever started this may wait for it."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    runner = web.AppRunner(Sink(Effects(keyed), faults, Random(seed)).app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        name, bound = runner.addresses[0][:2]
        print(f"http://{f'[{name}]' if ':' in name else name}:{bound}", flush=True)
        sys.stdout.flush()
        await over.wait()
    finally:
        await runner.cleanup()
