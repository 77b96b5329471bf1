"""What is seen while it works: a bar on a terminal, a line now and then elsewhere, nothing for programs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from semel.cli.operating.words import counted, cut, plain, size
from semel.cli.processing.report import BAD, GOOD, Report
from semel.cli.processing.source import FileSource

LINE_EVERY_S = 10.0
LOGGED_MAX = 20  # lines of the log; the closing table has all reasons
NAME_SHOWN_CHARS = 30


class Show(Protocol):
    def __call__(self, report: Report, source: FileSource) -> None: ...


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


def outcomes(report: Report) -> str:
    counts = report.counts
    told = [f"{counts[status]:,} {status}" for status in (*GOOD, *BAD) if counts[status]]
    return ", ".join(told) or "none yet"


class _Lines:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._said_at = time.monotonic()

    def __call__(self, report: Report, source: FileSource) -> None:
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

        def show(report: Report, source: FileSource) -> None:
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
