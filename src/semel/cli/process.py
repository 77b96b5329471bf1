"""`semel process`: backfill and replay, from files and standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import nullcontext, redirect_stdout, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from semel.app import Semel
from semel.cli import process_dry_run
from semel.cli.app_importer import find_app
from semel.cli.bulk_decision import operator
from semel.cli.doctor import diagnose
from semel.cli.options import Json
from semel.cli.process_input import STDIN, Input, look_at
from semel.cli.process_report import ProcessReport, as_json, as_table, shown
from semel.cli.process_run import Begun, Forcing, ProcessOptions, Run, begin
from semel.core.crash_points import Observer
from semel.ports import DeadLetters
from semel.service.assembly import BuiltService, build
from semel.settings.checks import check, facts_of, refuse, store_facts
from semel.settings.loading import load
from semel.settings.schema import Settings
from semel.values.errors import ConfigError

PROCESS = """Process events from files or from standard input, each effect once.

A file has one event on each line, or events one after the other in any
layout, or one list of them; packed with gzip or not. The app is that of the
settings, as for `semel run`, or one written in Python: --app module:app.

What is settled is kept beside each file, in FILE.semel-progress: after an end
of any kind --resume goes on there. Ctrl-C finishes the batch in hand.

Exit codes: 0, every event ended well (done, duplicate, stale or ignored). 1,
something did not: it is dead, uncertain, in conflict, no event, or not
settled. 2, the command cannot work as given. 130, it was interrupted.
"""


class OnError(StrEnum):
    skip = "skip"
    stop = "stop"


Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Files with events; - for standard input.")]
Target = Annotated[str | None, typer.Option("--app", metavar="MODULE:APP", help="An app written in Python.")]
Config = Annotated[Path | None, typer.Option("-c", "--config", help="Settings; by default semel.toml, if it is here.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an earlier run ended.")]
ProgressAt = Annotated[
    Path | None, typer.Option("--progress", metavar="PATH", help="Where progress is kept, of one file.")
]
RejectsAt = Annotated[
    Path | None, typer.Option("--rejects", metavar="PATH", help="Add what is no event to this file, with its reason.")
]
OnErrorOption = Annotated[OnError, typer.Option(help="What is no event: skip it, and tell; or stop before it.")]
Patience = Annotated[
    float, typer.Option(min=0, max=86_400, metavar="S", help="Seconds for which an event is tried again; then left.")
]
Rate = Annotated[float | None, typer.Option(min=0.01, max=1_000_000, help="At most so many events a second.")]
Most = Annotated[int | None, typer.Option("--limit", min=1, help="Only so many events.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and write nothing.")]
Tenant = Annotated[str, typer.Option(help="Whose events these are; part of every key.")]
Origin = Annotated[str, typer.Option(help="The platform that made them, where they do not say.")]
Endpoint = Annotated[
    str, typer.Option(metavar="PATH", help="The endpoint that takes them, if it verifies or has an id_path.")
]
IdPath = Annotated[str | None, typer.Option(metavar="PATH", help="Where any JSON has its id, such as data.id.")]
TypePath = Annotated[str | None, typer.Option(metavar="PATH", help="And its type; needs --id-path.")]
Force = Annotated[bool, typer.Option("--force", help="Run again what had succeeded: its effect happens once more.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for --force; kept with each decision.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who, for --force; by default you, at this machine.")]


def register(app: typer.Typer) -> None:
    app.command(name="process", help=PROCESS)(process)


def process(
    files: Files,
    target: Target = None,
    config: Config = None,
    resume: Resume = False,
    progress: ProgressAt = None,
    rejects: RejectsAt = None,
    on_error: OnErrorOption = OnError.skip,
    patience: Patience = 120.0,
    rate: Rate = None,
    limit: Most = None,
    dry_run: DryRun = False,
    tenant: Tenant = "",
    origin: Origin = "",
    endpoint: Endpoint = "",
    id_path: IdPath = None,
    type_path: TypePath = None,
    force: Force = False,
    reason: Reason = "",
    by: By = "",
    as_json: Json = False,
) -> None:
    ask = ProcessRequest(
        files=files,
        target=target,
        config=config,
        origin=origin,
        endpoint=endpoint,
        id_path=id_path,
        type_path=type_path,
        force=force,
        reason=reason.strip(),
        by=by.strip(),
        as_json=as_json,
        options=ProcessOptions(
            tenant=tenant,
            resume=resume,
            progress=progress,
            rejects=rejects,
            on_error=on_error.value,
            patience_s=patience,
            rate=rate,
            most=limit,
        ),
    )
    raise typer.Exit(preview(ask) if dry_run else run(ask))


# From the command line to the run: what is wrong is told before anything is done.

OF_WEBHOOKS = ("access", "drain", "inbox", "inline")  # checks that say nothing about files


class ProcessRequest(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    files: list[str]
    target: str | None = None
    config: Path | None = None
    origin: str = ""
    endpoint: str = ""
    id_path: str | None = None
    type_path: str | None = None
    force: bool = False
    reason: str = ""
    by: str = ""
    as_json: bool = False
    options: ProcessOptions = ProcessOptions()


def run(ask: ProcessRequest, observe: Observer | None = None) -> int:
    """Returns the exit code. Raises ConfigError."""
    inputs = _inputs(ask)
    built = _built(ask)
    # What handlers print must not come to stand in the middle of a JSON document.
    with shown(ask.as_json) as show, redirect_stdout(sys.stderr) if ask.as_json else nullcontext():
        try:
            report = asyncio.run(_run(built, ask, inputs, show, observe))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # the second one
    if ask.as_json:
        print(as_json(report))
    else:
        Console().print(as_table(report))
    return report.code


def preview(ask: ProcessRequest) -> int:
    """Returns the exit code: 1 where a body is no event, or an event has no key. Raises ConfigError."""
    inputs = _inputs(ask)
    built = _built(ask)
    as_line = process_dry_run.as_json_line if ask.as_json else process_dry_run.as_line

    async def look() -> dict[str, int]:
        try:
            options = replace(ask.options, decode_options=_decode_options(built.app, ask))
            ledger = built.app.ledger if _is_there(built.app) else None
            return await process_dry_run.would(built.app, ledger, inputs, options, lambda one: print(as_line(one)))
        finally:
            await _close(built)

    counts = asyncio.run(look())
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "no events"
    print(f"{told}. Nothing was done.", file=sys.stderr)
    return 1 if counts.get("malformed") or counts.get(process_dry_run.WITHOUT_KEY) else 0


async def _run(
    built: BuiltService, ask: ProcessRequest, inputs: list[Input], show: Any, observe: Observer | None
) -> ProcessReport:
    app = built.app
    try:
        where = await _refuse_broken_store(app)
        work = _work_of(app, ask, where)
        begun = [begin(given, ask.options, work) for given in inputs]
        _tell_of_earlier(begun, ask.options)
        options = replace(ask.options, decode_options=_decode_options(app, ask), forcing=_forcing(app, ask, begun))
        running = Run(app, options, work, show, observe)
        with _Signals(running):
            return await running.run(begun)
    finally:
        await _close(built)


async def _close(built: BuiltService) -> None:
    await built.close()
    await built.app.close()


# ------------------------------------------------------------------------------------------------ what is wrong


def _inputs(ask: ProcessRequest) -> list[Input]:
    if ask.files.count(STDIN) > 1:
        raise ConfigError("-: standard input can be read once")
    if ask.options.progress is not None and len(ask.files) > 1:
        raise ConfigError("--progress is kept for one file; leave it out, and each has its own beside it")
    if ask.type_path is not None and ask.id_path is None:
        raise ConfigError("--type-path needs --id-path: without an id, two events could not be told apart")
    if ask.force and not ask.reason:
        raise ConfigError('--force repeats effects: say why, --reason "…"; it is kept with each event')
    if ask.reason and not ask.force:
        raise ConfigError("--reason is kept with what --force runs again; without it there is nothing to keep it with")
    _refuse_overwriting(ask)
    return [look_at(name) for name in ask.files]


def _refuse_overwriting(ask: ProcessRequest) -> None:
    """What is written must not be what is read: rejects would be read and rejected again, for ever."""
    written = {"--rejects": ask.options.rejects, "--progress": ask.options.progress}
    read = {Path(name).resolve() for name in ask.files if name != STDIN}
    for option, path in written.items():
        if path is not None and path.resolve() in read:
            raise ConfigError(f"{option} {path}: this is the file that is read; name another one")
    named = [path.resolve() for path in written.values() if path is not None]
    if len(set(named)) < len(named):
        raise ConfigError("--rejects and --progress name the same file")


def _built(ask: ProcessRequest) -> BuiltService:
    settings: Settings = load(ask.config, os.environ)
    app = find_app(ask.target) if ask.target is not None else None
    try:
        built = build(settings, app)
    except ImportError as error:
        raise ConfigError(f"forwarding needs {error.name}: pip install 'semel[service]'") from None
    if not built.app.handlers:
        raise ConfigError(
            "nothing would be done: the settings have no routes. Name an app written in Python, --app module:app, or "
            "write [[routes]]"
        )
    found = check(settings, facts_of(built.app.handlers), store_facts(built.app.ledger))
    refuse([finding for finding in found if finding.check not in OF_WEBHOOKS])
    return built


async def _refuse_broken_store(app: Semel) -> str:
    """As for `semel run`. Returns where the ledger is, without secrets."""
    facts, findings = await diagnose(app.ledger)
    refuse(findings)
    return f"{app.ledger.traits.name} {facts[0].value}" if facts else app.ledger.traits.name


def _forcing(app: Semel, ask: ProcessRequest, begun: list[Begun]) -> Forcing | None:
    if not ask.force:
        return None
    ledger: Any = app.ledger
    if not isinstance(app.ledger, DeadLetters):
        raise ConfigError(f"--force: {app.ledger.traits.name} keeps no decisions; nothing can be run again on it")
    earlier = {one.done.began_ms: one.given.name for one in begun if one.done is not None and one.done.began_ms}
    if len(earlier) > 1:
        raise ConfigError(
            f"--resume: {' and '.join(earlier.values())} were begun by different runs with --force; as one, they could "
            "run again what was run again already: resume them one by one"
        )
    began_ms = next(iter(earlier), time.time_ns() // 1_000_000)
    return Forcing(ledger, ask.reason, ask.by or operator(), began_ms)


# ---------------------------------------------------------------------------------------------------- what is meant


def _decode_options(app: Semel, ask: ProcessRequest) -> Any:
    """The app's own, with what the command line says besides."""
    said = {
        "origin": ask.origin,
        "default_origin": ask.endpoint,
        "id_path": ask.id_path,
        "type_path": ask.type_path,
    }
    given = {name: value for name, value in said.items() if value}
    return replace(app._decode_options, **given) if given else None


