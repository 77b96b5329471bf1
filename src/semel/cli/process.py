"""`semel process`: backfill and replay, from files and standard input."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from semel.cli.options import Json

PROCESS = """Process events of files, or of standard input (-), each effect once.

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
    from semel.cli.processing import command
    from semel.cli.processing.running import Options

    ask = command.Ask(
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
        options=Options(
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
    raise typer.Exit(command.dry_run(ask) if dry_run else command.run(ask))
