"""The ASGI application of `semel run`: routing by path, health and readiness, start-up and shutdown.

`Mounted` is the same webhook source inside another ASGI application (`app.asgi()`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from semel.app import Semel
from semel.core.ledger_breaker import LedgerBreaker
from semel.ports import Ledger
from semel.service import responses
from semel.service.background import Background
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest, Receive, Scope, Send, reply
from semel.service.responses import HttpResponse, refused
from semel.values.errors import SemelError
from semel.values.log import IncidentLog, log

READY_S = 1.0  # how long the result of a readiness check is reused
READY_WITHIN_S = 2.0  # limit of a readiness check: several round trips to a ledger that is 250 ms away
STAYS_OPEN_S = 5.0  # a breaker that is open for less is a short disturbance: the service stays ready


class Asgi(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Service:
    """Dispatches requests by path: webhook endpoints first, then the API and the operational paths."""

    def __init__(
        self,
        app: Semel,
        start: Callable[[], tuple[Ingest, Background]],
        *,
        api: Asgi,
        metrics: Callable[[Scope], Awaitable[HttpResponse]],
        breaker: LedgerBreaker,
        ledger: Ledger,
        drain_s: float,
        on_stop: Callable[[], Awaitable[None]],
        destinations: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """`start` creates the parts that belong to the running loop; `on_stop` closes what they used. Claims through
        `ledger` pass the breaker."""
        self._app = app
        self._start = start
        self._api = api
        self._metrics = metrics
        self._breaker, self._ledger = breaker, ledger
        self._drain_s = drain_s
        self._on_stop = on_stop
        self._destinations = destinations
        self._ingest: Ingest | None = None
        self._background: Background | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stop_at: float | None = None  # loop time at which the drain ends
        self._readiness: tuple[float, HttpResponse] = (-READY_S, HEALTHY)
        self._not_ready = IncidentLog("not_ready", "ready_again")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert self._ingest is not None
            if log.enabled(logging.DEBUG):
                send = _logged(scope, send)
            path: str = scope["path"]
            if (endpoint := self._ingest.endpoints.get(path)) is not None:
                await self._ingest.deliver(endpoint, scope, receive, send)
            elif path == "/healthz":
                await reply(HEALTHY, send)
            elif path == "/readyz":
                await reply(await self._ready(), send)
            elif path == "/metrics":
                await reply(await self._metrics(scope), send)
            elif path == "/openapi.json" or path.startswith("/v1/"):
                await self._api(scope, receive, send)
            else:
                await reply(responses.NOT_FOUND, send)
        elif scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._ingest, self._background = self._start()
                self._background.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def begin_to_drain(self) -> None:
        """Take no more inbox items and deliveries; finish the requests in flight."""
        if self._stop_at is None:
            log.info("drain_started", deadline_s=self._drain_s)
            self._stop_at = asyncio.get_running_loop().time() + self._drain_s
            if self._background is not None:
                self._background.begin_to_stop()

    def stop_now(self, then: Callable[[], None]) -> None:
        """End the drain: return unfinished work to its source, record unfinished sends, then call `then`."""
        if self._background is None:
            then()
            return
        self._stopping = asyncio.create_task(self._background.stop(0.0))
        self._stopping.add_done_callback(lambda _: then())

    async def _stop(self) -> None:
        self.begin_to_drain()
        assert self._stop_at is not None
        if self._background is not None:
            await self._background.stop(max(0.0, self._stop_at - asyncio.get_running_loop().time()))
        await self._on_stop()
        await self._app.close()

    async def _ready(self) -> HttpResponse:
        """Ready while the ledger can be written, its breaker does not stay open, and no drain has begun."""
        if self._stop_at is not None:
            return refused(503, "Draining")
        now = asyncio.get_running_loop().time()
        if now - self._readiness[0] >= READY_S:
            self._readiness = now, await self._check_ready()
        return self._readiness[1]

    async def _check_ready(self) -> HttpResponse:
        """Check the ledger with a call that is timed, and that probes an open breaker: there may be no other traffic.
        The store's name and its error are only logged: this path needs no token."""
        within_s, reason = max(READY_WITHIN_S, self._breaker.patience_s), ""
        just_opened = 0 < self._breaker.report().open_s < STAYS_OPEN_S
        try:
            async with asyncio.timeout(within_s):
                await (self._app.ledger if just_opened else self._ledger).claim([])  # checks that it accepts writes
        except (SemelError, TimeoutError) as error:
            reason = str(error) or f"no answer within {within_s:g} s"
        breaker = self._breaker.report()
        state: dict[str, Any] = {"breaker": breaker.breaker, "round_trip_ms": breaker.round_trip_ms}
        if breaker.breaker != "closed":
            state |= {"since": _since(breaker.open_s), "reason": breaker.reason, "next_probe_s": breaker.next_probe_s}
        members: dict[str, Any] = {"ledger": state}
        destinations = [
            {**{name: value for name, value in report.items() if name != "open_s"}, "since": _since(report["open_s"])}
            for report in self._destinations()
            if report["breaker"] != "closed"
        ]
        if destinations:
            members["destinations"] = destinations
        if reason:
            self._not_ready.report(reason)
            return refused(503, "The ledger is unavailable", after_s=READY_S, **members)
        self._not_ready.resolve()
        consumers = self._background.consumers if self._background is not None else None
        problem = consumers.problem if consumers is not None else ""
        # a broken source does not stop the webhooks: the service stays ready
        return _json(status="ready", **members, **({"sources": problem} if problem else {}))


