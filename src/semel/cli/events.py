"""`semel events`: lists and shows single events."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from semel.cli import breakers, find, tables
from semel.cli.ledger_place import place
from semel.cli.options import (
    Config,
    Handler,
    Json,
    LedgerUrl,
    Limit,
    Matching,
    Since,
    StateName,
    Tenant,
    Until,
    Wide,
)
from semel.values.errors import ConfigError

Key = Annotated[str, typer.Argument(metavar="KEY", help="The key, or a unique beginning of it.")]
WAITING = ("accepted", "leased", "waiting")  # possibly for an open breaker
Raw = Annotated[bool, typer.Option("--raw", help="Write only the event, byte for byte, to a file or a pipe.")]


def register(app: typer.Typer) -> None:
    events = typer.Typer(help="List and show single events.", no_args_is_help=True)
    events.command("list")(list_events)
    events.command("show")(show)
    app.add_typer(events, name="events")


def list_events(
    state: Annotated[StateName | None, typer.Option(help="Only in this state.")] = None,
    handler: Handler = "",
    tenant: Tenant = None,
    reason: Matching = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    wide: Wide = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List events, the newest first.

    Discarded events are not listed; `semel events show` shows them by their whole key.
    """
    wanted = find.filters(handler, tenant, reason, since, until)
    found, _ = asyncio.run(find.list_entries(place(ledger, config), [state.value if state else None], limit, wanted))
    if as_json:
        typer.echo(tables.as_json([tables.members(entry) for entry in found]))
    elif found:
        tables.console(wide).print(tables.listing(found, find.now_ms(), wide))
        if len(found) == limit:
            typer.echo(f"The newest {limit:,}; --limit shows more.")
    else:
        typer.echo("No events match." if state or wanted.any else "No events yet.")


def show(key: Key, raw: Raw = False, ledger: LedgerUrl = None, config: Config = None, as_json: Json = False) -> None:
    """Show everything that is stored about one event.

    This is its state, its attempts and result, the decisions of operators, and
    the event itself while it is dead or uncertain.
    """
    show_one(key, [state.value for state in StateName], raw, ledger, config, as_json)


def show_one(key: str, first: list[str], raw: bool, ledger: LedgerUrl, config: Config, as_json: bool) -> None:
    """Also for `semel dead show`, which searches the beginning of a key among dead letters first."""
    history = asyncio.run(find.key_history(place(ledger, config), key, first))
    waits = history[0].state in WAITING and not raw
    breaker = breakers.open_breakers(ledger, config).of_route(history[0].handler) if waits else None
    if raw:
        if sys.stdout.isatty():
            raise ConfigError(
                "--raw does not escape control characters, so it never writes to a terminal: redirect it (> FILE)"
            )
        typer.echo(find.event_of(history), nl=False)
    elif as_json:
        typer.echo(tables.as_json(tables.whole(history, breaker)))
    else:
        tables.console(wide=False).print(tables.portrait(history, find.now_ms(), breaker))
