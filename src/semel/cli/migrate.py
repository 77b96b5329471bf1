"""`semel migrate`: creates or upgrades the tables of the ledger and of its dead-letter store."""

from __future__ import annotations

import asyncio
import json

import typer
from msgspec import Struct
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from semel.cli.describe import counted, plain
from semel.cli.ledger_place import Place, place
from semel.cli.options import Config, DryRun, Json, LedgerUrl
from semel.ports import Migrates, Upgrades
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.redaction import masked, without_secrets
from semel.values.secret import Secret
from semel.wiring import open_ledger

HELP = """Create or upgrade the tables of the ledger.

Migrations only go forward, are safe while services use the store, and run
once, however many processes call this. They need more privileges than a
service, so a service never runs them.

Exit codes: 0, everything is ready. 1, steps remain, also after --dry-run.
2, the store cannot be reached or used.
"""


def register(app: typer.Typer) -> None:
    app.command(help=HELP)(migrate)


def migrate(ledger: LedgerUrl = None, config: Config = None, dry_run: DryRun = False, as_json: Json = False) -> None:
    try:
        report = asyncio.run(run(place(ledger, config), dry_run))
    except SemelError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ready": False, "error": str(error)}))
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(to_json(report))
    else:
        Console().print(as_tables(report))
    raise typer.Exit(0 if report.ready else 1)


class MigratedStore(Struct, frozen=True):
    """One store, with the steps that were made and the steps that remain."""

    role: str  # "ledger" or "dead_letters", as in the settings
    url: str  # without its password
    name: str
    migrates: bool  # False: the store creates its tables when it is first used
    done: list[str]
    pending: list[str]


class MigrationReport(Struct, frozen=True):
    stores: list[MigratedStore]
    dry_run: bool

    @property
    def ready(self) -> bool:
        return not any(store.pending for store in self.stores)


async def run(where: Place, dry_run: bool) -> MigrationReport:
    """Migrate the ledger, then its dead-letter store. Raises SemelError when a store cannot be used."""
    stores = [await _migrate("ledger", where.ledger, dry_run)]
    if where.dead_letters is not None and not where.publishes_to_bus:  # a bus has no tables
        stores.append(await _migrate("dead_letters", where.dead_letters, dry_run))
    return MigrationReport(stores, dry_run)


async def _migrate(role: str, secret: Secret, dry_run: bool) -> MigratedStore:
    url = secret.reveal()
    ledger = open_ledger(url)
    done: list[str] = []
    try:
        if isinstance(ledger, Upgrades) and not isinstance(ledger, Migrates) and (steps := await ledger.outdated()):
            done = [] if dry_run else await ledger.upgrade()
            return MigratedStore(role, masked(url), ledger.traits.name, True, done, [] if done else steps)
        if not isinstance(ledger, Migrates):
            return MigratedStore(role, masked(url), ledger.traits.name, False, [], [])
        pending = await ledger.pending()
        if pending and not dry_run:
            done = await ledger.migrate()
            pending = await ledger.pending()
        return MigratedStore(role, masked(url), ledger.traits.name, True, done, pending)
    except LedgerUnavailable as error:
        reason = without_secrets(str(error), url)
        raise LedgerUnavailable(f"{role} {masked(url)} could not be migrated: {reason}") from None
    finally:
        await ledger.close()


# --------------------------------------------------------------------------------------------------------- output


def to_json(report: MigrationReport) -> str:
    document = {
        "ready": report.ready,
        "dry_run": report.dry_run,
        "stores": [
            {
                "role": store.role,
                "url": store.url,
                "store": store.name,
                "migrates": store.migrates,
                "done": store.done,
                "pending": store.pending,
            }
            for store in report.stores
        ],
    }
    return json.dumps(document, indent=2)


def as_tables(report: MigrationReport) -> RenderableType:
    parts: list[RenderableType] = []
    for store in report.stores:
        parts.append(Text(f"{store.role} {store.url}", style="bold"))
        if store.done or store.pending:
            table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
            table.add_column("step", overflow="fold")
            table.add_column("")
            for step in store.done:
                table.add_row(Text(plain(step)), Text("done", style="green"))
            for step in store.pending:
                table.add_row(Text(plain(step)), Text("to be done", style="yellow"))
            parts.append(table)
        parts.append(Text(_conclusion(store, report.dry_run)))
    return Group(*parts)


def _conclusion(store: MigratedStore, dry_run: bool) -> str:
    if not store.migrates:
        return f"{store.name} needs no migrations: it creates its tables when it is first used."
    if not store.pending:
        done = f": {counted(len(store.done), 'step')} done" if store.done else ""
        return f"{store.name} is ready{done}."
    left = f"{counted(len(store.pending), 'step')} to be done"
    return f"{left}; nothing was changed." if dry_run else f"{left}: run it again."
