"""`semel doctor`: what is promised, what was looked at, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.options import Ledger

if TYPE_CHECKING:
    from semel.cli.doctor_view import Report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:APP]", help="An app written in Python, whose handlers run too.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Settings; by default semel.toml, if it is here.")
    ] = None,
    ledger: Ledger = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Say what is promised, check that the settings keep it, and connect to what they name.

    Prints the guarantee of each route in one line, and what to change where something is wrong.
    Ends with exit code 1 if there is an error, and with 2 if the settings cannot be used at all.
    """
    from rich.console import Console

    from semel.cli import doctor_view
    from semel.values.errors import SemelError

    try:
        report = examine(target, config) if ledger is None else examine_ledger(ledger, target, config)
    except SemelError as error:
        if not as_json:
            raise
        typer.echo(doctor_view.refusal_as_json(error))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(doctor_view.as_json(report))
    else:
        doctor_view.show(report, Console())
    raise typer.Exit(0 if report.ok else 1)


def examine(target: str | None, config: Path | None) -> Report:
    """Load, build and look, without starting anything. Raises SemelError where there is nothing to look at."""
    import asyncio
    import os

    from semel.cli.doctor_view import report
    from semel.cli.finding import find_app
    from semel.cli.operating.place import make_read_only
    from semel.service.building import build, doors
    from semel.settings.checking import facts_of
    from semel.settings.loading import load

    settings = load(config, os.environ)
    built = build(settings, find_app(target) if target is not None else None)
    doors(settings, providers=built.providers)  # a verifier has its own opinion of its secrets

    make_read_only(built.app.ledger)

    async def look() -> Report:
        app = built.app
        try:
            return await report(
                settings,
                facts_of(app.handlers),
                app.guarantees(),
                app.ledger,
                built.reaches,
                built.supplies,
                built.publishers,
            )
        finally:
            await built.close()
            await app.close()

    return asyncio.run(look())


def examine_ledger(url: str, target: str | None, config: Path | None) -> Report:
    """A ledger alone. Raises SemelError where there is nothing to look at."""
    import asyncio

    from semel.cli.doctor_view import report_store
    from semel.cli.operating.place import check_there, make_read_only
    from semel.values.errors import ConfigError
    from semel.wiring import open_ledger

    if target is not None or config is not None:
        raise ConfigError("--ledger is a ledger alone: leave it out, or leave out the settings and the app")
    check_there("ledger", url)
    store = open_ledger(url)
    make_read_only(store)

    async def look() -> Report:
        try:
            return await report_store(store)
        finally:
            await store.close()

    return asyncio.run(look())
