"""`semel status`: counts the events in each state, the inbox and the outbox, and lists what needs attention."""

from __future__ import annotations

import asyncio
import json

import typer
from msgspec import Struct, to_builtins
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from semel.cli import breakers
from semel.cli.breakers import ServiceBreakers
from semel.cli.describe import STYLES, age, counted, iso, moment, plain
from semel.cli.find import now_ms
from semel.cli.ledger_place import Place, opened, place
from semel.cli.options import Config, Json, LedgerUrl
from semel.core.dead_letter_store import inbox_of
from semel.core.inbox_flow import MISMATCHED
from semel.core.resend import outbox_of
from semel.ports import STATES, EntryQuery, Notifications
from semel.values.delivery_state import PAUSED
from semel.values.inbox import Depth
from semel.values.outbox import Backlog, NotificationQuery
from semel.values.redaction import hidden


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(ledger: LedgerUrl = None, config: Config = None, as_json: Json = False) -> None:
    """Show how many events are in each state, and what needs attention.

    Reading changes nothing, and can be done while a service runs.
    """
    found = asyncio.run(look(place(ledger, config)))
    service = breakers.open_breakers(ledger, config)
    if as_json:
        typer.echo(to_json(found, service))
    else:
        Console().print(as_tables(found, service))


UNKNOWN = ServiceBreakers()
DAY_MS = 86_400_000
FAILED_MAX = 1_000  # notifications that are counted
MISMATCHED_MAX = 1_000  # inbox items that are counted
PAUSED_MAX = 1_000  # notifications of one provider that are read
PAUSED_MAX_BYTES = 8 * 1024 * 1024  # of their contents
MEANING = {
    "accepted": "in the inbox, not started",
    "leased": "being handled",
    "waiting": "for their next attempt",
    "done": "handled; copies get the stored result",
    "dead": "given up on, kept with their reason",
    "uncertain": "the outcome of the effect is unknown",
}


class PausedProvider(Struct, frozen=True):
    """A provider that refused its own settings, as the notifications that it refused record it."""

    provider: str
    reason: str  # without customer data


class LedgerStatus(Struct, frozen=True):
    """The state of a ledger at one moment."""

    ledger: str
    at_ms: int
    states: dict[str, int]
    inbox: list[Depth] | None  # None: this kind of ledger has no inbox
    outbox: list[Backlog] | None = None  # None: no outbox
    failed: int = 0  # notifications, within a day
    mismatched: int = 0  # inbox items that the processes which took them could not run
    paused: list[PausedProvider] = []


async def look(where: Place) -> LedgerStatus:
    async with opened(where, reads=True) as ledger:
        states = await ledger.counts()
        inbox = inbox_of(ledger)
        depths = None if inbox is None else await inbox.depths()
        mismatched = await ledger.entries(EntryQuery("accepted", MISMATCHED_MAX, reason=MISMATCHED)) if depths else []
        outbox = outbox_of(ledger)
        backlog = None if outbox is None else await outbox.backlog()
        recent = NotificationQuery(state="failed", since_ms=now_ms() - DAY_MS, limit=FAILED_MAX)
        failed = 0 if outbox is None else len(await outbox.find(recent))
        paused = [] if outbox is None else await _paused(outbox, backlog or [])
    counts = {state: states.get(state, 0) for state in STATES}
    return LedgerStatus(str(where), now_ms(), counts, depths, backlog, failed, len(mismatched), paused)


async def _paused(outbox: Notifications, backlog: list[Backlog]) -> list[PausedProvider]:
    """Providers that a relay has paused. The pause is in its memory; the refused notifications store the reason."""
    paused = []
    for name in sorted({row.provider for row in backlog if row.state == "pending" and row.provider[:1] != "@"}):
        query = NotificationQuery(state="pending", provider=name, limit=PAUSED_MAX, bytes_max=PAUSED_MAX_BYTES)
        refused = [view for view in await outbox.find(query) if view.reason.startswith(PAUSED)]
        if refused:
            latest = max(refused, key=lambda view: view.changed_ms)
            paused.append(PausedProvider(name, hidden(latest.reason.removeprefix(PAUSED), latest.notification)))
    return paused


