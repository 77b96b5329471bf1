"""Replaying and discarding: choose, ask, decide, tell.

Choosing and deciding are two steps, and others may decide in between. The ledger settles that: each decision is taken
once, and whoever comes second is told so.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from semel.cli.operating import ledger_tables
from semel.cli.operating.looking import LETTERS, Filters, every, find
from semel.cli.operating.place import Place, opened
from semel.cli.operating.words import counted, plain
from semel.core.letterbox import inbox_of
from semel.ports import Catalog, Entry, Letters
from semel.values.errors import ConfigError, SemelError

TOGETHER = 64  # decisions that share a commit, where nobody asked for a rate
FAILURES_MAX = 5  # in a row; then the ledger is not well, and the rest is left alone
REASON_MAX_CHARS = 1_000
SHOWN = 20  # entries of a dry run, and problems

What: TypeAlias = Literal["replay", "discard"]
PAST = {"replay": "replayed", "discard": "discarded"}


class Ask(Struct, frozen=True, kw_only=True):
    """What was asked for."""

    what: What
    keys: list[str]
    every: bool
    state: str | None
    wanted: Filters
    reason: str
    by: str
    rate: float | None = None
    dry_run: bool = False


class Report(Struct):
    """What came of it; it follows along."""

    what: What
    dry_run: bool
    chosen: list[Entry]  # without their events
    to_inbox: bool = True  # False: whoever has the event must bring it again
    decided: list[str] = field(default_factory=list)
    already: list[str] = field(default_factory=list)  # someone else was faster
    not_dead: dict[str, str] = field(default_factory=dict)  # named, and in this state; nobody had to decide about it
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def waiting(self) -> list[Entry]:
        """Chosen, and not known to need no decision."""
        return [entry for entry in self.chosen if entry.state in LETTERS]

    @property
    def not_tried(self) -> int:
        ended = len(self.decided) + len(self.already) + len(self.not_dead) + len(self.failed)
        return 0 if self.dry_run else len(self.chosen) - ended

    @property
    def holds(self) -> bool:
        return not self.failed and not self.not_tried


def run(where: Place, ask: Ask, console: Console, confirm: Callable[[str], bool] | None) -> Report:
    """Raises ConfigError, before anything is decided, for what cannot work."""
    _check(ask)
    report = asyncio.run(_choose(where, ask))
    doubtful = sum(entry.state == "uncertain" for entry in report.chosen)
    if doubtful and ask.what == "replay":
        console.print(
            f"{doubtful:,} uncertain: the effect may have happened, and a replay would repeat it.", style="yellow"
        )
    waiting = len(report.waiting)
    if ask.dry_run or not waiting:
        return report
    plainly_meant = len(ask.keys) == 1 and not (doubtful and ask.what == "replay")
    question = f"{ask.what.capitalize()} {counted(waiting, 'event')}?"
    if not plainly_meant and confirm is not None and not confirm(question):
        raise ConfigError("nothing was done")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(PAST[ask.what], total=waiting)
        try:
            asyncio.run(_decide(where, ask, report, lambda: progress.advance(task)))
        except KeyboardInterrupt:
            console.print(f"Interrupted: {len(report.decided):,} {PAST[ask.what]}, {report.not_tried:,} not.")
            raise
    return report


def who() -> str:
    """Whoever sits at the keyboard, also behind sudo, and where."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user has no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "someone"
    return f"{user}@{socket.gethostname()}"


def _check(ask: Ask) -> None:
    if ask.keys and (ask.every or ask.wanted.any or ask.state):
        raise ConfigError("name keys, or say --all or filter: not both")
    if not (ask.keys or ask.every or ask.wanted.any or ask.state):
        raise ConfigError(f"which ones? Name keys, or say --all or filter (semel dead {ask.what} --help)")
    if not ask.dry_run and not ask.reason:
        raise ConfigError("--reason: say why; it is kept with the decision")
    for option, text in (("--reason", ask.reason), ("--by", ask.by)):
        if len(text) > REASON_MAX_CHARS or not text.isprintable():
            raise ConfigError(f"{option}: at most {REASON_MAX_CHARS:,} characters, on one line")


# ------------------------------------------------------------------------------------------------------- choosing


async def _choose(where: Place, ask: Ask) -> Report:
    async with opened(where) as ledger:
        if not isinstance(ledger, Letters):
            raise ConfigError(f"ledger {where}: this kind of ledger keeps no letters to decide about")
        report = Report(ask.what, ask.dry_run, [], inbox_of(ledger) is not None)
        if ask.keys:
            await _choose_named(ledger, ask.keys, report)
        else:
            async for entry in every(ledger, ask.state or "dead", ask.wanted):
                report.chosen.append(_without_event(entry))
    return report


