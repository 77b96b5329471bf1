"""The report of `semel process`: counts and reasons, as a table, as JSON, and as progress during the run."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
from msgspec import Struct, field
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semel.cli.describe import counted, cut, plain, size
from semel.cli.process_input import Document, Input

REASONS_MAX = 50  # distinct reasons of one outcome that are kept; more are only counted
REASONS_SHOWN = 3  # of them, in the table
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
    "uncertain already": "uncertain since before: semel dead list",
    "conflict": "the key is known with another payload",
    "malformed": "not an event",
    "left": "not settled yet",
}
COLOURS = {"done": "green", **dict.fromkeys(BAD, "red"), "uncertain": "yellow", "uncertain already": "yellow"}


class ReasonCount(Struct):
    """A reason with its count and the first document that has it."""

    reason: str
    count: int
    file: str
    line: int
    byte: int


class FileReport(Struct):
    """One input."""

    file: str
    size: int | None
    finished: bool = False  # read to its end, and every event is settled
    stopped: str = ""  # why it could not be read to its end


class ProcessReport(Struct):
    """The counts of one run. It is updated during the run."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, dict[str, ReasonCount]] = field(default_factory=dict)  # by outcome and reason
    files: list[FileReport] = field(default_factory=list)
    forced: int = 0
    forced_before: str = ""  # the time of a run with --force
    rejects: str = ""
    seconds: float = 0.0
    stopped: str = ""  # why the run ended before its inputs
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        incomplete = self.stopped or any(file.stopped for file in self.files)
        return not incomplete and not any(self.counts[status] for status in BAD)

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else 0 if self.ok else 1

    def count(self, status: str, reason: str, source: Input, document: Document) -> None:
        self.counts[status] += 1
        if not reason or status in GOOD:
            return
        reasons = self.reasons.setdefault(status, {})
        if reason in reasons:
            reasons[reason].count += 1
        elif len(reasons) < REASONS_MAX:
            reasons[reason] = ReasonCount(reason, 1, source.label, document.line, document.start)


def to_json(report: ProcessReport) -> str:
    return json.dumps(
        {
            "ok": report.ok,
            "outcomes": dict(report.counts),
            "forced": report.forced,
            "forced_before": report.forced_before,
            "seconds": round(report.seconds, 3),
            "interrupted": report.interrupted,
            "stopped": report.stopped,
            "rejects": report.rejects,
            "files": msgspec.to_builtins(report.files),
            "reasons": {
                status: msgspec.to_builtins(list(report.reasons[status].values()))
                for status in BAD
                if status in report.reasons
            },
        },
        indent=2,
    )


def as_table(report: ProcessReport) -> RenderableType:
    if not report.counts:
        return Group(Text("No events."), *_closing_lines(report))
    table = Table()
    table.add_column("outcome")
    table.add_column("events", justify="right")
    table.add_column("")
    for status in (*GOOD, *BAD):
        if report.counts[status]:
            note = MEANINGS[status]
            if status == "duplicate" and not report.forced:
                note += "; --force runs them again"
            elif status == "malformed" and report.rejects:
                note += f": kept in {plain(report.rejects)}"
            note = "\n".join([note, *_reason_lines(list(report.reasons.get(status, {}).values()))])
            table.add_row(Text(status, style=COLOURS.get(status, "")), f"{report.counts[status]:,}", Text(note))
    return Group(table, *_closing_lines(report))


def _reason_lines(reasons: list[ReasonCount]) -> list[str]:
    reasons.sort(key=lambda reason: -reason.count)
    lines = [
        f"{reason.count:,} × {cut(plain(reason.reason), REASON_SHOWN_CHARS)} "
        f"(first: {plain(reason.file)}, line {reason.line:,}, byte {reason.byte:,})"
        for reason in reasons[:REASONS_SHOWN]
    ]
    more = len(reasons) - REASONS_SHOWN
    return [*lines, f"and {counted(more, 'other reason')} (--json)"] if more > 0 else lines


