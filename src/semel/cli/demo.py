"""`semel demo`: a storm with duplicates and crashes, sent through the library, and what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class DemoReport:
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


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    events: Annotated[int, typer.Option(min=10, max=1_000_000, help="Different events to send.")] = 5_000,
    duplicates: Annotated[
        float, typer.Option(min=0, max=10, help="Copies besides: 0.3 is 30 for every 100 events.")
    ] = 0.3,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How often a worker process is killed.")] = 6,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes that share the ledger.")] = 2,
    seed: Annotated[int, typer.Option(help="Makes the same storm again. The kills fall where they fall.")] = 1,
    db: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Keep the ledger in this new file, to look at afterwards.")
    ] = None,
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
        raise ConfigError(f"--db {db}: this file exists already; the demo counts what is in a new one")
    storm = traffic.storm(events, duplicates, seed)
    with tempfile.TemporaryDirectory(prefix="semel-demo-") as work:
        ledger, calls = (db or Path(work, "semel.db")).absolute(), Path(work, "calls.txt")
        crew, tickets, seconds = asyncio.run(_run(storm, kills, workers, seed, ledger, calls, db is not None, console))
        made = Counter(calls.read_text().splitlines())
    return DemoReport(
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


def to_json(report: DemoReport) -> str:
    return json.dumps({**asdict(report), "holds": report.holds}, indent=2)


def as_table(report: DemoReport) -> Table:
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


def conclusion(report: DemoReport) -> str:
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


# The crew of `semel demo`: worker processes that are fed, killed and replaced.
#
# It is a source that delivers at least once: what a worker had in hand when it died is delivered again.

WINDOW = 150  # deliveries that a worker has in hand: one batch in work, two waiting
KILL_WITHIN_S = 0.03  # a kill falls anywhere within a batch's work
STALLED_S = 60.0  # without any answer, something is broken

FINAL = ("done", "duplicate")
AGAIN = ("busy", "retry")


class Crew:
    """Brings every delivery to a final answer, whatever happens to the workers."""

    def __init__(
        self,
        command: Sequence[str],
        deliveries: Sequence[bytes],
        workers: int,
        kills: int,
        random: Random,
        tell: Callable[[str], None],
    ) -> None:
        self._command = command
        self._deliveries = deliveries
        self._kills = kills
        self._random = random
        self._tell = tell
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._workers = [Worker(number + 1, self._ready, deliveries, self._answered) for number in range(workers)]
        self._moved = asyncio.Event()  # an answer came
        self.answered = 0
        self.answers: Counter[str] = Counter()
        self.landed = 0  # kills that hit a worker with deliveries in hand
        self.unanswered = 0  # deliveries that killed workers had in hand

    async def run(self) -> None:
        for number in range(len(self._deliveries)):
            self._ready.put_nowait(number)
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.live(self._command))
            tasks.create_task(self._kill_now_and_then())
            while self.answered < len(self._deliveries):
                await self._next_answer()
            for worker in self._workers:
                worker.dismiss()

    async def _kill_now_and_then(self) -> None:
        """Spread over the storm. A kill that missed, because its worker had nothing in hand, is tried again."""
        total = len(self._deliveries)
        while self.landed < self._kills and self.answered < total:
            if self.answered < total * (self.landed + 1) // (self._kills + 1):
                await self._next_answer()
                continue
            await asyncio.sleep(self._random.uniform(0, KILL_WITHIN_S))
            worker = self._random.choice(self._workers)
            in_hand = await worker.kill()
            if in_hand:
                self.landed += 1
                self.unanswered += in_hand
                self._tell(f"killed worker {worker.number} with {in_hand} deliveries in hand; they are delivered again")

    async def _next_answer(self) -> None:
        self._moved.clear()
        try:
            async with asyncio.timeout(STALLED_S):
                await self._moved.wait()
        except TimeoutError:
            raise SemelError(f"no worker has answered for {STALLED_S:.0f} s") from None

    def _answered(self, number: int, status: str, after_s: float) -> None:
        self.answers[status] += 1
        if status in AGAIN:
            asyncio.get_running_loop().call_later(after_s, self._ready.put_nowait, number)
        else:
            self.answered += 1
        self._moved.set()


class Worker:
    """One place in the crew; when its process is killed, another takes the place."""

    def __init__(
        self,
        number: int,
        ready: asyncio.Queue[int],
        deliveries: Sequence[bytes],
        answered: Callable[[int, str, float], None],
    ) -> None:
        self.number = number
        self._ready = ready
        self._deliveries = deliveries
        self._answered = answered
        self._process: asyncio.subprocess.Process | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._dismissed = False
        self._at_work = False  # this process has answered something
        self._killed: asyncio.Future[int] | None = None

    async def live(self, command: Sequence[str]) -> None:
        """Start a process, and the next one when it was killed, until dismissed. None outlives this."""
        try:
            await self._live(command)
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def _live(self, command: Sequence[str]) -> None:
        while not self._dismissed:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us, and we end our workers
            )
            self._at_work = False
            in_hand: set[int] = set()
            window = asyncio.Semaphore(WINDOW)
            self._feeding = asyncio.create_task(self._feed(self._process, in_hand, window))
            if self._dismissed:
                self.dismiss()
            await self._hear(self._process, in_hand, window)
            self._feeding.cancel()
            code = await self._process.wait()
            self._process = None
            for number in in_hand:
                self._ready.put_nowait(number)
            if self._killed is not None:
                self._killed.set_result(len(in_hand))
                self._killed = None
            elif code:
                raise SemelError(f"worker {self.number} ended by itself, with exit code {code}")

    async def kill(self) -> int:
        """Kill the process without warning. Returns how many deliveries it had in hand; 0: not yet at work."""
        if self._process is None or not self._at_work or self._dismissed or self._killed is not None:
            return 0
        self._killed = asyncio.get_running_loop().create_future()
        self._process.kill()
        return await self._killed

    def dismiss(self) -> None:
        """No more work: the process ends when its input does."""
        self._dismissed = True
        if self._feeding is not None:
            self._feeding.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def _feed(self, process: asyncio.subprocess.Process, in_hand: set[int], window: asyncio.Semaphore) -> None:
        assert process.stdin is not None
        try:
            while True:
                await window.acquire()
                number = await self._ready.get()
                in_hand.add(number)
                process.stdin.write(b"%d\t%s\n" % (number, self._deliveries[number]))
                await process.stdin.drain()
        except ConnectionError:
            return  # it was killed: what is in hand is delivered again

    async def _hear(self, process: asyncio.subprocess.Process, in_hand: set[int], window: asyncio.Semaphore) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # cut off in the middle: not an answer
            number, status, after_s = line.decode().split()
            self._at_work = True
            in_hand.discard(int(number))
            window.release()
            self._answered(int(number), status, float(after_s))


def command(ledger: Path, calls: Path) -> list[str]:
    return [sys.executable, "-m", "semel.cli.demo_worker", str(ledger), str(calls)]
