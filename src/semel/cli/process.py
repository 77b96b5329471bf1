"""`semel process`: runs events from files and standard input through an app."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from semel.app import Semel
from semel.cli.app_importer import find_app
from semel.cli.bulk_decision import operator
from semel.cli.describe import brief_ids, cut, instant_ms, iso, plain, short
from semel.cli.doctor import diagnose
from semel.cli.options import Json
from semel.cli.process_input import STDIN, Input, find_input
from semel.cli.process_report import ProcessReport, Show, as_table, progress_display, to_json
from semel.cli.process_run import COUNTED_AS, NEW, WITHOUT_KEY, FileRun, Force, Preview, ProcessOptions, preview
from semel.core.crash_points import Observer
from semel.ports import DeadLetters
from semel.service.assembly import BuiltService, build
from semel.settings.checks import check, facts_of, refuse, store_facts
from semel.settings.loading import load
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions

EVENT_SHOWN_CHARS = 60
WEBHOOK_CHECKS = ("access", "drain", "inbox", "inline")  # checks of settings that do not concern files

HELP = """Process events from files or from standard input, each effect once.

A file has one event on each line, or events one after the other in any
layout, or one list of them; compressed with gzip or not. The app is that of
the settings, as for `semel run`, or one written in Python: --app module:app.

A second run is harmless: settled events are duplicates. Ctrl-C finishes the
current batch; run the same command again to process the rest.

