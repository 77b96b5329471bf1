"""The results of a run: a table for each store, a legend, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from bench.outbox.plan import Line
from bench.stores.report import VERDICTS, number
from rich.table import Table


@dataclass(frozen=True)
class Finding:
    """A line with its medians over the rounds. A ratio is the median of the ratios of the rounds."""

    figure: str
    label: str
    unit: str
    value: float
    against: str  # the label of the compared figure
    ratio: float | None
    aim: str
    verdict: str  # ok, below, unjudged, or empty if there is no target


@dataclass
class StoreReport:
    name: str
    title: str
    rounds: int
    findings: list[Finding] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)  # one for each round
    meanings: dict[str, str] = field(default_factory=dict)
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


def finding(
    line: Line, labels: Mapping[str, str], figures: Mapping[str, Sequence[float]], busy: bool = False
) -> Finding:
    """On a busy machine ratios are judged, but times above the target are not."""
    own, other = figures[line.figure], figures.get(line.against)
    value = median(own)
    ratio = median([mine / theirs for mine, theirs in zip(own, other, strict=True)]) if other else None
    aim, met = "", False
    if line.at_least is not None and ratio is not None:
        aim, met = f"≥ {line.at_least:g} ×", ratio >= line.at_least
    elif line.at_most is not None:
        aim, met = f"≤ {line.at_most:g}{f' {line.unit}' if ratio is None else ' ×'}", (ratio or value) <= line.at_most
    luck = busy and not met and line.unit.startswith("ms")
    verdict = "" if not aim else "unjudged" if line.unjudged or luck else "ok" if met else "below"
    against = labels[line.against] if line.against else ""
    return Finding(line.figure, line.label, line.unit, value, against, ratio, aim, verdict)


# ---------------------------------------------------------------------------------------------------------- showing


def as_json(report: Report) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=2)


def as_table(store: StoreReport) -> Table:
    table = Table(title=f"{store.title}: medians of {store.rounds} round{'s' if store.rounds > 1 else ''}")
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("compared with", no_wrap=True)
    table.add_column("aim", no_wrap=True)
    table.add_column("", no_wrap=True)
    before = ""
    for line in store.findings:
        kind, _, _ = line.unit.partition(" ")  # of times, also where they are percentiles
        if before and kind != before:
            table.add_section()
        before = kind
        table.add_row(
            line.label,
            number(line.value),
            line.unit,
            "" if line.ratio is None else f"{number(line.ratio)} ×",
            line.against,
            line.aim,
            VERDICTS.get(line.verdict, ""),
        )
    return table


def legend(report: Report) -> str:
    """Explain the names in the tables and the state of the machine."""
    lines = [
        f"Python {report.python}, {report.machine}, {report.processors} processors, shared by all that is measured; "
        f"load {report.load_begin:.1f} at the beginning and {report.load_end:.1f} at the end; {report.seconds:.0f} s.",
        "Ratios are medians of the ratios of the rounds. Senders are measured by their rate. µs are the processor time",
        "per message, of the sending process (client) and of store and provider together (servers).",
    ]
    for store in report.stores:
        lines += [f"{store.title}:", *[f"  {name}: {meaning}" for name, meaning in store.meanings.items()]]
        lines += [f"  {remark}" for remark in store.remarks]
    return "\n".join(lines)