def hints(found: LedgerStatus) -> list[str]:
    """Lines that name what needs attention, with a command for each."""
    dead, uncertain = found.states["dead"], found.states["uncertain"]
    lines = []
    if dead:
        lines.append(f"{counted(dead, 'dead letter')}: semel dead list")
    if uncertain:
        lines.append(f"{counted(uncertain, 'uncertain event')}: semel dead list --state uncertain")
    if unknown := sum(row.count for row in found.outbox or () if row.state == "uncertain"):
        lines.append(f"{counted(unknown, 'uncertain notification')}: semel notify list --state uncertain")
    if found.failed:
        many = counted(found.failed, "notification") + (" or more" if found.failed == FAILED_MAX else "")
        lines.append(f"{many} failed within a day: semel notify list --state failed")
    lines += [f"provider {plain(one.provider)} is paused ({plain(one.reason)}): semel doctor" for one in found.paused]
    if found.mismatched:
        many = counted(found.mismatched, "inbox item") + (" or more" if found.mismatched == MISMATCHED_MAX else "")
        lines.append(f"{many} cannot run with the present settings: semel events list --reason '{MISMATCHED}'")
    return lines


def to_json(found: LedgerStatus, service: ServiceBreakers = UNKNOWN) -> str:
    def with_age(row: Depth | Backlog) -> dict[str, object]:
        age_s = (found.at_ms - row.oldest_ms) // 1000
        return {**to_builtins(row), "oldest": iso(row.oldest_ms), "oldest_age_s": age_s}

    return json.dumps(
        {
            "ledger": found.ledger,
            "at": iso(found.at_ms),
            "states": found.states,
            "inbox": None if found.inbox is None else [with_age(depth) for depth in found.inbox],
            "outbox": None if found.outbox is None else [with_age(row) for row in found.outbox],
            "paused_providers": [to_builtins(one) for one in found.paused],
            "breakers": [to_builtins(one) for one in service.breakers] if service.answered else None,
            "hints": hints(found),
        },
        indent=2,
    )


def as_tables(found: LedgerStatus, service: ServiceBreakers = UNKNOWN) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{found.ledger}, {moment(found.at_ms)}"), _states(found)]
    if found.inbox:
        parts.append(_lanes(found.inbox, found.at_ms))
    elif found.inbox is not None:
        parts.append(Text("The inbox is empty."))
    if found.outbox:
        parts.append(_backlog(found.outbox, found.at_ms))
    if not any(found.states.values()):
        parts.append(Text("Nothing has been handled yet."))
    parts += [Text(plain(str(breaker)), style="bold red") for breaker in service.breakers]
    if service.where and not service.answered:
        parts.append(Text(f"No service answers on {service.where}: its breakers are unknown.", style="dim"))
    lines = hints(found)
    parts += [Text(line, style="bold") for line in lines]
    if not lines and not service.breakers:
        parts.append(Text("Nothing needs attention."))
    return Group(*parts)


def _table(*columns: str) -> Table:
    """A table whose columns of numbers, marked with ">", are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column[:1] == ">" else "left", overflow="fold")
    return table


def _states(found: LedgerStatus) -> Table:
    table = _table("state", ">events", "")
    for state, count in found.states.items():
        style = STYLES.get(state, "") if count else "dim"
        table.add_row(Text(state, style=style), Text(f"{count:,}", style=style), Text(MEANING[state], style="dim"))
    return table


def _lanes(depths: list[Depth], at_ms: int) -> Table:
    table = _table("inbox lane", ">waiting", ">taken", "oldest accepted")
    for depth in depths:
        oldest = f"{age(depth.oldest_ms, at_ms)} ago"
        table.add_row(Text(plain(depth.lane)), f"{depth.waiting:,}", f"{depth.taken:,}", oldest)
    return table


def _backlog(backlog: list[Backlog], at_ms: int) -> Table:
    table = _table("outbox: provider", "state", ">notifications", "oldest added")
    for waiting in backlog:
        state = Text(waiting.state, style=STYLES.get(waiting.state, ""))
        oldest = f"{age(waiting.oldest_ms, at_ms)} ago"
        table.add_row(Text(_provider(waiting.provider)), state, f"{waiting.count:,}", oldest)
    return table


def _provider(provider: str) -> str:
    """A notification that no relay has taken yet has a channel ("@sms") instead of a provider."""
    return f"none yet, for {plain(provider[1:])}" if provider[:1] == "@" else plain(provider)
