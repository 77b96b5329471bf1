"""Options that several commands share: each has one name and one meaning."""

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


class LetterState(StrEnum):
    dead = "dead"
    uncertain = "uncertain"


Ledger = Annotated[
    str | None, typer.Option("--ledger", metavar="URL", help="The ledger alone, without settings: sqlite:///semel.db")
]
Config = Annotated[
    Path | None,
    typer.Option("-c", "--config", help="Settings that name the ledger; by default semel.toml, if it is here."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Wide = Annotated[bool, typer.Option("--wide", help="Whole keys and times, on lines as long as they need.")]
Limit = Annotated[int, typer.Option(min=1, max=LIST_MAX, help="At most so many, the newest.")]

Handler = Annotated[str, typer.Option(help="Only of this handler or route.")]
Tenant = Annotated[str | None, typer.Option(help='Only of this tenant; "" for those without one.')]
Matching = Annotated[
    str, typer.Option("--reason", "--matching", metavar="TEXT", help="Only those with this in their reason.")
]
Since = Annotated[
    str, typer.Option(metavar="WHEN", help="Only from then on: 2026-03-19T22:00, or 90s, 2h, 3d ago (UTC).")
]
Until = Annotated[str, typer.Option(metavar="WHEN", help="Only before then, told in the same way.")]

Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why you decide so; kept with the decision.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides; by default you, at this machine.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be decided, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Rate = Annotated[float | None, typer.Option(min=0.01, max=100_000, help="At most so many a second, steadily.")]
