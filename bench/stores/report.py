"""The results of a run: a table for each store, a legend, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from bench.stores.plan import Line, Sample
from rich.table import Table

VERDICTS = {"ok": "[green]ok[/]", "below": "[yellow]below[/]", "unjudged": "[dim]not judged[/]"}


@dataclass(frozen=True)
class Finding:
    """A line with its numbers: medians of the rounds. A ratio is the median of the rounds' own."""

    scenario: str
    label: str
    rate: float
    cpu_us: float
    server_us: float
    against: str  # the label of what it is compared with
    ratio: float | None  # of rates
    by_cpu: float | None  # of processor time, client and server together: above 1 it costs less than the other
    aim: str
    verdict: str  # ok, below, unjudged, or empty where nothing is aimed at


@dataclass
class StoreReport:
    name: str
    title: str
    rounds: int
    findings: list[Finding] = field(default_factory=list)
    samples: dict[str, list[Sample]] = field(default_factory=dict)  # by scenario, one for each round
    meanings: dict[str, list[str]] = field(default_factory=dict)  # of labels
    remarks: list[str] = field(default_factory=list)


@dataclass
class Report:
    python: str
    machine: str
    processors: int
    load_begin: float  # of the machine: runnable processes, over the last minute
    load_end: float = 0.0
    seconds: float = 0.0
    stores: list[StoreReport] = field(default_factory=list)


def finding(line: Line, labels: dict[str, str], samples: dict[str, list[Sample]]) -> Finding:
    own, other = samples[line.scenario], samples.get(line.against)
    rate, cpu_us, server_us = (median([getattr(one, name) for one in own]) for name in ("rate", "cpu_us", "server_us"))
    ratio = median([mine.rate / theirs.rate for mine, theirs in zip(own, other, strict=True)]) if other else None
    by_cpu = median([theirs.cpu / mine.cpu for mine, theirs in zip(own, other, strict=True)]) if other else None
    aim, met = "", False
    if line.at_least is not None and ratio is not None:
        aim, met = f"≥ {line.at_least:g} ×", ratio >= line.at_least
    elif line.cpu_at_most is not None:
        aim, met = f"≤ {line.cpu_at_most:g} µs", cpu_us <= line.cpu_at_most
    verdict = "" if not aim else "unjudged" if line.unjudged else "ok" if met else "below"
    against = labels[line.against] if line.against else ""
    return Finding(line.scenario, labels[line.scenario], rate, cpu_us, server_us, against, ratio, by_cpu, aim, verdict)


# ---------------------------------------------------------------------------------------------------------- showing


def as_json(report: Report) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=2)


def as_table(store: StoreReport) -> Table:
    table = Table(title=f"{store.title}: medians of {store.rounds} round{'s' if store.rounds > 1 else ''}")
    table.add_column("scenario", no_wrap=True)
    table.add_column("events/s", justify="right", no_wrap=True)
    table.add_column("client µs", justify="right", no_wrap=True)
    table.add_column("server µs", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("by µs", justify="right", no_wrap=True)
    table.add_column("compared with", no_wrap=True)
    table.add_column("aim", no_wrap=True)
    table.add_column("", no_wrap=True)
    before = ""
    for line in store.findings:
        again = line.scenario == before
        before = line.scenario
        table.add_row(
            "" if again else line.label,
            "" if again else f"{line.rate:,.0f}",
            "" if again else number(line.cpu_us),
            "" if again else number(line.server_us),
            "" if line.ratio is None else f"{number(line.ratio)} ×",
            "" if line.by_cpu is None else f"{number(line.by_cpu)} ×",
            line.against,
            line.aim,
            VERDICTS.get(line.verdict, ""),
        )
    return table


def legend(report: Report) -> str:
    """Explain the names in the tables and the state of the machine."""
    return "\n".join(
        [
            f"Python {report.python}, {report.machine}, {report.processors} processors, shared by the client and the "
            f"servers; load {report.load_begin:.1f} at the beginning and {report.load_end:.1f} at the end; "
            f"{report.seconds:.0f} s.",
            "µs: processor time of client and server for each event. Ratios are of rates and, by µs, of both processor",
            "times together, which other work on the machine disturbs less; each is the median of the rounds' own.",
            *[line for store in report.stores for line in _store_legend(store)],
        ]
    )


def _store_legend(store: StoreReport) -> Sequence[str]:
    return [
        f"{store.title}:",
        *[f"  {', '.join(labels)}: {meaning}" for meaning, labels in store.meanings.items()],
        *[f"  {remark}" for remark in store.remarks],
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