async def _choose_named(catalog: Catalog, keys: Sequence[str], report: Report) -> None:
    named: dict[str, None] = {}
    for text in keys:
        named[await find(catalog, text, LETTERS)] = None
    for key in named:
        history = await catalog.history(key)
        if not history:
            raise ConfigError(f"nothing is known of the key {key}, or its retention is over; nothing was done")
        report.chosen.append(_without_event(history[0]))
        if history[0].state in LETTERS:
            continue
        if any(entry.decision for entry in history):
            report.already.append(history[0].key)
        else:
            report.not_dead[history[0].key] = history[0].state


def _without_event(entry: Entry) -> Entry:
    """There can be a hundred thousand of them."""
    return replace(entry, event=None, result=None)


# ------------------------------------------------------------------------------------------------------- deciding


async def _decide(where: Place, ask: Ask, report: Report, told: Callable[[], None]) -> None:
    waiting = [entry.key for entry in report.waiting]
    together = 1 if ask.rate else TOGETHER
    begun_s, in_a_row = time.monotonic(), 0
    async with opened(where) as ledger:
        assert isinstance(ledger, Letters)
        decision = ledger.replay if ask.what == "replay" else ledger.discard
        for first in range(0, len(waiting), together):
            if ask.rate and (wait_s := begun_s + first / ask.rate - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            group = waiting[first : first + together]
            answers = await asyncio.gather(
                *(decision(key, ask.reason, ask.by) for key in group), return_exceptions=True
            )
            for key, answer in zip(group, answers, strict=True):
                in_a_row = in_a_row + 1 if _record(report, key, answer) else 0
                told()
            if in_a_row >= FAILURES_MAX:
                return


def _record(report: Report, key: str, answer: bool | BaseException) -> bool:
    """True when it failed."""
    match answer:
        case True:
            report.decided.append(key)
        case False:
            report.already.append(key)
        case SemelError():
            report.failed[key] = str(answer)
            return True
        case BaseException():
            raise answer
    return False


# -------------------------------------------------------------------------------------------------------- telling


def as_json(report: Report) -> str:
    decided, already = set(report.decided), set(report.already)

    def outcome(key: str) -> str:
        if key in decided:
            return PAST[report.what]
        if key in already:
            return "already decided"
        if key in report.not_dead:
            return "not dead"
        if key in report.failed:
            return "failed"
        return f"would be {PAST[report.what]}" if report.dry_run else "not tried"

    return ledger_tables.as_json(
        {
            "decision": report.what,
            "dry_run": report.dry_run,
            "chosen": len(report.chosen),
            PAST[report.what]: len(report.decided),
            "already_decided": len(report.already),
            "not_dead": len(report.not_dead),
            "failed": len(report.failed),
            "not_tried": report.not_tried,
            "problems": dict(list(report.failed.items())[:SHOWN]),
            "events": [{"key": e.key, "state": e.state, "outcome": outcome(e.key)} for e in report.chosen],
        }
    )


def as_tables(report: Report, now_ms: int) -> RenderableType:
    if not report.chosen:
        return Text("Nothing matches: nothing to decide about.")
    if report.dry_run:
        shown = report.waiting
        more = f" The newest {SHOWN} are shown." if len(shown) > SHOWN else ""
        closing = Text(f"{len(shown):,} would be {PAST[report.what]}. Nothing was changed.{more}")
        table = [ledger_tables.listing(shown[:SHOWN], now_ms, wide=False)] if shown else []
        return Group(*table, closing, *_left_alone(report))
    return _closing(report)


def _closing(report: Report) -> RenderableType:
    rows = [
        (PAST[report.what], len(report.decided), _note(report) if report.decided else ""),
        ("decided already", len(report.already), "not dead any more; left alone" if report.already else ""),
        ("failed", len(report.failed), ""),
    ]
    if report.not_dead:
        rows.insert(2, ("not dead", len(report.not_dead), "left alone"))
    if report.not_tried:
        rows.append(("not tried", report.not_tried, "the ledger failed too often; try again later"))
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    noted = any(note for _, _, note in rows)
    for name, count, note in rows:
        table.add_row(name, f"{count:,}", *([note] if noted else []))
    gone = report.decided[:SHOWN] if report.what == "discard" else []  # from the lists: here is how to find them
    told = [Text(f"{key}: discarded, known by this whole key") for key in gone]
    told += _left_alone(report)
    told += [Text(plain(f"{key}: {why}")) for key, why in list(report.failed.items())[:SHOWN]]
    return Group(table, *told)


def _note(report: Report) -> str:
    if report.what == "discard":
        return ""
    if report.to_inbox:
        return "in the inbox, where a running service takes them, or free to be claimed again"
    return "free to be claimed again: have them sent once more, since this ledger has no inbox"


def _left_alone(report: Report) -> list[Text]:
    told = [f"{key}: decided already" for key in report.already[:SHOWN]]
    told += [f"{key}: it is {state}, not dead" for key, state in list(report.not_dead.items())[:SHOWN]]
    return [Text(line) for line in told]
