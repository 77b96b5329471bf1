"""The ASGI application of `semel run`: which part answers which path, and how it all begins and ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from semel.app import Semel
from semel.core.gate import Gate, GateReport
from semel.ports import Ledger
from semel.service import answers
from semel.service.answers import Answer, refused
from semel.service.background import Background
from semel.service.ingest import Ingest, Receive, Scope, Send, reply
from semel.service.trouble import Trouble
from semel.values.errors import SemelError
from semel.values.log import log

READY_S = 1.0  # how long the result of a look at the ledger is remembered
READY_WITHIN_S = 2.0  # how long a look may take: several round trips to a ledger that is 250 ms away
STAYS_OPEN_S = 5.0  # a breaker that is open for less time is a short disturbance: the service stays ready


class Asgi(Protocol):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Service:
    """Webhooks first: everything else can wait a dictionary look-up longer."""

    def __init__(
        self,
        app: Semel,
        start: Callable[[], tuple[Ingest, Background]],
        *,
        api: Asgi,
        metrics: Callable[[Scope], Awaitable[Answer]],
        gate: Gate,
        ledger: Ledger,
        drain_s: float,
        on_stop: Callable[[], Awaitable[None]],
        destinations: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """`start` makes what belongs to the running loop; `on_stop` lets go of what it used. Claims of `ledger` pass
        the gate."""
        self._app = app
        self._start = start
        self._api = api
        self._metrics = metrics
        self._gate, self._ledger = gate, ledger
        self._drain_s = drain_s
        self._on_stop = on_stop
        self._destinations = destinations
        self._ingest: Ingest | None = None
        self._background: Background | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._stop_at: float | None = None  # loop time: when the drain is over
        self._looked: tuple[float, Answer] = (-READY_S, HEALTHY)
        self._unready = Trouble("not_ready", "ready_again")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert self._ingest is not None
            if log.enabled(logging.DEBUG):
                send = _logged(scope, send)
            if (door := self._ingest.doors.get(scope["path"])) is not None:
                await self._ingest.deliver(door, scope, receive, send)
            else:
                await self._other(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["path"]:
            case "/healthz":
                await reply(HEALTHY, send)
            case "/readyz":
                await reply(await self._ready(), send)
            case "/metrics":
                await reply(await self._metrics(scope), send)
            case "/openapi.json":
                await self._api(scope, receive, send)
            case path if path.startswith("/v1/"):
                await self._api(scope, receive, send)
            case _:
                await reply(answers.NOT_HERE, send)

    # ---------------------------------------------------------------------------------------- beginning and end

    async def _live(self, receive: Receive, send: Send) -> None:
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
        """No new letters and deliveries are taken; requests that are here are answered."""
        if self._stop_at is None:
            log.info("drain_started", deadline_s=self._drain_s)
            self._stop_at = asyncio.get_running_loop().time() + self._drain_s
            if self._background is not None:
                self._background.begin_to_stop()

    def hurry(self, then: Callable[[], None]) -> None:
        """The drain is over now: what has not ended goes back, or is told. `then` the process may end."""
        if self._background is None:
            then()
            return
        self._cutting = asyncio.create_task(self._background.stop(0.0))
        self._cutting.add_done_callback(lambda _: then())

    async def _stop(self) -> None:
        self.begin_to_drain()
        assert self._stop_at is not None
        if self._background is not None:
            await self._background.stop(max(0.0, self._stop_at - asyncio.get_running_loop().time()))
        await self._on_stop()
        await self._app.close()

    async def _ready(self) -> Answer:
        """Ready while the ledger can be written, its breaker does not stay open, and no drain has begun."""
        if self._stop_at is not None:
            return refused(503, "Draining")
        now = asyncio.get_running_loop().time()
        if now - self._looked[0] >= READY_S:
            self._looked = now, await self._look()
        return self._looked[1]

    async def _look(self) -> Answer:
        """The store's name and its error are for the log: everybody may ask whether the service is ready."""
        reason = await self._unready_because()
        about: dict[str, Any] = {"ledger": _ledger_state(self._gate.report())}
        if unwell := [_open(one) for one in self._destinations() if one["breaker"] != "closed"]:
            about["destinations"] = unwell
        if reason:
            self._unready.is_there(reason)
            return refused(503, "The ledger cannot be reached now", after_s=READY_S, **about)
        self._unready.is_over()
        consuming = self._background.consuming if self._background is not None else None
        trouble = consuming.trouble if consuming is not None else ""
        # webhooks are taken while a source is in trouble
        return _said(status="ready", **about, **({"sources": trouble} if trouble else {}))

    async def _unready_because(self) -> str:
        """Empty if the service is ready. The call is measured, and it probes a breaker that stays open: there may be no
        other traffic."""
        within_s = max(READY_WITHIN_S, self._gate.patience_s)
        just_opened = 0 < self._gate.report().open_s < STAYS_OPEN_S
        ledger = self._app.ledger if just_opened else self._ledger
        try:
            async with asyncio.timeout(within_s):
                await ledger.claim([])  # whether it takes writes
        except (SemelError, TimeoutError) as error:
            return str(error) or f"no answer within {within_s:g} s"
        return ""


def _ledger_state(report: GateReport) -> dict[str, Any]:
    state: dict[str, Any] = {"breaker": report.breaker, "round_trip_ms": report.round_trip_ms}
    if report.breaker != "closed":
        state |= {"since": _since(report.open_s), "reason": report.reason, "next_probe_s": report.next_probe_s}
    return state


def _since(open_s: float) -> str:
    since = datetime.now(UTC) - timedelta(seconds=open_s)
    return since.isoformat(timespec="seconds").replace("+00:00", "Z")


def _open(report: Mapping[str, Any]) -> dict[str, Any]:
    """The breaker of a destination that is not closed, as operators see it."""
    return {**{name: value for name, value in report.items() if name != "open_s"}, "since": _since(report["open_s"])}


def _logged(scope: Scope, send: Send) -> Send:
    """`send`, with a log line when the head of the answer leaves. Without the query: it may hold a credential."""
    begun = time.monotonic()

    async def logged(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            duration_ms = round((time.monotonic() - begun) * 1000, 1)
            fields = {"method": scope["method"], "path": scope["path"], "http_status": message["status"]}
            log.debug("http_request", **fields, duration_ms=duration_ms)
        await send(message)

    return logged


def _said(**members: Any) -> Answer:
    body = msgspec.json.encode(members)
    return Answer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))], body)


HEALTHY = _said(status="alive")
