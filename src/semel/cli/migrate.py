"""`semel migrate`: make the stores of a deployment ready, before a new version of Semel uses them."""

from __future__ import annotations

from typing import Annotated

import typer

from semel.cli.options import Config, Json, Ledger

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]

HELP = """Make the ledger ready: its tables, in the version that this Semel needs.

Forward only, safe while services use the store, and does everything once,
however often and by however many it is called. It needs more rights than
a service does, so a service never does this by itself.

Exit codes: 0, everything is ready. 1, something is still to be done: also of
--dry-run. 2, the store cannot be reached or used as given.
"""


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(migrate)


def migrate(ledger: Ledger = None, config: Config = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    import asyncio

    from semel.cli.operating import migrating
    from semel.cli.operating.place import place
    from semel.values.errors import SemelError

    try:
        report = asyncio.run(migrating.run(place(ledger, config), dry_run))
    except SemelError as error:
        if not as_json:
            raise
        typer.echo(migrating.refusal_as_json(error))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(migrating.as_json(report))
    else:
        from rich.console import Console

        Console().print(migrating.as_tables(report))
    raise typer.Exit(0 if report.ready else 1)
