"""Operator decisions about many events or notifications: one flow for replay, discard, resolve, cancel and resend.

    check the options → choose → warn and confirm → decide each → report

Another operator, a relay or a callback may act between choosing and deciding. The store takes each decision at most
once, so an interrupted command can be repeated: it skips whatever is decided already.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import typer
from msgspec import Struct, field
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from semel.cli import tables
from semel.cli.describe import plain
from semel.values.errors import ConfigError, SemelError

BATCH = 64  # decisions that share a commit, without a --rate
INTERRUPTED_S = 5.0  # for the answer to a decision in flight when the command is interrupted
FAILURES_MAX = 5  # in a row; then the store is considered broken, and the rest is not tried
REASON_MAX_CHARS = 1_000
CATCH_UP_S = 0.1  # of a rate: time lost before that is not made up by a burst
PREVIEW_BATCH = 500  # entries of a dry run that are listed at a time
SHOWN = 20  # ids and problems that are listed one by one

Answer = TypeVar("Answer")
Store = TypeVar("Store")
Item = TypeVar("Item")
Confirm: TypeAlias = Callable[[str], bool]


class BulkRequest(Struct, frozen=True, kw_only=True):
    """The options that all decisions share."""

    names: list[str]  # keys of events or ids of notifications, or their beginnings
    every: bool
    reason: str
    by: str
    rate: float | None = None
    dry_run: bool = False

    @property
    def filtered(self) -> bool:
        return self.every


class BulkReport(Struct):
    """The progress and the result of one command. Every field maps an id or a key to a state or a reason."""

    dry_run: bool
    chosen: dict[str, str] = field(default_factory=dict)  # the state when it was chosen
    decided: dict[str, str] = field(default_factory=dict)  # the state after the decision
    already: dict[str, str] = field(default_factory=dict)  # decided before, or needs no decision any more
    refused: dict[str, str] = field(default_factory=dict)  # this decision is not possible in this state
    failed: dict[str, str] = field(default_factory=dict)  # the store's error

    @property
    def left_alone(self) -> tuple[dict[str, str], ...]:
        return self.already, self.refused

    @property
    def waiting(self) -> list[str]:
        """Chosen, and still to be decided."""
        return [name for name in self.chosen if not any(name in group for group in self.left_alone)]

    @property
    def not_tried(self) -> int:
        ended = (self.decided, self.failed, *self.left_alone)
        return 0 if self.dry_run else len(self.chosen) - sum(map(len, ended))

    @property
    def succeeded(self) -> bool:
        return not self.failed and not self.refused and not self.not_tried

    def outcome(self, name: str, past: str) -> str:
        """The outcome of one of them, for programs."""
        if name in self.decided:
            return past
        if name in self.already:
            return "already decided"
        if name in self.refused:
            return "refused"
        if name in self.failed:
            return "failed"
        return f"would be {past}" if self.dry_run else "not tried"


class BulkDecision(ABC, Generic[Store, Item]):
    """One command: its options, its report, and the steps that differ between decisions."""

    named: ClassVar[str]  # "keys" or "ids"
    list_command: ClassVar[str]
    past: str  # "replayed"
    request: BulkRequest
    report: BulkReport

    @abstractmethod
    def open(self, *, reads: bool) -> AbstractAsyncContextManager[Store]: ...

    def check(self) -> None:
        """Raise ConfigError for options that cannot work."""

    @abstractmethod
    def choose(self, store: Store) -> AsyncIterator[Item]:
        """Add all chosen ones to the report, with the reason where no decision is needed. Yield the others."""

    @abstractmethod
    def without_content(self, item: Item) -> Item: ...

    def warnings(self) -> list[str]:
        return []

    @abstractmethod
    def question(self) -> str:
        """The question to confirm. Empty: none is needed."""

    @abstractmethod
    async def decide(self, store: Store, name: str) -> Any: ...

    @abstractmethod
    def record(self, name: str, answer: Any) -> None:
        """Add the store's answer to the report."""

    async def finish(self, store: Store) -> None:
        """Complete the report after the last decision."""

    @abstractmethod
    def listing(self, items: Sequence[Item]) -> RenderableType: ...

    @abstractmethod
    def members(self) -> dict[str, Any]:
        """The report for programs."""

    @abstractmethod
    def text(self) -> RenderableType:
        """The report for people."""


def run(
    decision: BulkDecision[Store, Item],
    console: Console,
    confirm: Confirm | None,
    preview: Callable[[Sequence[Item]], None] | None = None,
) -> None:
    """Run the whole flow. `preview` gets the chosen items in batches.

    Raises ConfigError, before any decision, for a request that cannot work.
    """
    request, report = decision.request, decision.report
    if request.names and request.filtered:
        raise ConfigError(f"pass {decision.named}, or --all or filters: not both")
    decision.check()
    if not (request.names or request.filtered):
        raise ConfigError(f"which ones? Pass {decision.named}, --all or filters; `{decision.list_command}` lists them")
    check_reason(request.reason, request.by, request.dry_run)
    asyncio.run(_choose(decision, preview))
    for warning in decision.warnings():
        console.print(warning, style="yellow")
    if request.dry_run or not report.waiting:
        return
    question = decision.question()
    if question and confirm is not None and not confirm(question):
        raise ConfigError("nothing was done")
    with _progress(console, decision.past, report) as advance:
        asyncio.run(_decide(decision, advance))