def _closing_lines(report: ProcessReport) -> list[Text]:
    events = report.counts.total()
    rate = f", {events / report.seconds:,.0f} a second" if report.seconds > 0.5 and events else ""
    lines = [Text(f"{counted(events, 'event')} in {report.seconds:,.1f} s{rate}.")]
    if report.forced:
        lines.append(Text(f"{report.forced:,} had succeeded before and were run again, by --force."))
    if report.stopped:
        lines.append(Text(f"Stopped: {plain(report.stopped)}", style="red"))
    lines += [Text(f"{plain(file.file)}: {plain(file.stopped)}", "red") for file in report.files if file.stopped]
    if report.stopped or report.counts["left"]:
        again = f" with --before {report.forced_before}" if report.forced_before else ""
        lines.append(Text(f"To finish it, run the same command again{again}: settled events are duplicates then."))
    return lines


# Progress during the run: a bar on a terminal, a line every ten seconds elsewhere, nothing with --json.

LINE_EVERY_S = 10.0
LOGGED_MAX = 20  # log lines; the closing table has all reasons
NAME_SHOWN_CHARS = 30


class Show(Protocol):
    def __call__(self, report: ProcessReport, source: Input, bytes_read: int) -> None: ...


@contextmanager
def progress_display(quiet: bool) -> Iterator[Show]:
    """Shows progress on stderr: stdout is for the handlers and the closing table."""
    console = Console(stderr=True)
    with _limited_log(console):
        if quiet:
            yield lambda report, source, bytes_read: None
        elif console.is_terminal:
            with _bar(console) as show:
                yield show
        else:
            yield _ProgressLines(console)


def _outcomes(report: ProcessReport) -> str:
    counts = [f"{report.counts[status]:,} {status}" for status in (*GOOD, *BAD) if report.counts[status]]
    return ", ".join(counts) or "none yet"


class _ProgressLines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = self._printed_at = time.monotonic()

    def __call__(self, report: ProcessReport, source: Input, bytes_read: int) -> None:
        now = time.monotonic()
        if now - self._printed_at < LINE_EVERY_S:
            return
        self._printed_at = now
        part = f"{min(100, 100 * bytes_read // source.size)} % of {size(source.size)}" if source.size else ""
        rate = report.counts.total() / (now - self._started)
        line = f"{plain(source.label)}: {part or size(bytes_read)}, {rate:,.0f} events a second: {_outcomes(report)}"
        self._console.print(Text(line), soft_wrap=True)


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[part]}"),
        TextColumn("{task.fields[outcomes]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bar:

        def show(report: ProcessReport, source: Input, bytes_read: int) -> None:
            if source.name not in tasks:
                name = cut(plain(source.label), NAME_SHOWN_CHARS)
                tasks[source.name] = bar.add_task(name, total=source.size, part="", outcomes="")
            rate = report.counts.total() / max(0.001, time.monotonic() - started)
            bar.update(
                tasks[source.name],
                completed=bytes_read,
                part=size(bytes_read),
                outcomes=f"{rate:,.0f}/s: {_outcomes(report)}",
            )

        yield show


class _LimitedHandler(logging.Handler):
    """Prints the first log lines and counts the others: a handler may fail for millions of events."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._count += 1
        if self._count <= LOGGED_MAX:
            self._console.print(Text(plain(record.getMessage()), style="dim"), soft_wrap=True)

    def close(self) -> None:
        if self._count > LOGGED_MAX:
            more = counted(self._count - LOGGED_MAX, "more line")
            self._console.print(Text(f"… and {more} like these", style="dim"))
            self._count = 0
        super().close()


@contextmanager
def _limited_log(console: Console) -> Iterator[None]:
    log = logging.getLogger("semel")
    if logging.getLogger().handlers or log.handlers:  # the app configures its own log
        yield
        return
    handler = _LimitedHandler(console)
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
        handler.close()
