"""`semel purge`: deletes keys whose retention has ended. A running service purges regularly."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from semel.cli.ledger_place import Place, opened, place
from semel.cli.options import Config, Json, LedgerUrl

BATCH = 1_000  # keys in one transaction: a few milliseconds, so a running service is not delayed


def register(app: typer.Typer) -> None:
    app.command()(purge)


def purge(
    ledger: LedgerUrl = None,
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, help="Delete at most this many keys.")] = 10_000_000,
    as_json: Json = False,
) -> None:
    """Delete settled keys whose retention has ended.

    Dead and uncertain events stay until an operator decides about them.

    Notifications are purged by `semel run` and `semel relay`, after the retentions in the outbox table.
    """
    count = asyncio.run(_purge(place(ledger, config), limit))
    typer.echo(json.dumps({"forgotten": count}) if as_json else f"{count:,} keys deleted")


async def _purge(where: Place, limit: int) -> int:
    deleted = 0
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} keys deleted")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=None)
        async with opened(where) as ledger:
            while deleted < limit and (count := await ledger.purge(min(BATCH, limit - deleted))):
                deleted += count
                progress.update(task, completed=deleted)
    return deleted
