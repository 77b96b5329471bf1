"""Options of the commands for notifications: each has one name and one meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.values.sending import State

if TYPE_CHECKING:
    from rich.console import RenderableType

    from semel.values.outbox import Sought

MaybeId = Annotated[str, typer.Argument(metavar="[ID]", help="The id, or its beginning; or say --key.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids, or the beginnings of ids.")]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show recipients and contents whole: they are customers' data.")]
InState = Annotated[State | None, typer.Option("--state", help="Only in this state.", show_choices=True)]
To = Annotated[str, typer.Option("--recipient", "--to", metavar="WHO", help="Only to this number, address or id.")]
Kind = Annotated[str, typer.Option(help="Only of this kind.")]
BusinessKey = Annotated[str, typer.Option("--key", help="Only of this business key.")]
OfProvider = Annotated[str, typer.Option("--provider", metavar="NAME", help="Only at this provider.")]
Of = Annotated[str, typer.Option("--tenant", help="Whose it is, where there are tenants.")]
All = Annotated[bool, typer.Option("--all", help="All that match the filters.")]
Contains = Annotated[str, typer.Option("--matching", metavar="TEXT", help="Only those with this in their reason.")]
WouldBe = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


def sought(
    state: str, recipient: str, kind: str, key: str, provider: str, tenant: str | None, since: str, until: str
) -> Sought:
    """Recipients and keys are looked for within one tenant: in the one without a name, if none is named."""
    from semel.cli.operating.looking import times
    from semel.values.outbox import Sought

    since_ms, until_ms = times(since, until)
    return Sought(
        tenant="" if tenant is None and (recipient or key) else tenant,
        state=state,
        recipient=recipient,
        kind=kind,
        key=key,
        provider=provider,
        since_ms=since_ms,
        until_ms=until_ms,
    )


def tell(as_json: bool, members: Mapping[str, Any], told: RenderableType) -> None:
    from semel.cli.operating import ledger_tables

    if as_json:
        typer.echo(ledger_tables.as_json(members))
    else:
        ledger_tables.console(wide=False).print(told)