async def _choose(decision: BulkDecision[Store, Item], preview: Callable[[Sequence[Item]], None] | None) -> None:
    batch: list[Item] = []
    async with decision.open(reads=True) as store:
        async for item in decision.choose(store):
            if preview is not None:
                batch.append(decision.without_content(item))
            if preview is not None and len(batch) == PREVIEW_BATCH:
                preview(batch)
                batch = []
    if preview is not None and batch:
        preview(batch)


async def _decide(decision: BulkDecision[Store, Item], advance: Callable[[], None]) -> None:
    async with decision.open(reads=False) as store:
        report = decision.report
        decide = partial(decision.decide, store)
        if await decide_each(report, report.waiting, decide, decision.record, advance, decision.request.rate):
            await decision.finish(store)


def run_at_terminal(decision: BulkDecision[Store, Item], yes: bool, as_json: bool) -> None:
    """Run the flow of a command, with its preview and its confirmation."""
    out = Console()

    def preview(items: Sequence[Item]) -> None:
        out.print(decision.listing(items))

    shown = preview if decision.request.dry_run and not as_json else None
    run(decision, Console(stderr=True), None if yes else confirmed, shown)


def print_report(decision: BulkDecision[Store, Item], as_json: bool) -> None:
    if as_json:
        typer.echo(tables.as_json(decision.members()))
    else:
        Console().print(decision.text())


def confirmed(question: str) -> bool:
    """Ask at the terminal. Raises ConfigError where there is none: the operator must confirm with an option then."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Not a terminal: pass --yes, or preview it with --dry-run")
    return typer.confirm(question, err=True)


def operator() -> str:
    """The user at this machine, also behind sudo, as user@host."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user has no name
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"


def check_reason(reason: str, by: str, dry_run: bool) -> None:
    """Raises ConfigError for a --reason or --by that cannot be stored with a decision."""
    if not dry_run and not reason:
        raise ConfigError("--reason is missing: it is stored with the decision")
    for option, text in (("--reason", reason), ("--by", by)):
        if len(text) > REASON_MAX_CHARS or not text.isprintable():
            raise ConfigError(f"{option}: at most {REASON_MAX_CHARS:,} characters, on one line")


@contextmanager
def _progress(console: Console, past: str, report: BulkReport) -> Iterator[Callable[[], None]]:
    """A bar that each call advances. An interrupt prints how many are decided and how many are not."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(past, total=len(report.waiting))
        try:
            yield lambda: progress.advance(task)
        except KeyboardInterrupt:
            console.print(
                f"Interrupted: {len(report.decided):,} {past}, {report.not_tried:,} not. "
                "Run the same command again to continue."
            )
            raise


async def decide_each(
    report: BulkReport,
    names: Sequence[str],
    decide: Callable[[str], Awaitable[Answer]],
    record: Callable[[str, Answer], None],
    advance: Callable[[], None],
    rate: float | None = None,
) -> bool:
    """Decide about each name, in batches. `record` gets each answer of the store.

    A failure is recorded in the report. After FAILURES_MAX in a row the rest is not tried, and the result is False.
    """
    batch = 1 if rate else BATCH
    pace, in_a_row = Pace(rate), 0
    for first in range(0, len(names), batch):
        await pace.wait()
        group = names[first : first + batch]
        answers = asyncio.gather(*map(decide, group), return_exceptions=True)
        interrupted = await _interrupted(answers)
        for name, answer in zip(group, answers.result(), strict=True):
            if isinstance(answer, SemelError):
                report.failed[name] = str(answer)
                in_a_row += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                record(name, answer)
                in_a_row = 0
            advance()
        if interrupted:
            raise asyncio.CancelledError
        if in_a_row >= FAILURES_MAX:
            return False
    return True


async def _interrupted(answers: asyncio.Future[list[Answer | BaseException]]) -> bool:
    """Wait for the answers. True: the command was interrupted meanwhile.

    The store may have committed a decision whose answer is still in flight, so the command waits for it and reports
    it. A second interrupt ends the process at once.
    """
    try:
        await asyncio.shield(answers)
    except asyncio.CancelledError:
        await asyncio.wait([answers], timeout=INTERRUPTED_S)
        if not answers.done():
            raise
        return True
    return False


class Pace:
    """Keeps a steady rate. A stall is not followed by a burst."""

    def __init__(self, rate: float | None) -> None:
        self._step_s = 1 / rate if rate else 0.0
        self._due: float | None = None

    async def wait(self) -> None:
        if not self._step_s:
            return
        now = asyncio.get_running_loop().time()
        due = now if self._due is None else max(self._due, now - CATCH_UP_S)
        self._due = due + self._step_s
        if due > now:
            await asyncio.sleep(due - now)


def summary_members(report: BulkReport, decision: str, decided: str = "decided") -> dict[str, Any]:
    """The counts of a report, for programs."""
    return {
        "decision": decision,
        "dry_run": report.dry_run,
        "chosen": len(report.chosen),
        decided: len(report.decided),
        "already_decided": len(report.already),
        "refused": len(report.refused),
        "failed": len(report.failed),
        "not_tried": report.not_tried,
        "problems": dict(list(report.failed.items())[:SHOWN]),
    }


def summary_table(report: BulkReport, rows: Sequence[tuple[str, int, str]], store: str) -> Table:
    """The counts of a report with a note each, for people. Notes have a column only where there is one."""
    if report.not_tried:
        rows = [*rows, ("not tried", report.not_tried, f"the {store} failed too often; try again later")]
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    noted = any(note for _, _, note in rows)
    for name, count, note in rows:
        table.add_row(name, f"{count:,}", *([note] if noted else []))
    return table


def problems(report: BulkReport) -> list[Text]:
    return [Text(plain(f"{name}: {error}")) for name, error in list(report.failed.items())[:SHOWN]]
