"""`semel demo`: kills workers during a burst of duplicated events and counts the effects."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from semel.app import Semel
from semel.cli.demo_worker import ledger_url
from semel.cli.options import Json
from semel.testing import traffic
from semel.values.errors import ConfigError, SemelError

SHOW_S = 0.1


@dataclass(frozen=True)
class DemoReport:
    """The counts of one demo."""

    sent: int  # deliveries
    distinct: int
    redeliveries: int
    producer_retries: int
    kills_asked: int
    kills: int  # of workers with deliveries in flight
    unanswered: int  # deliveries that killed workers had in flight: redelivered
    tickets: int
    doubled_tickets: int
    lost_tickets: int
    calls: int
    repeated_calls: int
    lost_calls: int
    duplicates_answered: int
    given_back: int  # busy or retry: redelivered later
    unexpected: dict[str, int]  # other outcomes
    seconds: float

    @property
    def holds(self) -> bool:
        return not (self.doubled_tickets or self.lost_tickets or self.lost_calls or self.unexpected)


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    events: Annotated[int, typer.Option(min=10, max=1_000_000, help="Events to send.")] = 5_000,
    duplicates: Annotated[float, typer.Option(min=0, max=10, help="Copies: 0.3 is 30 for every 100 events.")] = 0.3,
    kills: Annotated[int, typer.Option(min=0, max=100, help="Worker processes to kill.")] = 6,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes that share the ledger.")] = 2,
    seed: Annotated[int, typer.Option(help="Sends the same burst again. The moments of the kills differ.")] = 1,
    db: Annotated[Path | None, typer.Option(dir_okay=False, help="Keep the ledger in this new file.")] = None,
    as_json: Json = False,
) -> None:
    """Kill workers during a burst of duplicated events and count the effects.

    Two handlers get every event: one writes a ticket in the ledger's transaction (exactly once), the other appends to a
    file (at least once). Ends with exit code 1 if a ticket is missing or doubled.
    """
    report = run(events, duplicates, kills, workers, seed, db, Console(stderr=True))
    if as_json:
        typer.echo(to_json(report))
    else:
        Console().print(as_table(report), conclusion(report), sep="\n")
    raise typer.Exit(0 if report.holds else 1)


def run(
    events: int, duplicates: float, kills: int, workers: int, seed: int, db: Path | None, console: Console
) -> DemoReport:
    if db is not None and db.exists():
        raise ConfigError(f"--db {db}: the file exists; name a new one, because the demo counts its content")
    storm = traffic.storm(events, duplicates, seed)
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as work:
        ledger, calls = (db or Path(work, "semel.db")).absolute(), Path(work, "calls.txt")
        pool, (tickets, ticket_events), seconds = asyncio.run(
            _run(storm, kills, workers, seed, ledger, calls, db is not None, console)
        )
        made = Counter(calls.read_text().splitlines())
    return DemoReport(
        sent=len(storm.deliveries),
        distinct=storm.distinct,
        redeliveries=storm.redeliveries,
        producer_retries=storm.producer_retries,
        kills_asked=kills,
        kills=pool.kills,
        unanswered=pool.redelivered,
        tickets=tickets,
        doubled_tickets=tickets - ticket_events,
        lost_tickets=storm.distinct - ticket_events,
        calls=made.total(),
        repeated_calls=made.total() - len(made),
        lost_calls=storm.distinct - len(made),
        duplicates_answered=pool.answers["duplicate"],
        given_back=pool.answers["busy"] + pool.answers["retry"],
        unexpected={s: n for s, n in pool.answers.items() if s not in (*FINAL, *RETURNED)},
        seconds=seconds,
    )


async def _run(
    storm: traffic.Storm, kills: int, workers: int, seed: int, ledger: Path, calls: Path, kept: bool, console: Console
) -> tuple[WorkerPool, tuple[int, int], float]:
    """Returns the pool, the tickets and the events that have one, and the seconds."""
    await _in_transaction(ledger, "create", "create table ticket (event text not null)")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        console.print(
            f"{len(storm.deliveries):,} deliveries of {storm.distinct:,} events → "
            f"{workers} worker processes → {'a ledger' if kept else 'a temporary ledger (--db keeps it)'}",
            highlight=False,
        )
        command = [sys.executable, "-m", "semel.cli.demo_worker", str(ledger), str(calls)]
        log = partial(console.print, highlight=False)
        pool = WorkerPool(command, storm.deliveries, workers, kills, Random(seed), log)
        task = progress.add_task("deliveries answered", total=len(storm.deliveries))

        async def show() -> None:
            while True:
                progress.update(task, completed=pool.answered)
                await asyncio.sleep(SHOW_S)

        showing = asyncio.create_task(show())
        started = time.perf_counter()
        try:
            await pool.run()
        except* Exception as failures:
            raise failures.exceptions[0] from None
        finally:
            showing.cancel()
        seconds = time.perf_counter() - started
    rows = await _in_transaction(ledger, "count", "select count(*), count(distinct event) from ticket")
    return pool, tuple(rows[0]), seconds


async def _in_transaction(ledger: Path, step: str, sql: str) -> Any:
    """Run SQL on the demo's table as a handler does: through ctx.tx."""
    async with Semel(ledger_url(ledger), origin="semel demo") as app:

        @app.on("semel.demo", effect="transaction", name="demo")
        async def run_sql(event: Any, ctx: Any) -> Any:
            return ctx.tx.execute(sql)

        outcome = await app.process({"id": step, "type": "semel.demo"})
        if outcome.status != "done":
            raise RuntimeError(f"the table of the demo: {outcome.reason}")
        return outcome.result


