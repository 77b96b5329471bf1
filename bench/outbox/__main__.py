"""The command: `python -m bench.outbox` at the root of the repository."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from bench.outbox.plan import FULL, QUICK
from bench.outbox.report import as_json, as_table, legend
from bench.outbox.rounds import STORES, run
from rich.console import Console

WIDTH = 132  # of a table in a file


def main(
    only: Annotated[str, typer.Option(help="Which stores, with commas between.")] = ",".join(STORES),
    rounds: Annotated[
        int | None, typer.Option(min=1, max=100, help=f"Each scenario is measured once in each; {FULL.rounds}.")
    ] = None,
    finished: Annotated[
        int | None,
        typer.Option(min=1_000, max=100_000_000, help=f"Messages that are over, in a full outbox; {FULL.finished:,}."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round, and less in it: seconds, and less certain.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Where the data go; by default the temporary folder."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="All numbers, for programs.")] = False,
) -> None:
    """Measure what a message costs on its way out, against the loop that one would write by hand, in the same run.

    Aims are ratios within one round; a missed one says "below" and is no error. Name a --folder on a real disk if
    temporary files are in memory here: commits would cost nothing there.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in STORES]:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected some of {', '.join(STORES)}", param_hint="--only")
    sizes = QUICK if quick else FULL
    sizes = replace(sizes, rounds=rounds or sizes.rounds, finished=finished or sizes.finished)
    report = run(sizes, names, folder, Console(stderr=True))
    if json:
        typer.echo(as_json(report))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for store in report.stores:
        console.print(as_table(store))
    typer.echo(legend(report))


if __name__ == "__main__":
    typer.run(main)
