"""`semel dead`: what was given up on or is in doubt, and what people decide about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel.cli.events import Key, Raw, show_one
from semel.cli.options import (
    By,
    Config,
    DryRun,
    Json,
    Ledger,
    LetterState,
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

if TYPE_CHECKING:
    from semel.cli.operating.deciding import Ask
    from semel.ports import Entry

State = Annotated[LetterState | None, typer.Option(help="Only dead, or only uncertain ones.")]
Route = Annotated[str, typer.Option("--handler", "--route", help="Only of this handler or route.")]
Keys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Keys, or the beginnings of keys.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters; all dead ones without any.")]
Chosen = Annotated[LetterState | None, typer.Option("--state", help="Which of them; dead ones if nothing is said.")]
Contains = Annotated[
    str, typer.Option("--matching", metavar="TEXT", help="Only those with this in the reason of their death.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Also those that have succeeded, by their keys: their effect happens twice.")
]

EXIT_CODES = """
Exit codes: 0, also where an event is not dead (any more), which is told. 1,
something failed or was refused. 2, the command cannot work as given, and
nothing was done. 130, it was interrupted: the same command goes on.
"""
REPLAY = f"""Try events again: each goes back into the inbox, as a new generation.

Name keys, or say --all, or filter. Uncertain events are only replayed when
they are named or --state uncertain is given, and never without being asked
about or --yes: their effect may have happened, and would then happen twice.
One that has succeeded is refused, unless it is named and --force is given.

Whatever was interrupted goes on when the same command is given again.
{EXIT_CODES}"""
DISCARD = f"""Take events off the list for good. Copies of them are still answered.

Name keys, or say --all, or filter, as for replay. The decision is kept with
its reason; `semel events show` tells it, by the whole key.
{EXIT_CODES}"""


def register(app: typer.Typer) -> None:
    dead = typer.Typer(help="Dead and uncertain events: look, replay, discard.", no_args_is_help=True)
    dead.command("list")(list_letters)
    dead.command("show")(show)
    dead.command("replay", help=REPLAY)(replay)
    dead.command("discard", help=DISCARD)(discard)
    app.add_typer(dead, name="dead")


def list_letters(
    state: State = None,
    handler: Route = "",
    tenant: Tenant = None,
    reason: Matching = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    wide: Wide = False,
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List what was given up on and what is in doubt, the newest first."""
    import asyncio

    from semel.cli.operating import ledger_tables, looking
    from semel.cli.operating.place import place

    wanted = looking.filters(handler, tenant, reason, since, until)
    states = [state.value] if state else looking.LETTERS
    found, in_all, unreachable = asyncio.run(looking.letters(place(ledger, config), states, limit, wanted))
    if unreachable is not None:
        typer.echo(f"semel: the ledger is out of reach, these are its letters: {unreachable}", err=True)
    if as_json:
        typer.echo(ledger_tables.as_json([ledger_tables.members(entry) for entry in found]))
    elif found:
        ledger_tables.console(wide).print(ledger_tables.listing(found, looking.now_ms(), wide))
        if len(found) < in_all:
            typer.echo(f"{len(found):,} of {in_all:,} in all.")
    elif wanted.any and in_all:
        typer.echo(f"None match, of {in_all:,} in all.")
    else:
        well = " All is well." if unreachable is None else ""
        typer.echo(f"No {state.value if state else 'dead or uncertain'} events.{well}")


def show(key: Key, raw: Raw = False, ledger: Ledger = None, config: Config = None, as_json: Json = False) -> None:
    """Show everything that is known of one dead or uncertain event.

    The event, what came of each attempt, and what people decided about it: who,
    when and why.
    """
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
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    from semel.cli.operating import deciding, looking

    ask = deciding.Ask(
        what="replay",
        keys=keys or [],
        every=all_of_them,
        state=state.value if state else None,
        wanted=looking.filters(handler, tenant, matching, since, until),
        reason=reason.strip(),
        by=by.strip() or deciding.who(),
        rate=rate,
        dry_run=dry_run,
        force=force,
    )
    _decide(ask, yes, ledger, config, as_json)


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
    ledger: Ledger = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    from semel.cli.operating import deciding, looking

    ask = deciding.Ask(
        what="discard",
        keys=keys or [],
        every=all_of_them,
        state=state.value if state else None,
        wanted=looking.filters(handler, tenant, matching, since, until),
        reason=reason.strip(),
        by=by.strip() or deciding.who(),
        rate=rate,
        dry_run=dry_run,
    )
    _decide(ask, yes, ledger, config, as_json)


def _decide(ask: Ask, yes: bool, ledger: str | None, config: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from semel.cli.operating import breakers, deciding, deciding_view, ledger_tables, looking
    from semel.cli.operating.asking import confirmed
    from semel.cli.operating.place import place

    out = Console()

    def listed(entries: Sequence[Entry]) -> None:
        out.print(ledger_tables.listing(entries, looking.now_ms(), wide=False))

    shown = listed if ask.dry_run and not as_json else None
    report = deciding.run(place(ledger, config), ask, Console(stderr=True), None if yes else confirmed, shown)
    replayed = ask.what == "replay" and bool(report.decided)
    waited_for = breakers.heard(ledger, config).breakers if replayed else []
    if as_json:
        typer.echo(deciding_view.as_json(report, waited_for))
    else:
        out.print(deciding_view.as_tables(report))
        for breaker in waited_for:
            out.print(f"{breaker}: replayed events wait for it", style="bold red", markup=False, highlight=False)
    raise typer.Exit(0 if report.holds else 1)