def to_json(report: DemoReport) -> str:
    return json.dumps({**asdict(report), "holds": report.holds}, indent=2)


def as_table(report: DemoReport) -> Table:
    table = Table(title="What happened", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    copies = f"{report.redeliveries:,} redeliveries, {report.producer_retries:,} retries in a new envelope"
    repeats = f"{report.repeated_calls:,} repeated by a kill between the call and its record"
    for label, number, note in (
        ("deliveries sent", report.sent, copies),
        ("events", report.distinct, ""),
        (
            "workers killed at work",
            report.kills,
            f"of {report.kills_asked}, with {report.unanswered:,} deliveries in flight",
        ),
        ("duplicates answered", report.duplicates_answered, ""),
        ("returned for later", report.given_back, "another worker was processing it, or was killed meanwhile"),
        ('tickets, effect="transaction"', report.tickets, "exactly once"),
        ("    doubled", report.doubled_tickets, ""),
        ("    lost", report.lost_tickets, ""),
        ('calls, effect="retry"', report.calls, f"at least once: {repeats}"),
        ("    lost", report.lost_calls, ""),
        ("deliveries a second", round(report.sent / report.seconds), f"{report.seconds:.1f} s, with the kills"),
    ):
        table.add_row(label, f"{number:,}", note)
    return table


def conclusion(report: DemoReport) -> str:
    if not report.holds:
        others = "".join(f", {count:,} answered {status!r}" for status, count in report.unexpected.items())
        return (
            f"NOT once: {report.doubled_tickets:,} tickets doubled, {report.lost_tickets:,} lost, "
            f"{report.lost_calls:,} calls lost{others}."
        )
    if report.kills < report.kills_asked:
        return (
            f"Nothing was lost or doubled, but only {report.kills} of {report.kills_asked} kills hit a working worker."
        )
    return f"{report.distinct:,} events, {report.tickets:,} tickets: each once."


# Worker processes that are fed, killed and replaced.
#
# Together they are a source with at-least-once delivery: the deliveries in flight of a killed worker are redelivered.

IN_FLIGHT_MAX = 150  # deliveries per worker: one batch in work, two waiting
KILL_WITHIN_S = 0.03  # a kill falls at a random moment of a batch
STALLED_S = 60.0  # without any answer, something is broken

FINAL = ("done", "duplicate")
RETURNED = ("busy", "retry")


class WorkerPool:
    """Redelivers until every delivery has a final answer, while it kills workers at random moments."""

    def __init__(
        self,
        command: Sequence[str],
        deliveries: Sequence[bytes],
        workers: int,
        kills: int,
        random: Random,
        log: Callable[[str], None],
    ) -> None:
        self._command = command
        self._deliveries = deliveries
        self._kills = kills
        self._random = random
        self._log = log
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        for number in range(len(deliveries)):
            self._ready.put_nowait(number)
        self._workers = [DemoWorker(number + 1, self._ready, deliveries, self._count) for number in range(workers)]
        self._progressed = asyncio.Event()
        self.answered = 0
        self.answers: Counter[str] = Counter()
        self.kills = 0  # of workers with deliveries in flight
        self.redelivered = 0  # deliveries that killed workers had in flight

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.run(self._command))
            tasks.create_task(self._kill_workers())
            while self.answered < len(self._deliveries):
                await self._wait_for_answer()
            for worker in self._workers:
                worker.finish()

    async def _kill_workers(self) -> None:
        """Spread the kills over the burst. A kill of a worker with nothing in flight is repeated."""
        total = len(self._deliveries)
        while self.kills < self._kills and self.answered < total:
            if self.answered < total * (self.kills + 1) // (self._kills + 1):
                await self._wait_for_answer()
                continue
            await asyncio.sleep(self._random.uniform(0, KILL_WITHIN_S))
            worker = self._random.choice(self._workers)
            if in_flight := await worker.kill():
                self.kills += 1
                self.redelivered += in_flight
                self._log(f"killed worker {worker.number} with {in_flight} deliveries in flight; they are redelivered")

    async def _wait_for_answer(self) -> None:
        self._progressed.clear()
        try:
            async with asyncio.timeout(STALLED_S):
                await self._progressed.wait()
        except TimeoutError:
            raise SemelError(f"no worker has answered for {STALLED_S:.0f} s") from None

    def _count(self, number: int, status: str, after_s: float) -> None:
        self.answers[status] += 1
        if status in RETURNED:
            asyncio.get_running_loop().call_later(after_s, self._ready.put_nowait, number)
        else:
            self.answered += 1
        self._progressed.set()


