"""What came of it: counted, with reasons, for people (a table) and for programs (JSON)."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import Struct, field
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semel.cli.describe import counted, cut, plain, size
from semel.cli.process_source import FileSource

REASONS_MAX = 50  # different ones of an outcome; more are only counted
SHOWN = 3  # of them, in the table
REASON_SHOWN_CHARS = 160

GOOD = ("done", "duplicate", "stale", "ignored")
BAD = ("dead", "dead already", "uncertain", "uncertain already", "conflict", "malformed", "left")
MEANINGS = {
    "done": "the handler ran, and its effect is recorded",
    "duplicate": "had succeeded before",
    "stale": "a newer event of the subject was applied before",
    "ignored": "no handler matches",
    "dead": "given up on: semel dead list",
    "dead already": "given up on before: semel dead list",
    "uncertain": "the outcome of the effect is unknown: semel dead list",
    "uncertain already": "in doubt since before: semel dead list",
    "conflict": "the key is known with another payload",
    "malformed": "no event",
    "left": "not settled yet",
}
COLOURS = {"done": "green", **dict.fromkeys(BAD, "red"), "uncertain": "yellow", "uncertain already": "yellow"}


class ReasonCount(Struct):
    """A reason, how often, and where first."""

    count: int
    file: str
    line: int
    byte: int


class FileReport(Struct):
    """How far one input was worked off."""

    file: str
    size: int | None
    from_byte: int = 0
    settled_to: int = 0  # everything below this byte is settled
    finished: bool = False
    progress: str = ""  # the file where that is kept
    stopped: str = ""  # why not all of it was read
    unsaved: str = ""  # why progress could not be kept


class ProcessReport(Struct):
    """It follows along."""

    counts: Counter[str] = field(default_factory=Counter)  # of this run
    before: Counter[str] = field(default_factory=Counter)  # of the runs that this one goes on from
    reasons: dict[str, dict[str, ReasonCount]] = field(default_factory=dict)
    files: list[FileReport] = field(default_factory=list)
    forced: int = 0
    rejects: str = ""
    seconds: float = 0.0
    stopped: str = ""
    interrupted: bool = False

    @property
    def total(self) -> Counter[str]:
        return self.before + self.counts

    @property
    def all_is_well(self) -> bool:
        troubled = self.stopped or any(one.stopped for one in self.files)
        return not troubled and not any(self.total[status] for status in BAD)

    @property
    def code(self) -> int:
        return 130 if self.interrupted else 0 if self.all_is_well else 1

    def count(self, status: str, reason: str, file: str, line: int, byte: int) -> None:
        self.counts[status] += 1
        if not reason or status in GOOD:
            return
        told = self.reasons.setdefault(status, {})
        if reason in told:
            told[reason].count += 1
        elif len(told) < REASONS_MAX:
            told[reason] = ReasonCount(1, file, line, byte)


def as_json(report: ProcessReport) -> str:
    return json.dumps(
        {
            "ok": report.all_is_well,
            "outcomes": dict(report.total),
            "this_run": dict(report.counts),
            "before": dict(report.before),
            "forced": report.forced,
            "seconds": round(report.seconds, 3),
            "interrupted": report.interrupted,
            "stopped": report.stopped,
            "rejects": report.rejects,
            "files": [{name: getattr(one, name) for name in one.__struct_fields__} for one in report.files],
            "reasons": {status: [_one(reason, told) for reason, told in all_.items()] for status, all_ in _all(report)},
        },
        indent=2,
    )


def _all(report: ProcessReport) -> list[tuple[str, dict[str, ReasonCount]]]:
    return [(status, report.reasons[status]) for status in BAD if status in report.reasons]


def _one(reason: str, told: ReasonCount) -> dict[str, Any]:
    return {"reason": reason, "count": told.count, "file": told.file, "line": told.line, "byte": told.byte}


# --------------------------------------------------------------------------------------------------------- people


def as_table(report: ProcessReport) -> RenderableType:
    total = report.total
    if not total:
        return Group(Text("No events."), *_closing(report))
    table = Table()
    table.add_column("outcome")
    table.add_column("events", justify="right")
    table.add_column("")
    for status in (*GOOD, *BAD):
        if total[status]:
            note = Text(_meaning(status, report))
            for line in _reasons(report, status):
                note.append(f"\n{line}")
            table.add_row(Text(status, style=COLOURS.get(status, "")), f"{total[status]:,}", note)
    return Group(table, *_closing(report))


def _meaning(status: str, report: ProcessReport) -> str:
    earlier = report.before[status]
    before = f", {earlier:,} of them in earlier runs" if earlier else ""
    if status == "duplicate" and not report.forced:
        return f"{MEANINGS[status]}; --force runs them again{before}"
    if status == "malformed" and report.rejects:
        return f"{MEANINGS[status]}: kept in {plain(report.rejects)}{before}"
    return MEANINGS[status] + before


def _reasons(report: ProcessReport, status: str) -> list[str]:
    told = sorted(report.reasons.get(status, {}).items(), key=lambda item: -item[1].count)
    lines = [
        f"{one.count:,} × {cut(plain(reason), REASON_SHOWN_CHARS)} (first: {plain(one.file)}, line {one.line:,}, byte "
        f"{one.byte:,})"
        for reason, one in told[:SHOWN]
    ]
    return [*lines, f"and {counted(len(told) - SHOWN, 'other reason')} (--json)"] if len(told) > SHOWN else lines


def _closing(report: ProcessReport) -> list[Text]:
    events = report.counts.total()
    rate = f", {events / report.seconds:,.0f} a second" if report.seconds > 0.5 and events else ""
    lines = [Text(f"{counted(events, 'event')} in {report.seconds:,.1f} s{rate}.")]
    if report.forced:
        lines.append(Text(f"{report.forced:,} had succeeded before and were run again, by --force."))
    if report.stopped:
        lines.append(Text(f"Stopped: {plain(report.stopped)}", style="red"))
    lines += [line for one in report.files for line in _of_file(one)]
    return lines


def _of_file(one: FileReport) -> list[Text]:
    name = plain(one.file)
    lines = [Text(f"{name}: {plain(one.stopped)}", style="red")] if one.stopped else []
    if not one.finished and one.progress and not one.unsaved:
        of = f" of {size(one.size)}" if one.size is not None else ""
        lines.append(
            Text(f"{name}: settled up to byte {one.settled_to:,}{of}. To go on there: the same command with --resume")
        )
    if one.unsaved:
        lines.append(
            Text(f"{name}: progress could not be kept ({plain(one.unsaved)}): --resume would begin earlier", "yellow")
        )
    return lines


# What is seen while it works: a bar on a terminal, a line now and then elsewhere, nothing for programs.

LINE_EVERY_S = 10.0
LOGGED_MAX = 20  # lines of the log; the closing table has all reasons
NAME_SHOWN_CHARS = 30


class Show(Protocol):
    def __call__(self, report: ProcessReport, source: FileSource) -> None: ...


@contextmanager
def shown(quiet: bool) -> Iterator[Show]:
    """On stderr: stdout belongs to the handlers and to the closing table."""
    console = Console(stderr=True)
    with _few_logged(console):
        if quiet:
            yield lambda report, source: None
        elif console.is_terminal:
            with _bar(console) as show:
                yield show
        else:
            yield _Lines(console)


def outcomes(report: ProcessReport) -> str:
    counts = report.counts
    told = [f"{counts[status]:,} {status}" for status in (*GOOD, *BAD) if counts[status]]
    return ", ".join(told) or "none yet"


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._said_at = time.monotonic()

    def __call__(self, report: ProcessReport, source: FileSource) -> None:
        now = time.monotonic()
        if now - self._said_at < LINE_EVERY_S:
            return
        self._said_at = now
        rate = report.counts.total() / (now - self._began)
        line = f"{plain(source.given.shown)}: {_part(source)}, {rate:,.0f} events a second: {outcomes(report)}"
        self._console.print(Text(line), soft_wrap=True)


def _part(source: FileSource) -> str:
    taken, of = source.come_to, source.given.size
    return size(taken) if not of else f"{min(100, 100 * taken // of)} % of {size(of)}"


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[part]}"),
        TextColumn("{task.fields[told]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    began = time.monotonic()
    tasks: dict[int, TaskID] = {}
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bar:

        def show(report: ProcessReport, source: FileSource) -> None:
            if id(source) not in tasks:
                name = cut(plain(source.given.shown), NAME_SHOWN_CHARS)
                tasks[id(source)] = bar.add_task(name, total=source.given.size, part="", told="")
            rate = report.counts.total() / max(0.001, time.monotonic() - began)
            bar.update(
                tasks[id(source)],
                completed=source.come_to,
                part=size(source.come_to),
                told=f"{rate:,.0f}/s: {outcomes(report)}",
            )

        yield show


# ------------------------------------------------------------------------------------------------------- the log


class _FewLines(logging.Handler):
    """A handler that fails two million times says so two million times: the first lines are enough."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._said = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._said += 1
        if self._said <= LOGGED_MAX:
            self._console.print(Text(plain(record.getMessage()), style="dim"), soft_wrap=True)

    def close(self) -> None:
        if self._said > LOGGED_MAX:
            more = counted(self._said - LOGGED_MAX, "more line")
            self._console.print(Text(f"… and {more} like these", style="dim"))
            self._said = 0
        super().close()


@contextmanager
def _few_logged(console: Console) -> Iterator[None]:
    log = logging.getLogger("semel")
    if logging.getLogger().handlers or log.handlers:  # the app has its own idea of a log
        yield
        return
    handler = _FewLines(console)
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        handler.close()