def _work_of(app: Semel, ask: ProcessRequest, where: str) -> dict[str, str]:
    """For whom a file is settled: what is not the same has not seen it."""
    told = {
        "ledger": where,
        "tenant": ask.options.tenant,
        "origin": ask.origin,
        "endpoint": ask.endpoint,
        "id path": ask.id_path or "",
        "type path": ask.type_path or "",
        "set of handlers": ", ".join(sorted(handler.name for handler in app.handlers)),
        "--force": "yes" if ask.force else "",
    }
    return {name: value for name, value in told.items() if value}


def _tell_of_earlier(begun: list[Begun], options: ProcessOptions) -> None:
    for one in begun:
        if options.resume and one.progress is not None and one.done is None:
            print(f"{one.given.name}: no progress is kept in {one.progress}; it begins at its start", file=sys.stderr)
        elif not options.resume and one.progress is not None and one.progress.exists():
            print(
                f"{one.given.name}: it begins at its start, although {one.progress} is there; --resume would go on",
                file=sys.stderr,
            )
        elif one.given.name == STDIN and sys.stdin.isatty():
            print("Type or paste events; Ctrl-D ends them.", file=sys.stderr)


def _is_there(app: Semel) -> bool:
    """Looking into a SQLite ledger would make its file."""
    path = getattr(app.ledger, "_path", None)
    return not isinstance(path, str) or os.path.exists(path)


class _Signals:
    """The first Ctrl-C, or SIGTERM, finishes the batch in hand; the second one does not wait."""

    def __init__(self, running: Run) -> None:
        self._running = running
        self._task = asyncio.current_task()

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread, or not here
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._told)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _told(self) -> None:
        if self._running.report.interrupted and self._task is not None:
            self._task.cancel()
            return
        print("finishing the batch in hand; once more ends at once", file=sys.stderr)
        self._running.interrupt()
