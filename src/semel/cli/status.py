"""`semel status`: what the ledger holds, what waits, and what wants a person."""

from __future__ import annotations

import typer

from semel.cli.options import Config, Json, Ledger


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(ledger: Ledger = None, config: Config = None, as_json: Json = False) -> None:
    """Show what is in which state, what waits, and what wants a person.

    Reading changes nothing, and can be done while a service runs.
    """
    import asyncio

    from semel.cli.operating import breakers, status_view
    from semel.cli.operating.place import place

    found = asyncio.run(status_view.look(place(ledger, config)))
    service = breakers.heard(ledger, config)
    if as_json:
        typer.echo(status_view.as_json(found, service))
    else:
        from rich.console import Console

        Console().print(status_view.as_tables(found, service))
