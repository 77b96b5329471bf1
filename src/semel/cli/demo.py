"""`semel demo`: a storm with duplicates and crashes, sent through the library, and what came of it."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from semel.app import Semel
from semel.cli.demonstration.demo_crew import FINAL, Crew, command
from semel.cli.demonstration.demo_worker import ledger_url
from semel.testing import traffic
from semel.values.errors import ConfigError


@dataclass(frozen=True)
class Report:
    """What was sent, what was broken, and what is there now."""

    sent: int  # deliveries of the storm
    distinct: int
    redeliveries: int
    producer_retries: int
    kills_asked: int
    kills: int  # that hit a worker with deliveries in hand
    unanswered: int  # deliveries that killed workers had in hand: delivered again
    tickets: int
    doubled_tickets: int
    lost_tickets: int
    calls: int
    repeated_calls: int
    lost_calls: int
    duplicates_answered: int
    given_back: int  # answers that said: not now, deliver it again
    unexpected: dict[str, int]  # other answers
    seconds: float

    @property
    def holds(self) -> bool:
        return not (self.doubled_tickets or self.lost_tickets or self.lost_calls or self.unexpected)


def run(
    events: int, duplicates: float, kills: int, workers: int, seed: int, db: Path | None, console: Console
) -> Report:
    if db is not None and db.exists():
        raise ConfigError(f"--db {db}: this file exists already; the demo counts what is in a new one")
    storm = traffic.storm(events, duplicates, seed)
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as work:
        ledger, calls = (db or Path(work, "semel.db")).absolute(), Path(work, "calls.txt")
        crew, tickets, seconds = asyncio.run(_run(storm, kills, workers, seed, ledger, calls, db is not None, console))
        made = Counter(calls.read_text().splitlines())
    return Report(
        sent=len(storm.deliveries),
        distinct=storm.distinct,
        redeliveries=storm.redeliveries,
        producer_retries=storm.producer_retries,
        kills_asked=kills,
        kills=crew.landed,
        unanswered=crew.unanswered,
        tickets=tickets["all"],
        doubled_tickets=tickets["all"] - tickets["different"],
        lost_tickets=storm.distinct - tickets["different"],
        calls=made.total(),
        repeated_calls=made.total() - len(made),
        lost_calls=storm.distinct - len(made),
        duplicates_answered=crew.answers["duplicate"],
        given_back=crew.answers["busy"] + crew.answers["retry"],
        unexpected={s: n for s, n in crew.answers.items() if s not in (*FINAL, "busy", "retry")},
        seconds=seconds,
    )


async def _run(
    storm: traffic.Storm, kills: int, workers: int, seed: int, ledger: Path, calls: Path, kept: bool, console: Console
) -> tuple[Crew, dict[str, int], float]:
    """Send it all. Returns the crew that did, the tickets that are there now, and the seconds it took."""
    await _create_tickets(ledger)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        console.print(
            f"{len(storm.deliveries):,} deliveries of {storm.distinct:,} events → "
            f"{workers} worker processes → {'a ledger' if kept else 'a temporary ledger (--db keeps it)'}",
            highlight=False,
        )
        crew = Crew(
            *(command(ledger, calls), storm.deliveries, workers, kills, Random(seed)),
            tell=lambda text: console.print(text, highlight=False),
        )
        task = progress.add_task("deliveries answered", total=len(storm.deliveries))
        showing = asyncio.create_task(_show(progress, task, crew))
        begun = time.perf_counter()
        try:
            await crew.run()
        except* Exception as failures:
            raise failures.exceptions[0] from None
        finally:
            showing.cancel()
        seconds = time.perf_counter() - begun
    return crew, await _count_tickets(ledger), seconds


async def _show(progress: Progress, task: Any, crew: Crew) -> None:
    while True:
        progress.update(task, completed=crew.answered)
        await asyncio.sleep(0.1)


async def _create_tickets(ledger: Path) -> None:
    await _in_transaction(ledger, "create", "create table ticket (event text not null)")


async def _count_tickets(ledger: Path) -> dict[str, int]:
    rows = await _in_transaction(ledger, "count", "select count(*), count(distinct event) from ticket")
    return dict(zip(("all", "different"), rows[0], strict=True))


async def _in_transaction(ledger: Path, step: str, sql: str) -> Any:
    """The demo's own table is reached as any handler reaches its own: through ctx.tx."""
    async with Semel(ledger_url(ledger), origin="semel demo") as app:

        @app.on("semel.demo", effect="transaction", name="demo")
        async def run_sql(event: Any, ctx: Any) -> Any:
            return ctx.tx.execute(sql)

        outcome = await app.process({"id": step, "type": "semel.demo"})
        if outcome.status != "done":
            raise RuntimeError(f"the demo's own table: {outcome.reason}")
        return outcome.result


def as_json(report: Report) -> str:
    return json.dumps({**asdict(report), "holds": report.holds}, indent=2)


def as_table(report: Report) -> Table:
    table = Table(title="What happened", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    copies = f"{report.redeliveries:,} redeliveries, {report.producer_retries:,} retries in a new envelope"
    repeats = f"{report.repeated_calls:,} repeated, each by a kill between the call and its record"
    for what, number, note in (
        ("deliveries sent", report.sent, copies),
        ("different events", report.distinct, ""),
        (
            "workers killed at work",
            report.kills,
            f"of {report.kills_asked}, with {report.unanswered:,} deliveries in hand",
        ),
        ("duplicates answered", report.duplicates_answered, ""),
        ("told to come later", report.given_back, "another worker was at it, or had died at it"),
        ('tickets, effect="transaction"', report.tickets, "exactly once"),
        ("    doubled", report.doubled_tickets, ""),
        ("    lost", report.lost_tickets, ""),
        ('calls, effect="retry"', report.calls, f"at least once: {repeats}"),
        ("    lost", report.lost_calls, ""),
        ("deliveries a second", round(report.sent / report.seconds), f"{report.seconds:.1f} s, with crashes"),
    ):
        table.add_row(what, f"{number:,}", note)
    return table


def conclusion(report: Report) -> str:
    if not report.holds:
        others = "".join(f", {count:,} answered {status!r}" for status, count in report.unexpected.items())
        return (
            f"NOT once: {report.doubled_tickets:,} tickets doubled, {report.lost_tickets:,} lost, "
            f"{report.lost_calls:,} calls lost{others}."
        )
    if report.kills < report.kills_asked:
        return (
            f"Nothing was lost or doubled, but only {report.kills} of {report.kills_asked} kills hit a worker at work."
        )
    return f"{report.distinct:,} events, {report.tickets:,} tickets: each once."
