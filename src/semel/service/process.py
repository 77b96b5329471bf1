"""One server process, from its settings to its end."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import NoReturn

from semel.app import Semel
from semel.core.breaker import Breaker, State
from semel.core.gate import LIMIT_MAX_S, SLOW_IN_A_ROW, Gate
from semel.core.letterbox import inbox_of
from semel.core.outboxes import outbox_of
from semel.service import logs, tracing
from semel.service.answers import Answer, challenged, refused
from semel.service.api.application import api
from semel.service.api.auth import Keyring
from semel.service.application import Service
from semel.service.background import Background
from semel.service.building import Built, build, doors
from semel.service.consuming import Consuming
from semel.service.front import Front
from semel.service.ingest import Ingest, Scope
from semel.service.metrics import Metrics
from semel.service.relaying import Relaying
from semel.service.server import serve
from semel.service.store import served_ledger, served_outbox
from semel.service.telemetry import ServiceTelemetry
from semel.service.trouble import StoreHealth, Trouble
from semel.settings.checking import check, facts_of, refuse, store_facts
from semel.settings.schema import Settings
from semel.values.errors import SemelError
from semel.values.inbox import Depth
from semel.values.log import log
from semel.values.outbox import Backlog
from semel.values.sending import ProviderAccess

CONCURRENCY = 16  # as [destinations.NAME] has it by default
OPEN_S = 0.1  # how long the ledger's breaker stays open at first, and at most
OPEN_MAX_S = 1.0


def prepare(settings: Settings, app: Semel | None, shared: str | None = None) -> tuple[Built, Metrics]:
    """The app with its routes, and its numbers; `shared` is where several workers keep theirs. Raises ConfigError for
    what doctor calls an error."""
    metrics = Metrics(shared)
    built = build(settings, app, metrics, tracing.headers)
    refuse(check(settings, facts_of(built.app.handlers), store_facts(built.app.ledger)))
    return built, metrics


def run(built: Built, metrics: Metrics, listening: socket.socket, parent_fd: int | None = None) -> NoReturn:
    """Serve until told to end, and end the process. `parent_fd` is closed by the supervisor's end, and ends us too."""
    server = built.settings.server
    logs.configure(server.log, server.log_level)
    tracing.configure_from_environment()
    service = assemble(built, metrics)
    if parent_fd is not None:
        _end_with_parent(parent_fd)
    try:
        outgoing = _outgoing(built.settings, len(built.reaches))
        code = serve(service, server, listening, outgoing=outgoing, supervised=parent_fd is not None)
    except SystemExit as end:  # of uvicorn, when the service cannot begin
        code = end.code if isinstance(end.code, int) else 1
    except Exception:
        log.exception("server_crashed")
        code = 1
    _leave(code)


def _outgoing(settings: Settings, places: int) -> int:
    """Connections to destinations and providers at a time. A place without settings of its own has the default."""
    named = [destination.concurrency for destination in settings.destinations.values()]
    return sum(named) + CONCURRENCY * max(0, places - len(named))


def assemble(built: Built, metrics: Metrics) -> Service:
    """All parts of the service, put together."""
    settings, app = built.settings, built.app
    app.telemetry = telemetry = ServiceTelemetry(metrics, tracing.Tracing())
    for handler in app.handlers:
        metrics.handler(handler.name)  # its series exist from now on

    trouble = Trouble("ledger_breaker_open", "ledger_breaker_closed")
    health = StoreHealth(trouble, quiet=True, advice=_slow_ledger(settings.server.ledger_patience))

    def ledger_moved(state: State) -> None:
        metrics.ledger_breaker.says(state)
        health.moved(state)

    breaker = Breaker(
        SLOW_IN_A_ROW,
        OPEN_S,
        open_max_s=OPEN_MAX_S,
        clock=time.monotonic,
        random=random.random,
        moved=ledger_moved,
    )
    gate = Gate(breaker, settings.server.ledger_patience, lambda: getattr(app.ledger, "held_by_handler", False))
    served = served_ledger(app.ledger, telemetry, health, gate)
    keyring = Keyring(settings.tokens)
    outbox = outbox_of(app.ledger)
    taking = doors(settings, built.publishers, built.providers, app.planner.reading)

    relaying = asked = None
    if outbox is not None:
        relaying = Relaying(outbox, built.providers, built.channels, settings.outbox, metrics)
        asked = served_outbox(outbox, health, gate, relaying.wake)

    def start() -> tuple[Ingest, Background]:
        background = Background(app, telemetry.tracing.resume, Consuming(app, built.supplies, metrics), relaying)
        front = Front(
            app,
            gate=gate,
            health=health,
            accepted=background.wake,
            trace=tracing.traceparent,
            failed_open=telemetry.failed_open,
        )
        ingest = Ingest(
            front,
            taking,
            max_in_flight=settings.server.max_in_flight,
            read_timeout_s=settings.server.read_timeout,
            watch=telemetry,
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
            outbox=asked,
            read_timeout=settings.server.read_timeout,
            max_in_flight=settings.server.max_in_flight,
            telemetry=telemetry,
            access=ProviderAccess({name: one.contract for name, one in built.providers.items()}, built.channels),
        ),
        metrics=_Numbers(app, metrics, keyring),
        gate=gate,
        ledger=served,
        drain_s=settings.server.drain,
        on_stop=built.close,
        destinations=built.breakers,
    )


def _slow_ledger(patience_s: float) -> str:
    return (
        f"The limit follows the ledger's usual round trip, from ledger_patience in [server], now {patience_s:g} s, "
        f"to {LIMIT_MAX_S:g} s: raise ledger_patience if the ledger is always slower"
    )


NO_TOKEN = challenged(
    b'Bearer realm="semel"',
    refused(401, "Not authenticated", "Send a token with the scope metrics: Authorization: Bearer …"),
)


class _Numbers:
    """/metrics. Where there are tokens, one of them is needed."""

    def __init__(self, app: Semel, metrics: Metrics, keyring: Keyring) -> None:
        self._app = app
        self._metrics = metrics
        self._keyring = keyring

    async def __call__(self, scope: Scope) -> Answer:
        if len(self._keyring):
            credential = self._keyring.authenticate(dict(scope["headers"]).get(b"authorization"))
            if credential is None:
                return NO_TOKEN
            if "metrics" not in credential.scopes:
                return refused(403, "Not allowed", f"The token {credential.name!r} lacks the scope 'metrics'")
        inbox, outbox = inbox_of(self._app.ledger), outbox_of(self._app.ledger)
        depths: list[Depth] | None = None
        backlog: list[Backlog] | None = None
        with suppress(SemelError):  # what nobody could ask, the page does not tell
            depths = await inbox.depths() if inbox is not None else []
            backlog = await outbox.backlog() if outbox is not None else None
        page, kind = self._metrics.exposition(depths, backlog=backlog)
        return Answer(200, [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(page))], page)


def _leave(code: int) -> NoReturn:
    """End, without waiting for threads: a handler that hangs in one had its time, and its letter is given back."""
    tracing.finish()
    atexit._run_exitfuncs()  # what libraries want to send or write at the end: os._exit leaves it out
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _end_with_parent(fd: int) -> None:
    """A worker whose supervisor was killed must not keep the port."""

    def wait() -> None:
        os.read(fd, 1)  # nobody writes: it returns when the other end is closed
        log.error("supervisor_lost")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True, name="semel-parent").start()
