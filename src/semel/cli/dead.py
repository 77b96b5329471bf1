"""`semel dead`: dead and uncertain events, and the decisions of operators about them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from semel.cli import breakers, find, tables
from semel.cli.bulk_decision import operator, print_report, run_at_terminal
from semel.cli.dead_decisions import DeadLetterRequest, EventDecision
from semel.cli.events import Key, Raw, show_one
from semel.cli.ledger_place import place
from semel.cli.options import (
    By,
    Config,
    DeadLetterState,
    DryRun,
    Json,
    LedgerUrl,
    Limit,
    Matching,
    Rate,
    Since,
    Tenant,
    Until,
    Why,
    Wide,
    Yes,
)

State = Annotated[DeadLetterState | None, typer.Option(help="Only dead, or only uncertain events.")]
Route = Annotated[str, typer.Option("--handler", "--route", help="Only events of this handler or route.")]
Keys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Keys, or the beginnings of keys.")]
All = Annotated[bool, typer.Option("--all", help="All events that match the filters; without filters all dead ones.")]
Chosen = Annotated[DeadLetterState | None, typer.Option("--state", help="Events in this state; dead by default.")]
Contains = Annotated[str, typer.Option("--matching", metavar="TEXT", help="Only events whose reason contains TEXT.")]
Force = Annotated[bool, typer.Option("--force", help="Also named events that succeeded: their effect happens twice.")]

EXIT_CODES = """
Exit codes: 0, also where an event is no longer dead, which is reported. 1,
something failed or was refused. 2, the command cannot work with these options,
and nothing was done. 130, it was interrupted: run the same command again.
"""
REPLAY = f"""Try events again: each returns to the inbox, as a new generation.

Pass keys, or --all, or filters. Uncertain events are replayed only when they
are named or --state uncertain is passed, and only after a confirmation or with
--yes: their effect may have happened, and would then happen twice. An event
that succeeded is refused, unless it is named and --force is passed.

Run an interrupted command again to continue it.
{EXIT_CODES}"""
DISCARD = f"""Remove events from the list permanently. Copies of them are still answered.

Pass keys, or --all, or filters, as for replay. The decision is stored with its
reason; `semel events show` shows it, by the whole key.
{EXIT_CODES}"""


def register(app: typer.Typer) -> None:
    dead = typer.Typer(help="List, replay and discard dead and uncertain events.", no_args_is_help=True)
    dead.command("list")(list_dead_letters)
    dead.command("show")(show)
    dead.command("replay", help=REPLAY)(replay)
    dead.command("discard", help=DISCARD)(discard)
    app.add_typer(dead, name="dead")


def list_dead_letters(
    state: State = None,
    handler: Route = "",
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
    """List dead and uncertain events, the newest first."""
    wanted = find.filters(handler, tenant, reason, since, until)
    states = [state.value] if state else find.DEAD_STATES
    found, total, unreachable = asyncio.run(find.list_dead_letters(place(ledger, config), states, limit, wanted))
    if unreachable is not None:
        typer.echo(f"semel: the ledger is unavailable, these come from its dead-letter store: {unreachable}", err=True)
    if as_json:
        typer.echo(tables.as_json([tables.members(entry) for entry in found]))
    elif found:
        tables.console(wide).print(tables.listing(found, find.now_ms(), wide))
        if len(found) < total:
            typer.echo(f"{len(found):,} of {total:,} in all.")
    elif wanted.any and total:
        typer.echo(f"None match, of {total:,} in all.")
    else:
        well = " All is well." if unreachable is None else ""
        typer.echo(f"No {state.value if state else 'dead or uncertain'} events.{well}")


def show(key: Key, raw: Raw = False, ledger: LedgerUrl = None, config: Config = None, as_json: Json = False) -> None:
    """Show one dead or uncertain event: its content, each attempt, and each decision with its reason."""
    show_one(key, ["dead", "uncertain"], raw, ledger, config, as_json)


def replay(
    keys: Keys = None,
    all_of_them: All = False,
    state: Chosen = None,
    handler: Route = "",
    tenant: Tenant = None,
    matching: Contains = "",
    since: Since = "",
    until: Until = "",
    reason: Why = "",
    by: By = "",
    rate: Rate = None,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    request = DeadLetterRequest(
        action="replay",
        names=keys or [],
        every=all_of_them,
        state=state.value if state else None,
        wanted=find.filters(handler, tenant, matching, since, until),
        reason=reason.strip(),
        by=by.strip() or operator(),
        rate=rate,
        dry_run=dry_run,
        force=force,
    )
    _decide(request, yes, ledger, config, as_json)


def discard(
    keys: Keys = None,
    all_of_them: All = False,
    state: Chosen = None,
    handler: Route = "",
    tenant: Tenant = None,
    matching: Contains = "",
    since: Since = "",
    until: Until = "",
    reason: Why = "",
    by: By = "",
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    ledger: LedgerUrl = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    request = DeadLetterRequest(
        action="discard",
        names=keys or [],
        every=all_of_them,
        state=state.value if state else None,
        wanted=find.filters(handler, tenant, matching, since, until),
        reason=reason.strip(),
        by=by.strip() or operator(),
        rate=rate,
        dry_run=dry_run,
    )
    _decide(request, yes, ledger, config, as_json)


def _decide(request: DeadLetterRequest, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    decision = EventDecision(place(ledger, config), request)
    run_at_terminal(decision, yes, as_json)
    if request.action == "replay" and decision.report.decided:
        decision.breakers = breakers.open_breakers(ledger, config).breakers
    print_report(decision, as_json)
    raise typer.Exit(0 if decision.report.succeeded else 1)
