"""Measures the service in rounds and reports the medians.

Each round measures every scenario once, with a new server, and compares scenarios within the round.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.service.processes import check_system, terminable
from bench.service.scenarios import CONNECTIONS, SCENARIOS, Measured, ServiceBench
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

SENDER_BUSY = 0.8  # of one processor: above that the load may be what is measured


@dataclass(frozen=True)
class Aim:
    """One line of the table: a scenario, what it is compared with in the same round, and what is aimed at."""

    scenario: str
    against: str = "hello"
    at_least: float | None = None


AIMS = (
    Aim("hello", against=""),
    Aim("memory", at_least=0.7),
    Aim("sqlite", at_least=0.5),
    Aim("duplicates"),
    Aim("inbox"),
    Aim("overload", against="sqlite", at_least=0.8),
)


@dataclass(frozen=True)
class Finding:
    """A line with its numbers: medians of the rounds."""

    scenario: str
    label: str
    rate: float  # answers with 200, a second
    against: str
    ratio: float | None
    target: str
    verdict: str  # ok, below, or empty where nothing is aimed at
    p50_ms: float
    p99_ms: float
    cpu_us: float
    refused: float  # share of all answers


@dataclass
class Report:
    rounds: int
    seconds: float
    connections: int
    body_bytes: int
    python: str
    machine: str
    processors: int
    load_begin: float  # of the machine: runnable processes, over the last minute
    load_end: float = 0.0
    senders: int = 1
    sender_share: float = 0.0  # of one processor, at most
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, list[Measured]] = field(default_factory=dict)  # by scenario, one for each round


def run(rounds: int, seconds: float, warm_s: float, folder: Path | None, console: Console) -> Report:
    """Measure. Every process and file of it is gone afterwards, also when it is interrupted."""

    check_system()
    report = Report(
        rounds=rounds,
        seconds=seconds,
        connections=CONNECTIONS,
        body_bytes=0,
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        load_begin=os.getloadavg()[0],
        measured={name: [] for name in SCENARIOS},
    )
    with terminable(), tempfile.TemporaryDirectory(prefix="semel-bench-", dir=folder) as work:
        bench = ServiceBench(Path(work), seconds, warm_s)
        with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
            task = progress.add_task("signing events", total=rounds * len(SCENARIOS))
            report.body_bytes = bench.prepare()
            for turn in range(rounds):
                for name, scenario in SCENARIOS.items():
                    progress.update(task, description=f"round {turn + 1}: {scenario.label}")
                    report.measured[name].append(_measure(bench, name))
                    progress.advance(task)
                if not console.is_terminal:
                    console.print(f"round {turn + 1} of {rounds} is done")
    report.load_end = os.getloadavg()[0]
    report.senders = bench.processes
    report.sender_share = max(one.sender_share for all_rounds in report.measured.values() for one in all_rounds)
    report.findings = [_finding(aim, report.measured) for aim in AIMS]
    return report


def _measure(bench: ServiceBench, name: str) -> Measured:
    """With a second sender from the moment when one is too busy."""
    measured = bench.measure(SCENARIOS[name])
    if measured.sender_share > SENDER_BUSY and bench.processes == 1:
        bench.processes = 2
        measured = bench.measure(SCENARIOS[name])
    return measured


def _finding(aim: Aim, measured: dict[str, list[Measured]]) -> Finding:

    own, floor = measured[aim.scenario], measured.get(aim.against)
    ratio = median([mine.rate / theirs.rate for mine, theirs in zip(own, floor, strict=True)]) if floor else None
    target = verdict = ""
    if aim.at_least is not None and ratio is not None:
        target = f"≥ {aim.at_least:g}"
        verdict = "ok" if ratio >= aim.at_least else "below"
    return Finding(
        scenario=aim.scenario,
        label=SCENARIOS[aim.scenario].label,
        rate=median([one.rate for one in own]),
        against=aim.against,
        ratio=ratio,
        target=target,
        verdict=verdict,
        p50_ms=median([one.p50_ms for one in own]),
        p99_ms=median([one.p99_ms for one in own]),
        cpu_us=median([one.cpu_us for one in own]),
        refused=median([one.refused for one in own]),
    )


# -------------------------------------------------------------------------------------------------------- showing


def as_document(report: Report) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=2)


def as_table(report: Report) -> Table:

    table = Table(title=f"The service, one worker: medians of {report.rounds} rounds of {report.seconds:g} s")
    for name in ("scenario", "200/s", "ratio", "target", "p50 ms", "p99 ms", "CPU µs"):
        table.add_column(name, justify="right" if name[-2:] in ("/s", "ms", "µs") else "left", no_wrap=True)
    for finding in report.findings:
        table.add_row(
            finding.label,
            f"{finding.rate:,.0f}",
            "" if finding.ratio is None else f"{finding.ratio:.2f} × {SCENARIOS[finding.against].label}",
            finding.target + {"ok": " [green]ok[/]", "below": " [yellow]below[/]"}.get(finding.verdict, ""),
            f"{finding.p50_ms:.1f}",
            f"{finding.p99_ms:.1f}",
            f"{finding.cpu_us:.0f}",
        )
    return table


def legend(report: Report) -> str:
    """Explain the names in the table, with further figures."""
    copies = [one.duplicates / max(1, one.answers["200"]) for one in report.measured["duplicates"]]
    overload = report.measured["overload"]
    refused, in_flight = (median([getattr(one, name) for one in overload]) for name in ("refused", "in_flight"))
    return "\n".join(
        [
            f"Python {report.python}, {report.machine}, {report.processors} processors with a load of "
            f"{report.load_begin:.1f} at the beginning and {report.load_end:.1f} at the end.",
            f"{report.connections} connections, bodies of {report.body_bytes:,} bytes. Ratios are medians of the "
            "rounds' own; CPU is what the server used, in all its threads, for each 200.",
            *[f"  {scenario.label}: {scenario.meaning}" for scenario in SCENARIOS.values()],
            f"  {SCENARIOS['duplicates'].label}: {median(copies):.0%} of the answers said duplicate",
            f"  inbox: {_dead_letters(report.measured['inbox'])}",
            f"  overload: {in_flight:.0f} deliveries in the service at a time, {refused:.0%} of the answers were "
            f"refusals; memory {_memory(overload)}",
            f"  {_senders(report)}",
        ]
    )


def _dead_letters(rounds: Sequence[Measured]) -> str:
    handled = median([one.handled_rate or 0.0 for one in rounds])
    emptied = [one.emptied_rate for one in rounds if one.emptied_rate is not None]
    afterwards = f"{median(emptied):,.0f} /s when nothing came any more" if emptied else "nearly none was left over"
    return f"{handled:,.0f} /s were handled while others were accepted, {afterwards}"


def _memory(rounds: Sequence[Measured]) -> str:
    begin, end, most = (
        median([getattr(one, name) for one in rounds]) for name in ("rss_begin_mib", "rss_end_mib", "rss_max_mib")
    )
    return f"{begin:.0f} MiB at its beginning, {end:.0f} at its end, {most:.0f} at most"


def _senders(report: Report) -> str:
    lost = sum(one.lost for all_rounds in report.measured.values() for one in all_rounds)
    number = "one sending process" if report.senders == 1 else f"{report.senders} sending processes"
    busy = ": it may be what limits the rates" if report.sender_share > SENDER_BUSY else ""
    broken = f"; {lost:,} connections were lost" if lost else ""
    return f"{number}, at most {report.sender_share:.0%} of a processor each{busy}{broken}"
