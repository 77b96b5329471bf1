"""From the command line to the run: what is wrong is told before anything is done."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console

from semel.app import Semel
from semel.cli.processing import dry_run as dry
from semel.cli.processing.forcing import Forcing
from semel.cli.processing.opening import STDIN, Input, look_at
from semel.cli.processing.report import Report, as_json, as_table
from semel.cli.processing.running import Begun, Options, Run, begin
from semel.cli.processing.showing import shown
from semel.core.boundaries import Observer
from semel.ports import Letters
from semel.service.building import Built, build
from semel.settings.schema import Settings
from semel.values.errors import ConfigError

OF_WEBHOOKS = ("access", "drain", "inbox", "inline")  # checks that say nothing about files


class Ask(Struct, frozen=True, kw_only=True):
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
    options: Options = Options()


def run(ask: Ask, observe: Observer | None = None) -> int:
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


def dry_run(ask: Ask) -> int:
    """Returns the exit code: 1 where a body is no event, or an event has no key. Raises ConfigError."""
    inputs = _inputs(ask)
    built = _built(ask)
    as_line = dry.as_json_line if ask.as_json else dry.as_line

    async def look() -> dict[str, int]:
        try:
            options = replace(ask.options, reading=_reading(built.app, ask))
            ledger = built.app.ledger if _is_there(built.app) else None
            return await dry.would(built.app, ledger, inputs, options, lambda one: print(as_line(one)))
        finally:
            await _close(built)

    counts = asyncio.run(look())
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items()) or "no events"
    print(f"{told}. Nothing was done.", file=sys.stderr)
    return 1 if counts.get("malformed") or counts.get(dry.WITHOUT_KEY) else 0


async def _run(built: Built, ask: Ask, inputs: list[Input], show: Any, observe: Observer | None) -> Report:
    app = built.app
    try:
        where = await _refuse_broken_store(app)
        work = _work_of(app, ask, where)
        begun = [begin(given, ask.options, work) for given in inputs]
        _tell_of_earlier(begun, ask.options)
        options = replace(ask.options, reading=_reading(app, ask), forcing=_forcing(app, ask, begun))
        running = Run(app, options, work, show, observe)
        with _Signals(running):
            return await running.run(begun)
    finally:
        await _close(built)


async def _close(built: Built) -> None:
    await built.close()
    await built.app.close()


# ------------------------------------------------------------------------------------------------ what is wrong


def _inputs(ask: Ask) -> list[Input]:
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


def _refuse_overwriting(ask: Ask) -> None:
    """What is written must not be what is read: rejects would be read and rejected again, for ever."""
    written = {"--rejects": ask.options.rejects, "--progress": ask.options.progress}
    read = {Path(name).resolve() for name in ask.files if name != STDIN}
    for option, path in written.items():
        if path is not None and path.resolve() in read:
            raise ConfigError(f"{option} {path}: this is the file that is read; name another one")
    named = [path.resolve() for path in written.values() if path is not None]
    if len(set(named)) < len(named):
        raise ConfigError("--rejects and --progress name the same file")


def _built(ask: Ask) -> Built:
    from semel.cli.finding import find_app
    from semel.settings.checking import check, facts_of, refuse, store_facts
    from semel.settings.loading import load

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
    from semel.cli.doctor_view import diagnose
    from semel.settings.checking import refuse

    facts, findings = await diagnose(app.ledger)
    refuse(findings)
    return f"{app.ledger.traits.name} {facts[0][1]}" if facts else app.ledger.traits.name


def _forcing(app: Semel, ask: Ask, begun: list[Begun]) -> Forcing | None:
    if not ask.force:
        return None
    ledger: Any = app.ledger
    if not isinstance(app.ledger, Letters):
        raise ConfigError(f"--force: {app.ledger.traits.name} keeps no decisions; nothing can be run again on it")
    from semel.cli.operating.deciding import who

    earlier = {one.done.began_ms: one.given.name for one in begun if one.done is not None and one.done.began_ms}
    if len(earlier) > 1:
        raise ConfigError(
            f"--resume: {' and '.join(earlier.values())} were begun by different runs with --force; as one, they could "
            "run again what was run again already: resume them one by one"
        )
    began_ms = next(iter(earlier), time.time_ns() // 1_000_000)
    return Forcing(ledger, ask.reason, ask.by or who(), began_ms)


# ---------------------------------------------------------------------------------------------------- what is meant


def _reading(app: Semel, ask: Ask) -> Any:
    """The app's own, with what the command line says besides."""
    said = {
        "origin": ask.origin,
        "default_origin": ask.endpoint,
        "id_path": ask.id_path,
        "type_path": ask.type_path,
    }
    given = {name: value for name, value in said.items() if value}
    return replace(app._reading, **given) if given else None


def _work_of(app: Semel, ask: Ask, where: str) -> dict[str, str]:
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


def _tell_of_earlier(begun: list[Begun], options: Options) -> None:
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
