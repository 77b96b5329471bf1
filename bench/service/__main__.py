"""The command: `python -m bench.service` at the root of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from bench.service.report import as_document, as_table, legend, run
from rich.console import Console

ROUNDS, SECONDS, WARM_S = 5, 3.0, 1.0
QUICK_ROUNDS, QUICK_SECONDS, QUICK_WARM_S = 1, 1.0, 0.3


def main(
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=100, help=f"Each round measures every scenario once; {ROUNDS} by default."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, max=60, help=f"Duration of one measurement; {SECONDS:g} by default.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second by default: less certain.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder of the databases; the system's temporary folder by default."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Measure the service on this machine, against the same server without it.

    Targets are ratios of rates within one round. A missed target is marked "below" and is no error. Pass a --folder on
    a real disk if temporary files are kept in memory: commits would cost nothing there. Needs Linux and about 1 GB.
    """
    report = run(
        rounds or (QUICK_ROUNDS if quick else ROUNDS),
        seconds or (QUICK_SECONDS if quick else SECONDS),
        QUICK_WARM_S if quick else WARM_S,
        folder,
        Console(stderr=True),
    )
    if json:
        typer.echo(as_document(report))
        return
    Console().print(as_table(report))
    typer.echo(legend(report))


if __name__ == "__main__":
    typer.run(main)
