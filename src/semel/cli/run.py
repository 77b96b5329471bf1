"""`semel run`: the service."""

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
        Path | None, typer.Option("-c", "--config", help="Settings file; by default semel.toml in this folder.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; by default 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; by default 8080; 0: any free port.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that share the port and the ledger.")
    ] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the service: take webhooks, consume sources, forward events, serve the HTTP API.

    Without settings and without an app it is a demonstration: it writes each event at /events to the console once.
    After SIGTERM it finishes the events in flight; all others stay in the ledger or at their source. A second signal
    ends it at once.
    """
    from semel.cli.app_importer import find_app
    from semel.cli.ledger_place import Place
    from semel.settings.loading import source

    try:
        from semel.service import process
    except ImportError as error:
        from semel.values.errors import ConfigError

        raise ConfigError(f"the service needs {error.name}: pip install 'semel[service]'") from None

    inherited = worker.split(",", 3) if worker is not None else None
    content = source(config, os.environ) if inherited is None else _inherited_settings(int(inherited[2]))
    settings = _settings(content, config, target, host, port, workers)
    app = find_app(target) if target is not None else None
    if inherited is not None:
        listening_fd, parent_fd, _, shared = inherited
        listening = socket.socket(fileno=int(listening_fd))
        process.run(*process.prepare(settings, app, shared), listening, int(parent_fd))
    prepared = process.prepare(settings, app)
    facts = _refuse_broken(prepared[0])
    ledger = str(Place(settings.ledger, settings.dead_letters)) if target is None else _location(prepared[0].app, facts)
    routes = {route.name for route in settings.routes}
    handlers = [handler for handler in prepared[0].app.handlers if handler.name not in routes]
    listening = _listen(settings)
    if settings.server.workers == 1:
        _introduce(settings, ledger, handlers, listening)
        process.run(*prepared, listening)
    from semel.service import logging
    from semel.service.supervisor import Supervisor

    server = settings.server
    logging.configure(server.log, server.log_level)
    arguments = ["run", *_arguments(target, config, host, port, workers)]
    supervisor = Supervisor(server.workers, arguments, content, listening, server.drain)
    raise typer.Exit(supervisor.run(lambda: _introduce(settings, ledger, handlers, listening)))


def _inherited_settings(fd: int) -> bytes:
    """The settings file as the supervisor read it. Workers share the descriptor, so its position must not move."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _settings(
    content: bytes, config: Path | None, target: str | None, host: str | None, port: int | None, workers: int | None
) -> Settings:
    """The settings file with the options of the command line; a demonstration route if there is nothing to run."""
    from msgspec.structs import replace

    from semel.settings.loading import load
    from semel.settings.schema import Route

    settings = load(config, os.environ, content)
    options = {"host": host, "port": port, "workers": workers}
    changes = {name: value for name, value in options.items() if value is not None}
    if changes:
        settings = replace(settings, server=replace(settings.server, **changes))
    handles = any(endpoint.accept == "inbox" for endpoint in settings.endpoints)
    if target is None and not settings.routes and handles and not settings.sources:
        settings = replace(settings, routes=[Route(name="demonstration", topics=["**"], console=True)])
    return settings


def _refuse_broken(built: BuiltService) -> list[Fact]:
    """Refuse to start with a store, source or broker that cannot work until an operator changes something.

    Returns the facts of the store.
    """
    import asyncio

    from semel.cli.doctor import OUT_OF_REACH, diagnose, diagnose_sources
    from semel.settings.checks import refuse

    async def examine() -> list[Fact]:
        try:
            facts, findings = await diagnose(built.app.ledger)
            refuse(findings)
            _, findings = await diagnose_sources(built.settings, built.sources, built.publishers)
            refuse([finding for finding in findings if OUT_OF_REACH not in finding.what])
            for finding in findings:
                if OUT_OF_REACH in finding.what:  # webhooks do not need it
                    print(f"warning: {finding.what}: starting without it, and retrying", file=sys.stderr)
            return facts
        finally:
            await built.app.close()

    return asyncio.run(examine())


def _listen(settings: Settings) -> socket.socket:
    from semel.service.server import listen
    from semel.values.errors import ConfigError

    server = settings.server
    try:
        return listen(server.host, server.port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {server.host}:{server.port}: {error.strerror or error}. Choose another --port, or stop "
            "the process that uses it"
        ) from None


def _introduce(settings: Settings, ledger: str, handlers: Sequence[Handler], listening: socket.socket) -> None:
    """Print the address, endpoints and routes, and a command to try them. On stderr: handlers write to stdout."""
    from semel import __version__
    from semel.settings.urls import shown

    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    lines = [f"Semel {__version__} on {url}, ledger {ledger}"]
    for endpoint in settings.endpoints:
        verified = endpoint.verify.scheme if endpoint.verify is not None else "not verified"
        accepted = endpoint.mode if endpoint.accept == "inbox" else f"forwarded to {endpoint.accept}"
        lines.append(f"  POST {endpoint.path}  {accepted}, {verified}")
    for source in settings.sources:
        queue = source.takes_from if source.kind != "sqs" else source.takes_from.rpartition("/")[2]
        lines.append(f"  {source.label}  {source.kind} {queue}, {source.workers} workers")
    for name, provider in settings.providers.items():
        elsewhere = "" if settings.outbox.relay else ", but not in this process: relay = false"
        lines.append(f"  {name}  sends by {provider.kind}{elsewhere}")
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


def _location(app: Semel, facts: list[Fact]) -> str:
    """The location of an app's ledger and of its dead letters, without secrets: the first fact of each store."""
    name = app.ledger.traits.name
    where = facts[0].value if facts else ""
    dead_letters = next(
        (f", dead letters in {fact.value}" for fact in facts if fact.name.startswith("dead letters, ")), ""
    )
    return (where if where.startswith(name) else f"{name} {where}".rstrip()) + dead_letters


def _arguments(
    target: str | None, config: Path | None, host: str | None, port: int | None, workers: int | None
) -> list[str]:
    """The same command line, for a worker."""
    options = {"--config": config, "--host": host, "--port": port, "--workers": workers}
    words = [word for option, value in options.items() if value is not None for word in (option, str(value))]
    return [*([target] if target is not None else []), *words]
