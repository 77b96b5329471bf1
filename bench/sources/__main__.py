"""The command: `python -m bench.sources` at the root of the repository."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import typer
from bench.sources import kafka, sqs
from bench.sources.plan import FULL, QUICK, Open
from bench.sources.rounds import run
from bench.stores.report import as_json, as_table, legend
from rich.console import Console

WIDTH = 132  # of a table in a file

PARTS: Mapping[str, Open] = {
    "sqs": sqs.opened,
    "kafka": kafka.opened,
}


def main(
    only: Annotated[str, typer.Option(help="Which parts, with commas between.")] = ",".join(PARTS),
    rounds: Annotated[
        int | None, typer.Option(min=1, max=100, help=f"Each scenario is measured once in each; {FULL.rounds}.")
    ] = None,
    messages: Annotated[
        int | None, typer.Option(min=12_000, max=10_000_000, help=f"Of one measure in batches; {FULL.messages:,}.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round, and less in it: seconds, and less certain.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="All numbers, for programs.")] = False,
) -> None:
    """Measure what Semel adds to messages of a queue, against the loop that one would write by hand, in the same run.

    Aims that are missed say "below", and are no error.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected some of {', '.join(PARTS)}", param_hint="--only")
    sizes = QUICK if quick else FULL
    sizes = replace(sizes, rounds=rounds or sizes.rounds, messages=messages or sizes.messages)
    report = run({name: PARTS[name] for name in names}, sizes, Console(stderr=True))
    if json:
        typer.echo(as_json(report))
        return
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for part in report.stores:
        console.print(as_table(part))
    typer.echo(legend(report))


if __name__ == "__main__":
    typer.run(main)
