"""Options that several commands share. Each name has one meaning."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

LIST_MAX = 100_000  # entries of one listing


class StateName(StrEnum):
    accepted = "accepted"
    leased = "leased"
    waiting = "waiting"
    done = "done"
    dead = "dead"
    uncertain = "uncertain"


class DeadLetterState(StrEnum):
    dead = "dead"
    uncertain = "uncertain"


LedgerUrl = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="Use this ledger, without settings: sqlite:///semel.db")
]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Settings file with the ledger; by default semel.toml in this folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show whole keys and times, on long lines.")]
Limit = Annotated[int, typer.Option(min=1, max=LIST_MAX, help="Show at most this many, the newest.")]

Handler = Annotated[str, typer.Option(help="Only events of this handler or route.")]
Tenant = Annotated[str | None, typer.Option(help='Only of this tenant; "" for those without a tenant.')]
Matching = Annotated[
    str, typer.Option("--reason", "--matching", metavar="TEXT", help="Only events whose reason contains TEXT.")
]
Since = Annotated[
    str, typer.Option(metavar="WHEN", help="Not before this time: 2026-03-19T22:00, or 90s, 2h, 3d ago (UTC).")
]
Until = Annotated[str, typer.Option(metavar="WHEN", help="Before this time, in the same form.")]

Why = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="The reason of your decision; it is stored with it.")
]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Your name; by default user@host.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the effect of the command, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
Rate = Annotated[float | None, typer.Option(min=0.01, max=100_000, help="At most this many a second.")]