class DemoWorker:
    """One process of the pool. A killed process is replaced."""

    def __init__(
        self,
        number: int,
        ready: asyncio.Queue[int],
        deliveries: Sequence[bytes],
        count: Callable[[int, str, float], None],
    ) -> None:
        self.number = number
        self._ready = ready
        self._deliveries = deliveries
        self._count = count
        self._process: asyncio.subprocess.Process | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._finishing = False
        self._is_working = False  # this process has answered a delivery
        self._killed: asyncio.Future[int] | None = None

    async def run(self, command: Sequence[str]) -> None:
        """Start a process, and another one whenever it was killed, until `finish`. No process outlives this call."""
        try:
            while not self._finishing:
                await self._run_process(command)
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def _run_process(self, command: Sequence[str]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends its workers
        )
        self._is_working = False
        in_flight: set[int] = set()
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._feeding = asyncio.create_task(self._feed(self._process, in_flight, slots))
        if self._finishing:
            self.finish()
        await self._read_answers(self._process, in_flight, slots)
        self._feeding.cancel()
        code = await self._process.wait()
        self._process = None
        for number in in_flight:
            self._ready.put_nowait(number)
        if self._killed is not None:
            self._killed.set_result(len(in_flight))
            self._killed = None
        elif code:
            raise SemelError(f"worker {self.number} ended unexpectedly with exit code {code}")

    async def kill(self) -> int:
        """Kill the process. Returns the number of its deliveries in flight; 0 if it was not working yet."""
        if self._process is None or not self._is_working or self._finishing or self._killed is not None:
            return 0
        self._killed = asyncio.get_running_loop().create_future()
        self._process.kill()
        return await self._killed

    def finish(self) -> None:
        """Close the input of the process, which then ends."""
        self._finishing = True
        if self._feeding is not None:
            self._feeding.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def _feed(self, process: asyncio.subprocess.Process, in_flight: set[int], slots: asyncio.Semaphore) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):  # it was killed
            while True:
                await slots.acquire()
                number = await self._ready.get()
                in_flight.add(number)
                process.stdin.write(b"%d\t%s\n" % (number, self._deliveries[number]))
                await process.stdin.drain()

    async def _read_answers(
        self, process: asyncio.subprocess.Process, in_flight: set[int], slots: asyncio.Semaphore
    ) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # incomplete: the process was killed
            number, status, after_s = line.decode().split()
            self._is_working = True
            in_flight.discard(int(number))
            slots.release()
            self._count(int(number), status, float(after_s))
