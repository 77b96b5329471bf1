"""One server process: builds the service from its settings, serves until a signal, and exits."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from semel.app import Semel
from semel.core.breaker import Breaker, State
from semel.core.dead_letter_store import inbox_of
from semel.core.ledger_breaker import LIMIT_MAX_S, SLOW_IN_A_ROW, LedgerBreaker
from semel.core.resend import outbox_of
from semel.ports import HoldsWriteLock, Ledger
from semel.service import logging, tracing
from semel.service.api.requests import Keyring
from semel.service.api.routes import api
from semel.service.app import Service
from semel.service.assembly import BuiltService, build, served_endpoints
from semel.service.background import Background
from semel.service.consumers import Consumers
from semel.service.delivery_handler import DeliveryHandler
from semel.service.ingest import Ingest, Scope
from semel.service.metrics import Metrics
from semel.service.relays import OutboxRelay
from semel.service.responses import HttpResponse, challenged, refused
from semel.service.served_ledger import ServedLedger, ServedOutbox, StoreHealth
from semel.service.server import serve
from semel.service.telemetry import ServiceTelemetry
from semel.settings.checks import check, facts_of, refuse, store_facts
from semel.settings.schema import Settings
from semel.values.delivery_state import ProviderAccess
from semel.values.errors import SemelError
from semel.values.inbox import Depth
from semel.values.log import IncidentLog, log
from semel.values.outbox import Backlog

CONCURRENCY = 16  # default of [destinations.NAME], also for providers
OPEN_S = 0.1  # how long the ledger's breaker stays open at first, and at most
OPEN_MAX_S = 1.0


def prepare(settings: Settings, app: Semel | None, shared: str | None = None) -> tuple[BuiltService, Metrics]:
    """Build the app with its routes, and its metrics. `shared` is the directory of the metrics of several workers.
    Raises ConfigError for each error that `semel doctor` would report."""
    metrics = Metrics(shared)
    built = build(settings, app, metrics, tracing.headers)
    refuse(check(settings, facts_of(built.app.handlers), store_facts(built.app.ledger)))
    return built, metrics


def run(built: BuiltService, metrics: Metrics, listening: socket.socket, parent_fd: int | None = None) -> NoReturn:
    """Serve until a signal ends the process. `parent_fd` closes when the supervisor ends, which ends this process."""
    server = built.settings.server
    logging.configure(server.log, server.log_level)
    tracing.configure_from_environment()
    service = assemble(built, metrics)
    if parent_fd is not None:
        _end_with_parent(parent_fd)
    try:
        named = [destination.concurrency for destination in built.settings.destinations.values()]
        outgoing = sum(named) + CONCURRENCY * max(0, len(built.reaches) - len(named))  # connections
        code = serve(service, server, listening, outgoing=outgoing, supervised=parent_fd is not None)
    except SystemExit as end:  # of uvicorn, when start-up fails
        code = end.code if isinstance(end.code, int) else 1
    except Exception:
        log.exception("server_crashed")
        code = 1
    _exit(code)


def assemble(built: BuiltService, metrics: Metrics) -> Service:
    """Wire all parts of the service."""
    settings, app = built.settings, built.app
    app.telemetry = telemetry = ServiceTelemetry(metrics, tracing.Tracing())
    for handler in app.handlers:
        metrics.handler(handler.name)  # creates its series

    incident = IncidentLog("ledger_breaker_open", "ledger_breaker_closed")
    health = StoreHealth(incident, quiet=True, advice=_slow_ledger_advice(settings.server.ledger_patience))

    def breaker_changed(state: State) -> None:
        metrics.ledger_breaker.set_state(state)
        health.breaker_changed(state)

    breaker = Breaker(
        SLOW_IN_A_ROW,
        OPEN_S,
        open_max_s=OPEN_MAX_S,
        clock=time.monotonic,
        random=random.random,
        moved=breaker_changed,
    )
    ledger_breaker = LedgerBreaker(breaker, settings.server.ledger_patience, _held_by_handler(app.ledger))
    served = ServedLedger(app.ledger, telemetry, health, ledger_breaker)
    keyring = Keyring(settings.tokens)
    outbox = outbox_of(app.ledger)
    endpoints = served_endpoints(settings, built.publishers, built.providers, app.planner.decode_options)

    relay = api_outbox = None
    if outbox is not None:
        relay = OutboxRelay(outbox, built.providers, built.channels, settings.outbox, metrics)
        api_outbox = ServedOutbox(outbox, health, ledger_breaker, relay.wake)

    def start() -> tuple[Ingest, Background]:
        background = Background(app, telemetry.tracing.resume, Consumers(app, built.sources, metrics), relay)
        handler = DeliveryHandler(
            app,
            breaker=ledger_breaker,
            health=health,
            accepted=background.wake,
            trace=tracing.traceparent,
            failed_open=telemetry.failed_open,
        )
        ingest = Ingest(
            handler,
            endpoints,
            max_in_flight=settings.server.max_in_flight,
            read_timeout_s=settings.server.read_timeout,
            observer=telemetry,
            planner=app.planner,
            trace=tracing.traceparent,
            outbox=outbox,
        )
        return ingest, background

    return Service(
        app,
        start,
        api=api(
            served,
            keyring,
            catalog=app.ledger,
            outbox=api_outbox,
            read_timeout=settings.server.read_timeout,
            max_in_flight=settings.server.max_in_flight,
            telemetry=telemetry,
            access=ProviderAccess({name: one.contract for name, one in built.providers.items()}, built.channels),
        ),
        metrics=_MetricsPage(app, metrics, keyring),
        breaker=ledger_breaker,
        ledger=served,
        drain_s=settings.server.drain,
        on_stop=built.close,
        destinations=built.breakers,
    )


def _held_by_handler(ledger: Ledger) -> Callable[[], bool]:
    """Whether the transaction of a handler holds the store now. That is no evidence against the store."""
    if not isinstance(ledger, HoldsWriteLock):
        return lambda: False
    return lambda: ledger.held_by_handler


def _slow_ledger_advice(patience_s: float) -> str:
    return (
        f"The limit follows the usual round trip of the ledger, from ledger_patience in [server] ({patience_s:g} s) "
        f"to {LIMIT_MAX_S:g} s: raise ledger_patience if the ledger is always slower"
    )


NO_TOKEN = challenged(
    b'Bearer realm="semel"',
    refused(401, "Not authenticated", "Send a token with the scope metrics: Authorization: Bearer …"),
)


class _MetricsPage:
    """/metrics. If tokens are configured, a request needs one of them."""

    def __init__(self, app: Semel, metrics: Metrics, keyring: Keyring) -> None:
        self._app = app
        self._metrics = metrics
        self._keyring = keyring

    async def __call__(self, scope: Scope) -> HttpResponse:
        if len(self._keyring):
            credential = self._keyring.authenticate(dict(scope["headers"]).get(b"authorization"))
            if credential is None:
                return NO_TOKEN
            if "metrics" not in credential.scopes:
                return refused(403, "Not allowed", f"The token {credential.name!r} lacks the scope 'metrics'")
        inbox, outbox = inbox_of(self._app.ledger), outbox_of(self._app.ledger)
        depths: list[Depth] | None = None
        backlog: list[Backlog] | None = None
        with suppress(SemelError):  # an unavailable store: the page leaves these metrics out
            depths = await inbox.depths() if inbox is not None else []
            backlog = await outbox.backlog() if outbox is not None else None
        page, kind = self._metrics.exposition(depths, backlog=backlog)
        return HttpResponse(200, [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(page))], page)


def _exit(code: int) -> NoReturn:
    """Exit without waiting for threads: a handler that hangs in one had its time, and its inbox item was returned."""
    tracing.finish()
    atexit._run_exitfuncs()  # exit handlers of libraries, which os._exit skips
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_with_parent(fd: int) -> None:
    """End this worker when its supervisor was killed: it must not keep the port."""

    def wait() -> None:
        os.read(fd, 1)  # never written: returns when the other end is closed
        log.error("supervisor_lost")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="semel-parent").start()
