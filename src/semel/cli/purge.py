"""`semel purge`: forget now what is past its retention. A running service does this by itself."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from semel.cli.ledger_place import Place, opened, place
from semel.cli.options import Config, Json, LedgerUrl

BATCH = 1_000  # keys in one transaction: a few milliseconds, so that a running service does not notice


def register(app: typer.Typer) -> None:
    app.command()(purge)


def purge(
    ledger: LedgerUrl = None,
    config: Config = None,
    limit: Annotated[int, typer.Option(min=1, help="Forget at most so many keys.")] = 10_000_000,
    as_json: Json = False,
) -> None:
    """Delete settled keys whose retention has ended.

    Dead and uncertain events stay until an operator decides about them.

    Messages to customers are forgotten by `semel run` and `semel relay`, after the times of the outbox table.
    """
    forgotten = asyncio.run(_forget(place(ledger, config), limit))
    typer.echo(json.dumps({"forgotten": forgotten}) if as_json else f"{forgotten:,} keys forgotten")


async def _forget(where: Place, limit: int) -> int:
    forgotten = 0
    with Progress(
        SpinnerColumn(), TextColumn("{task.completed:,.0f} keys forgotten"), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("", total=None)
        async with opened(where) as store:
            while forgotten < limit and (count := await store.purge(min(BATCH, limit - forgotten))):
                forgotten += count
                bar.update(task, completed=forgotten)
    return forgotten
