"""How things stand in a ledger."""

from __future__ import annotations

import json

from msgspec import Struct, to_builtins
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from semel.cli.operating.breakers import Heard
from semel.cli.operating.ledger_tables import STYLES
from semel.cli.operating.looking import now_ms
from semel.cli.operating.place import Place, opened
from semel.cli.operating.words import age, counted, iso, moment, plain
from semel.core.letterbox import inbox_of
from semel.core.mismatched_items import MISMATCHED
from semel.core.outboxes import outbox_of
from semel.ports import STATES
from semel.values.inbox import Depth
from semel.values.outbox import Backlog, Sought

NOBODY = Heard()
DAY_MS = 86_400_000
FAILED_MAX = 1_000  # notifications that are counted
MISMATCHED_MAX = 1_000  # inbox items that are counted
MEANING = {
    "accepted": "in the inbox, not begun",
    "leased": "being handled",
    "waiting": "for their next try",
    "done": "had their effect; copies are answered from here",
    "dead": "given up on, kept with their reason",
    "uncertain": "nobody knows whether the effect happened",
}


class Standing(Struct, frozen=True):
    """One look."""

    ledger: str
    at_ms: int
    states: dict[str, int]
    inbox: list[Depth] | None  # None: this ledger has none
    outbox: list[Backlog] | None = None  # as well
    failed: int = 0  # notifications, within a day
    mismatched: int = 0  # inbox items that the processes which took them could not run


async def look(where: Place) -> Standing:
    async with opened(where, reads=True) as ledger:
        states = await ledger.counts()
        inbox = inbox_of(ledger)
        depths = None if inbox is None else await inbox.depths()
        mismatched = await ledger.entries("accepted", MISMATCHED_MAX, reason=MISMATCHED) if depths else []
        outbox = outbox_of(ledger)
        backlog = None if outbox is None else await outbox.backlog()
        lately = Sought(state="failed", since_ms=now_ms() - DAY_MS, limit=FAILED_MAX)
        failed = 0 if outbox is None else len(await outbox.find(lately))
    counts = {state: states.get(state, 0) for state in STATES}
    return Standing(str(where), now_ms(), counts, depths, backlog, failed, len(mismatched))


def hints(found: Standing) -> list[str]:
    """What a person should look at, and how."""
    dead, uncertain = found.states["dead"], found.states["uncertain"]
    lines = []
    if dead:
        lines.append(f"{counted(dead, 'dead letter')}: semel dead list")
    if uncertain:
        lines.append(f"{counted(uncertain, 'uncertain event')}: semel dead list --state uncertain")
    if unknown := sum(one.count for one in found.outbox or () if one.state == "uncertain"):
        lines.append(f"{counted(unknown, 'uncertain notification')}: semel notify list --state uncertain")
    if found.failed:
        many = counted(found.failed, "notification") + (" or more" if found.failed == FAILED_MAX else "")
        lines.append(f"{many} failed within a day: semel notify list --state failed")
    if found.mismatched:
        many = counted(found.mismatched, "inbox item") + (" or more" if found.mismatched == MISMATCHED_MAX else "")
        lines.append(f"{many} cannot run with the present settings: semel events list --reason '{MISMATCHED}'")
    return lines


def as_json(found: Standing, service: Heard = NOBODY) -> str:
    inbox = [
        {**to_builtins(depth), "oldest": iso(depth.oldest_ms), "oldest_age_s": (found.at_ms - depth.oldest_ms) // 1000}
        for depth in found.inbox or []
    ]
    return json.dumps(
        {
            "ledger": found.ledger,
            "at": iso(found.at_ms),
            "states": found.states,
            "inbox": inbox if found.inbox is not None else None,
            "outbox": None if found.outbox is None else [_waits(one, found.at_ms) for one in found.outbox],
            "breakers": [to_builtins(one) for one in service.breakers] if service.answered else None,
            "hints": hints(found),
        },
        indent=2,
    )


def _waits(waiting: Backlog, at_ms: int) -> dict[str, object]:
    age_s = (at_ms - waiting.oldest_ms) // 1000
    return {**to_builtins(waiting), "oldest": iso(waiting.oldest_ms), "oldest_age_s": age_s}


def as_tables(found: Standing, service: Heard = NOBODY) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{found.ledger}, {moment(found.at_ms)}"), _states(found)]
    if found.inbox:
        parts.append(_lanes(found.inbox, found.at_ms))
    elif found.inbox is not None:
        parts.append(Text("The inbox is empty."))
    if found.outbox:
        parts.append(_backlog(found.outbox, found.at_ms))
    if not any(found.states.values()):
        parts.append(Text("Nothing has been handled yet."))
    parts += [Text(plain(str(one)), style="bold red") for one in service.breakers]
    if service.where and not service.answered:
        parts.append(Text(f"No service answers on {service.where}: open breakers are not known.", style="dim"))
    told = hints(found)
    parts += [Text(line, style="bold") for line in told]
    if not told and not service.breakers:
        parts.append(Text("Nothing wants a person."))
    return Group(*parts)


def _states(found: Standing) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("state")
    table.add_column("events", justify="right")
    table.add_column("")
    for state, count in found.states.items():
        style = STYLES.get(state, "") if count else "dim"
        table.add_row(Text(state, style=style), Text(f"{count:,}", style=style), Text(MEANING[state], style="dim"))
    return table


def _lanes(depths: list[Depth], at_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("inbox lane", overflow="fold")
    table.add_column("waiting", justify="right")
    table.add_column("taken", justify="right")
    table.add_column("oldest accepted")
    for depth in depths:
        oldest = f"{age(depth.oldest_ms, at_ms)} ago"
        table.add_row(Text(plain(depth.lane)), f"{depth.waiting:,}", f"{depth.taken:,}", oldest)
    return table


def _backlog(backlog: list[Backlog], at_ms: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("outbox: provider", overflow="fold")
    table.add_column("state")
    table.add_column("notifications", justify="right")
    table.add_column("oldest added")
    for waiting in backlog:
        state = Text(waiting.state, style=STYLES.get(waiting.state, ""))
        oldest = f"{age(waiting.oldest_ms, at_ms)} ago"
        table.add_row(Text(_to_whom(waiting.provider)), state, f"{waiting.count:,}", oldest)
    return table


def _to_whom(provider: str) -> str:
    """What no relay has taken yet waits for its channel: until it expires, where no provider sends that."""
    return f"none yet, for {plain(provider[1:])}" if provider[:1] == "@" else plain(provider)