Exit codes: 0, every event was successful (done, duplicate, stale or ignored).
1, an event was not: it is dead, uncertain, in conflict, malformed or not
settled. 2, the command is invalid. 130, it was interrupted.
"""


class OnError(StrEnum):
    skip = "skip"
    stop = "stop"


def register(app: typer.Typer) -> None:
    app.command(name="process", help=HELP)(process)


def process(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Files with events; - for standard input.")],
    target: Annotated[str | None, typer.Option("--app", metavar="MODULE:APP", help="An app written in Python.")] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="The settings; by default semel.toml, if it exists.")
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Append documents that are not events to this file, with the reason."),
    ] = None,
    on_error: Annotated[
        OnError, typer.Option(help="For a document that is not an event: skip and report it, or stop before it.")
    ] = OnError.skip,
    patience: Annotated[
        float,
        typer.Option(min=0, max=86_400, metavar="S", help="Seconds for which an event is retried; then it is left."),
    ] = 120.0,
    rate: Annotated[float | None, typer.Option(min=0.01, max=1_000_000, help="At most this many events a second.")] = (
        None
    ),
    limit: Annotated[int | None, typer.Option(min=1, help="Only this many events.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what each event would do, and write nothing.")] = (
        False
    ),
    tenant: Annotated[str, typer.Option(help="The tenant of these events; part of every key.")] = "",
    origin: Annotated[str, typer.Option(help="The platform that sent them, if they do not name it.")] = "",
    endpoint: Annotated[
        str, typer.Option(metavar="PATH", help="The endpoint that takes them, if it verifies or has an id_path.")
    ] = "",
    id_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="The field with the id, for any JSON, such as data.id.")
    ] = None,
    type_path: Annotated[
        str | None, typer.Option(metavar="PATH", help="The field with the type; needs --id-path.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run events again that have succeeded: their effects are repeated.")
    ] = False,
    before: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="With --force: only events that succeeded before TIME; by default the start of the run.",
        ),
    ] = "",
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason for --force; kept with each event.")] = "",
    by: Annotated[str, typer.Option(metavar="NAME", help="The author for --force; by default you.")] = "",
    as_json: Json = False,
) -> None:
    request = ProcessRequest(
        files=files,
        target=target,
        config=config,
        origin=origin,
        endpoint=endpoint,
        id_path=id_path,
        type_path=type_path,
        force=force,
        before=before,
        reason=reason.strip(),
        by=by.strip(),
        as_json=as_json,
        options=ProcessOptions(
            tenant=tenant,
            rejects=rejects,
            stop_on_error=on_error is OnError.stop,
            patience_s=patience,
            rate=rate,
            limit=limit,
        ),
    )
    raise typer.Exit(run_dry(request) if dry_run else run(request))


class ProcessRequest(Struct, frozen=True, kw_only=True):
    """The command line."""

    files: list[str]
    target: str | None = None
    config: Path | None = None
    origin: str = ""
    endpoint: str = ""
    id_path: str | None = None
    type_path: str | None = None
    force: bool = False
    before: str = ""
    reason: str = ""
    by: str = ""
    as_json: bool = False
    options: ProcessOptions = ProcessOptions()


def run(request: ProcessRequest, observe: Observer | None = None) -> int:
    """Returns the exit code. Raises ConfigError."""
    inputs = _checked_inputs(request)
    built = _build(request)
    # Handlers may print: with --json, stdout contains only the document.
    with progress_display(request.as_json) as show, redirect_stdout(sys.stderr) if request.as_json else nullcontext():
        try:
            report = asyncio.run(_run(built, request, inputs, show, observe))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # the second signal
    if request.as_json:
        print(to_json(report))
    else:
        Console().print(as_table(report))
    return report.exit_code


async def _run(
    built: BuiltService, request: ProcessRequest, inputs: list[Input], show: Show, observe: Observer | None
) -> ProcessReport:
    app = built.app
    try:
        _, findings = await diagnose(app.ledger)
        refuse(findings)
        force = _force(app, request)
        options = replace(request.options, decode_options=_decode_options(app, request))
        if any(source.name == STDIN for source in inputs) and sys.stdin.isatty():
            print("Type or paste events; Ctrl-D ends them.", file=sys.stderr)
        file_run = FileRun(app, options, show, force, observe)
        with _signals(file_run):
            return await file_run.run(inputs)
    finally:
        await built.close()
        await app.close()


def run_dry(request: ProcessRequest) -> int:
    """Returns the exit code: 1 if a document is not an event, or an event has no key. Raises ConfigError."""
    inputs = _checked_inputs(request)
    built = _build(request)
    app = built.app
    path = getattr(app.ledger, "_path", None)  # to read a SQLite ledger would create its file
    ledger = app.ledger if not isinstance(path, str) or os.path.exists(path) else None

    async def look() -> dict[str, int]:
        try:
            options = replace(request.options, decode_options=_decode_options(app, request))
            return await preview(app, ledger, inputs, options, show)
        finally:
            await built.close()
            await app.close()

    def show(line: Preview) -> None:
        print(json.dumps(msgspec.to_builtins(line)) if request.as_json else _preview_line(line))

    counts = asyncio.run(look())
    summary = ", ".join(f"{count:,} {status}" for status, count in counts.items()) or "no events"
    print(f"{summary}. Nothing was done.", file=sys.stderr)
    return 1 if counts.get("malformed") or counts.get(WITHOUT_KEY) else 0


def _preview_line(line: Preview) -> str:
    position = f"{plain(line.file)}:{line.line}"
    if not line.handler:
        return f"{position}  {line.state}: {plain(line.reason)}"
    event = cut(brief_ids(plain(line.event)), EVENT_SHOWN_CHARS)
    state = "would run" if line.state == NEW else f"{line.state} already" if line.state in COUNTED_AS else line.state
    reason = f"  {plain(line.reason)}" if line.reason else ""
    return f"{position}  {state}  {line.handler}  {short(line.key)}  {event}{reason}"


def _checked_inputs(request: ProcessRequest) -> list[Input]:
    if request.files.count(STDIN) > 1:
        raise ConfigError("-: standard input can be read once")
    if request.type_path is not None and request.id_path is None:
        raise ConfigError("--type-path needs --id-path: without an id, two events cannot be distinguished")
    if request.force and not request.reason:
        raise ConfigError('--force repeats effects: give the reason, --reason "…"; it is kept with each event')
    if (request.reason or request.before) and not request.force:
        raise ConfigError("--reason and --before need --force")
    rejects = request.options.rejects
    # Otherwise rejects would be read and rejected again, without end.
    if rejects is not None and rejects.resolve() in {Path(name).resolve() for name in request.files if name != STDIN}:
        raise ConfigError(f"--rejects {rejects}: this is the file that is read; name another one")
    return [find_input(name) for name in request.files]


def _build(request: ProcessRequest) -> BuiltService:
    settings = load(request.config, os.environ)
    app = find_app(request.target) if request.target is not None else None
    try:
        built = build(settings, app)
    except ImportError as error:
        raise ConfigError(f"forwarding needs {error.name}: pip install 'semel[service]'") from None
    if not built.app.handlers:
        raise ConfigError(
            "nothing to do: the settings have no routes. Name an app written in Python, --app module:app, or write "
            "[[routes]]"
        )
    findings = check(settings, facts_of(built.app.handlers), store_facts(built.app.ledger))
    refuse([finding for finding in findings if finding.check not in WEBHOOK_CHECKS])
    return built


def _force(app: Semel, request: ProcessRequest) -> Force | None:
    if not request.force:
        return None
    ledger: Any = app.ledger
    if not isinstance(app.ledger, DeadLetters):
        raise ConfigError(f"--force: {app.ledger.traits.name} keeps no decisions; nothing can be run again on it")
    before_ms = now_ms = time.time_ns() // 1_000_000
    if request.before:
        try:
            before_ms = instant_ms(request.before, now_ms)
        except ValueError as error:
            raise ConfigError(f"--before {error}") from None
    print(f"Forced run. To repeat it after a crash: the same command with --before {iso(before_ms)}", file=sys.stderr)
    return Force(ledger, request.reason, request.by or operator(), before_ms)


def _decode_options(app: Semel, request: ProcessRequest) -> DecodeOptions | None:
    """The app's decode options with those of the command line."""
    options = {
        "origin": request.origin,
        "default_origin": request.endpoint,
        "id_path": request.id_path,
        "type_path": request.type_path,
    }
    changes: dict[str, Any] = {name: value for name, value in options.items() if value}
    return replace(app._decode_options, **changes) if changes else None


@contextmanager
def _signals(file_run: FileRun) -> Iterator[None]:
    """The first SIGINT or SIGTERM finishes the current batch; the second ends the run at once."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupt() -> None:
        if file_run.report.interrupted and task is not None:
            task.cancel()
            return
        print("finishing the current batch; a second signal ends at once", file=sys.stderr)
        file_run.interrupt()

    with suppress(NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
    try:
        yield
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
