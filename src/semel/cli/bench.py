"""`semel bench`: one run measures everything, each scenario once in every round, and compares within the round."""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.cli import bench_measures
from semel.cli.bench_measures import BATCH, CALLERS, Bench, load_peers
from semel.cli.options import Json

NOT_MEASURED = "not measured: add --peers bench/peers.py"


@dataclass(frozen=True)
class Scenario:
    """One thing to measure; `peer` ones need --peers, `keys` ones the ledger of many keys."""

    name: str
    label: str
    unit: str
    meaning: str
    peer: bool = False
    keys: bool = False


@dataclass(frozen=True)
class Line:
    """One line of the table: a scenario, alone or against a floor of the same round, and what is aimed at."""

    scenario: str
    against: str = ""
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Finding:
    """A line with its numbers."""

    scenario: str
    label: str
    unit: str
    median: float
    values: list[float]
    against: str
    ratio: float | None
    target: str
    verdict: str  # ok, below, or empty where nothing is aimed at


@dataclass
class BenchReport:
    rounds: int
    keys: int
    python: str
    machine: str
    findings: list[Finding] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)  # scenario: why it was not measured
    fill_s: float = 0.0


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("envelope_and_key", "envelope and key", "µs", "CPU from the bytes of a 1.4 KB event to its digest"),
        Scenario("importing", "import semel", "ms", "above the start of bare Python"),
        Scenario("importing_all", "import Semel", "ms", "the app class, with everything it needs, above bare Python"),
        Scenario("importing_asyncio", "import asyncio", "ms", "the part of it that any async program pays"),
        Scenario("one_at_a_time", "one caller", "/s", "process, each event awaited before the next"),
        Scenario("callers", f"{CALLERS} callers", "/s", "process, called concurrently"),
        Scenario("batches", "batches", "/s", f"process_many of {BATCH} new events"),
        Scenario(
            "bare_sql",
            "bare SQL",
            "/s",
            f"claim, commit, settle, commit of {BATCH} rows with a record's columns",
            peer=True,
        ),
        Scenario("clustered_sql", "clustered SQL", "/s", "bare SQL on a table WITHOUT ROWID", peer=True),
        Scenario("slim_sql", "slim SQL", "/s", "bare SQL with five columns", peer=True),
        Scenario(
            "validated_loop", "pydantic loop", "/s", "a validating model and bare SQL, one event at a time", peer=True
        ),
        Scenario("batches_on_many_keys", "batches, full", "/s", "on a ledger with many settled keys", keys=True),
        Scenario(
            "memory_growth", "memory growth", "MiB", "over many events on that ledger, when caches are full", keys=True
        ),
    )
}
LINES = (
    Line("envelope_and_key", at_most=3.0),
    Line("importing", at_most=60.0),
    Line("importing_all"),
    Line("importing_asyncio"),
    Line("one_at_a_time", "validated_loop"),
    Line("callers", "one_at_a_time", at_least=15.0),
    Line("callers", "validated_loop"),
    Line("batches", "validated_loop"),
    Line("batches", "bare_sql", at_least=0.7),
    Line("batches", "clustered_sql"),
    Line("batches", "slim_sql"),
    Line("batches_on_many_keys", "batches", at_least=0.6),
    Line("memory_growth"),
    Line("bare_sql"),
    Line("clustered_sql"),
    Line("slim_sql"),
    Line("validated_loop"),
)
ONCE = "memory_growth"  # growth is not a rate: one long look tells more than several short ones


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Every scenario is measured once in each; medians are shown.")
    ] = 5,
    keys: Annotated[
        int,
        typer.Option(min=0, max=100_000_000, help="Settled keys in the large ledger; about 300 bytes of disk each."),
    ] = 200_000,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the work in each round: less certain.")] = False,
    peers: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Python file with the programs to compare with: bench/peers.py."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Where the databases go; by default the system's temporary one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure Semel on this machine against minimal programs written by hand.

    Targets are ratios wherever a machine's speed would decide otherwise; a missed one says "below" and is no error.
    Name a --folder on a real disk if temporary files are in memory here: commits would cost nothing there.
    """
    report = run(rounds, keys, quick, peers, folder, Console(stderr=True))
    if as_json:
        typer.echo(to_json(report))
        return
    Console().print(as_table(report))
    typer.echo(legend(report))


def run(rounds: int, keys: int, quick: bool, peers: Path | None, folder: Path | None, console: Console) -> BenchReport:
    """Measure. The folder holds databases of several GB when there are many keys, and is emptied afterwards."""
    report = BenchReport(rounds, keys, platform.python_version(), f"{platform.system()} {platform.machine()}")
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=folder) as work:
        bench_measures.check_disk(Path(work), keys)
        measures = Bench(Path(work), load_peers(peers) if peers else None, quick)
        wanted = _wanted(report, peers is not None, keys)
        values: dict[str, list[float]] = {name: [] for name in wanted}
        with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
            if keys:
                task = progress.add_task(f"settling {keys:,} keys", total=keys)
                measures.many_keys = f"sqlite:///{Path(work, 'many.db')}"
                report.fill_s = bench_measures.fill(measures.many_keys, keys, lambda size: progress.advance(task, size))
            task = progress.add_task("measuring", total=rounds * len(wanted))
            for turn in range(rounds):
                for name in wanted:
                    progress.update(task, description=f"round {turn + 1}: {SCENARIOS[name].label}")
                    if name != ONCE or turn == rounds - 1:
                        _measure(name, getattr(measures, name), values, report)
                    progress.advance(task)
                if not console.is_terminal:
                    console.print(f"round {turn + 1} of {rounds} is done")
        report.findings = [_finding(line, values) for line in LINES if values.get(line.scenario)]
    return report


def _wanted(report: BenchReport, peers: bool, keys: int) -> list[str]:
    for scenario in SCENARIOS.values():
        if scenario.peer and not peers:
            report.missing[scenario.name] = NOT_MEASURED
        elif scenario.keys and not keys:
            report.missing[scenario.name] = "not measured: --keys is 0"
    return [name for name in SCENARIOS if name not in report.missing]


def _measure(name: str, measure: Callable[[], float], values: dict[str, list[float]], report: BenchReport) -> None:
    if name in report.missing:
        return
    try:
        values[name].append(measure())
    except ImportError as error:  # a peer's own needs: pydantic is not one of ours
        report.missing[name] = f"not measured: {error}"


def _finding(line: Line, values: dict[str, list[float]]) -> Finding:
    scenario, own, floor = SCENARIOS[line.scenario], values[line.scenario], values.get(line.against)
    middle = median(own)
    ratio = median([mine / theirs for mine, theirs in zip(own, floor, strict=True)]) if floor else None
    compared = ratio if line.against else middle
    target = verdict = ""
    if line.at_least is not None:
        target = f"≥ {line.at_least:g} ×"
        verdict = "" if compared is None else "ok" if compared >= line.at_least else "below"
    elif line.at_most is not None:
        target = f"≤ {line.at_most:g} {scenario.unit}"
        verdict = "" if compared is None else "ok" if compared <= line.at_most else "below"
    return Finding(
        *(line.scenario, scenario.label, scenario.unit, middle, own),
        *(line.against, ratio, target, verdict),
    )


def to_json(report: BenchReport) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=2)


def as_table(report: BenchReport) -> Table:
    table = Table(title=f"Semel on SQLite, synchronous=full: medians of {report.rounds} rounds")
    table.add_column("scenario", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("compared with", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    before = ""
    for finding in report.findings:
        again = finding.scenario == before
        before = finding.scenario
        table.add_row(
            "" if again else finding.label,
            "" if again else f"{_number(finding.median)} {finding.unit}",
            "" if finding.ratio is None else f"{_number(finding.ratio)} ×",
            SCENARIOS[finding.against].label if finding.against else "",
            finding.target,
            {"ok": "[green]ok[/]", "below": "[yellow]below[/]"}.get(finding.verdict, ""),
        )
    return table


def legend(report: BenchReport) -> str:
    """What the names in the table mean, and what is not in it."""
    measured = {finding.scenario for finding in report.findings}
    return "\n".join(
        [
            f"Python {report.python}, {report.machine}. /s: events a second; ratios are medians of the rounds' own.",
            *[f"  {s.label}: {s.meaning}" for s in SCENARIOS.values() if s.name in measured],
            *([f"  many settled keys: {report.keys:,}, written in {report.fill_s:.1f} s"] if report.keys else []),
            *[f"  {SCENARIOS[name].label}: {why}" for name, why in report.missing.items()],
        ]
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
