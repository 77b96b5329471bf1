"""`semel run`: the process that a team deploys."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from semel.app import Semel
    from semel.core.routing import Handler
    from semel.ports import Fact
    from semel.service.assembly import BuiltService
    from semel.settings.schema import Settings

SAMPLE = '{"id":"1","type":"interaction.created","data":{"id":"c-1"}}'


def register(app: typer.Typer) -> None:
    app.command(name="run")(run)


def run(
    target: Annotated[str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python.")] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings; by default semel.toml, if it is here.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 if nothing else is said.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="8080 if nothing else is said; 0: a free one.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that share the port and the ledger.")
    ] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service: take webhooks, consume sources, forward events, serve the HTTP API.

    Without settings and without an app it shows itself: every event at /events is written to the console once.
    SIGTERM ends it gently: what is under way is finished, the rest stays in the ledger or at its source. A second one
    ends it at once.
    """
    from semel.cli.app_importer import find_app
    from semel.settings.loading import source

    try:
        from semel.service import process
    except ImportError as error:
        from semel.values.errors import ConfigError

        raise ConfigError(f"the service needs {error.name}: pip install 'semel[service]'") from None

    inherited = worker.split(",", 3) if worker is not None else None
    content = source(config, os.environ) if inherited is None else _handed(int(inherited[2]))
    settings = _settings(content, config, target, host, port, workers)
    app = find_app(target) if target is not None else None
    if inherited is not None:
        listening_fd, parent_fd, _, shared = inherited
        listening = socket.socket(fileno=int(listening_fd))
        process.run(*process.prepare(settings, app, shared), listening, int(parent_fd))
    prepared = process.prepare(settings, app)
    facts = _refuse_broken(prepared[0])
    ledger = _shown(settings) if target is None else _told(prepared[0].app, facts)
    handlers = [handler for handler in prepared[0].app.handlers if handler.name not in _routes(settings)]
    listening = _listen(settings)
    if settings.server.workers == 1:
        _introduce(settings, ledger, handlers, listening)
        process.run(*prepared, listening)
    from semel.service import logging
    from semel.service.supervisor import Supervisor

    server = settings.server
    logging.configure(server.log, server.log_level)
    arguments = ["run", *_again(target, config, host, port, workers)]
    supervisor = Supervisor(server.workers, arguments, content, listening, server.drain)
    raise typer.Exit(supervisor.run(lambda: _introduce(settings, ledger, handlers, listening)))


def _handed(fd: int) -> bytes:
    """The settings' file as the supervisor read it. Other workers read it too, so its position is left alone."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _settings(
    content: bytes, config: Path | None, target: str | None, host: str | None, port: int | None, workers: int | None
) -> Settings:
    """The file, what the command line says besides, and a demonstration where nobody says what to do."""
    from msgspec.structs import replace

    from semel.settings.loading import load
    from semel.settings.schema import Route

    settings = load(config, os.environ, content)
    said = {name: value for name, value in (("host", host), ("port", port), ("workers", workers)) if value is not None}
    if said:
        settings = replace(settings, server=replace(settings.server, **said))
    handles = any(endpoint.accept == "inbox" for endpoint in settings.endpoints)
    if target is None and not settings.routes and handles and not settings.sources:
        settings = replace(settings, routes=[Route(name="demonstration", topics=["**"], console=True)])
    return settings


def _refuse_broken(built: BuiltService) -> list[Fact]:
    """What doctor says of the store, of sources and of brokers: a service that could only answer 503, or that a person
    has to change before it can take anything, is better not started. Returns the facts of the store."""
    import asyncio

    from semel.cli.doctor import OUT_OF_REACH, diagnose, diagnose_sources
    from semel.settings.checks import refuse

    async def look() -> list[Fact]:
        try:
            facts, findings = await diagnose(built.app.ledger)
            refuse(findings)
            _, findings = await diagnose_sources(built.settings, built.sources, built.publishers)
            refuse([finding for finding in findings if OUT_OF_REACH not in finding.what])
            for finding in findings:
                if OUT_OF_REACH in finding.what:  # webhooks need not wait for that, and it is tried again
                    print(f"warning: {finding.what}: going on without it, and trying again", file=sys.stderr)
            return facts
        finally:
            await built.app.close()

    return asyncio.run(look())


def _listen(settings: Settings) -> socket.socket:
    from semel.service.server import listen
    from semel.values.errors import ConfigError

    server = settings.server
    try:
        return listen(server.host, server.port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {error.strerror or error}. Say another --port, or end what "
            "is there"
        ) from None


def _introduce(settings: Settings, ledger: str, handlers: Sequence[Handler], listening: socket.socket) -> None:
    """What runs where, and the line to try it with. On stderr: stdout belongs to the handlers."""
    from semel import __version__
    from semel.settings.urls import shown

    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    lines = [f"Semel {__version__} on {url}, ledger {ledger}"]
    for endpoint in settings.endpoints:
        verified = endpoint.verify.scheme if endpoint.verify is not None else "not verified"
        accepted = endpoint.mode if endpoint.accept == "inbox" else f"handed on to {endpoint.accept}"
        lines.append(f"  POST {endpoint.path}  {accepted}, {verified}")
    for source in settings.sources:
        taken = source.takes_from if source.kind != "sqs" else source.takes_from.rpartition("/")[2]
        lines.append(f"  {source.label}  {source.kind} {taken}, {source.workers} workers")
    for name, provider in settings.providers.items():
        how = f"  {name}  sends by {provider.kind}" + ("" if settings.outbox.relay else ", but not here: relay = false")
        lines.append(how)
        if provider.callbacks is not None:
            verified = provider.callbacks.verify.scheme if provider.callbacks.verify is not None else "not verified"
            lines.append(f"  POST {provider.callbacks.path}  callbacks of {name}, {verified}")
    for handler in handlers:
        topics = ", ".join(pattern.text for pattern in handler.patterns)
        lines.append(f"  {handler.name}: {topics} → Python, {handler.effect}")
    for route in settings.routes:
        named = route.console or route.forward in settings.destinations
        where = "console" if route.console else route.forward if named else shown(route.forward)
        lines.append(f"  {route.name}: {', '.join(route.topics)} → {where}")
    if not handlers and any(endpoint.verify is None for endpoint in settings.endpoints):
        path = next(endpoint.path for endpoint in settings.endpoints if endpoint.verify is None)
        lines += ["Try it, twice:", f"  curl -i {url}{path} -d '{SAMPLE}'"]
    print("\n".join(lines), file=sys.stderr, flush=True)


def _routes(settings: Settings) -> set[str]:
    return {route.name for route in settings.routes}


def _shown(settings: Settings) -> str:
    from semel.cli.ledger_place import Place

    return str(Place(settings.ledger, settings.dead_letters))


def _told(app: Semel, facts: list[Fact]) -> str:
    """Where the ledger of an app is, and its letters: the first thing that a store tells of itself, without secrets."""
    name = app.ledger.traits.name
    where = facts[0].value if facts else ""
    dead_letters = next((f", letters in {fact.value}" for fact in facts if fact.name.startswith("letters, ")), "")
    return (where if where.startswith(name) else f"{name} {where}".rstrip()) + dead_letters


def _again(
    target: str | None, config: Path | None, host: str | None, port: int | None, workers: int | None
) -> list[str]:
    """The same command line, for a worker."""
    options = {"--config": config, "--host": host, "--port": port, "--workers": workers}
    said = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return [*([target] if target is not None else []), *said]