def _since(open_s: float) -> str:
    since = datetime.now(UTC) - timedelta(seconds=open_s)
    return since.isoformat(timespec="seconds").replace("+00:00", "Z")


def _logged(scope: Scope, send: Send) -> Send:
    """`send`, with a log line for the response. The line has no query, because that may contain a credential."""
    begun = time.monotonic()

    async def logged(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            duration_ms = round((time.monotonic() - begun) * 1000, 1)
            fields = {"method": scope["method"], "path": scope["path"], "http_status": message["status"]}
            log.debug("http_request", **fields, duration_ms=duration_ms)
        await send(message)

    return logged


def _json(**members: Any) -> HttpResponse:
    body = msgspec.json.encode(members)
    return HttpResponse(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)


HEALTHY = _json(status="alive")


DRAIN_S = 20.0


class Mounted:
    """`app.asgi()`: takes deliveries at one path, below its mount point, in any ASGI application."""

    def __init__(self, app: Semel, endpoint: ServedEndpoint) -> None:
        self._app = app
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ingest: Ingest | None = None
        self._not_here = responses.refused(
            404, "Not found", f"This application takes events at {endpoint.path}, by POST"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http" if scope["path"].removeprefix(scope.get("root_path", "")) == self._endpoint.path:
                ingest = self._ingest
                if ingest is None or self._loop is not asyncio.get_running_loop():
                    ingest = self._start_on_this_loop()
                await ingest.deliver(self._endpoint, scope, receive, send)
            case "http":
                await reply(self._not_here, send)
            case "lifespan":  # only when it is not mounted: a mounted application gets no lifespan
                await self._run_lifespan(receive, send)

    def _start_on_this_loop(self) -> Ingest:
        self._loop = asyncio.get_running_loop()
        has_inbox = self._endpoint.mode == "inbox" and self._endpoint.publisher is None
        background = self._app.background() if has_inbox else None
        handler = DeliveryHandler(self._app, accepted=background.wake if background else lambda: None)
        self._ingest = Ingest(handler, [self._endpoint], planner=self._app.planner)
        return self._ingest

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._start_on_this_loop()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self._endpoint.publisher is not None:
            await self._endpoint.publisher.close()
        await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})


@asynccontextmanager
async def handling(app: Semel) -> AsyncIterator[None]:
    """Processes inbox items while the context is open. Items in flight finish before it closes."""
    background = app.background()
    try:
        yield
    finally:
        await background.stop(DRAIN_S)
