"""One run: every scenario of a part once in each round, so that noise of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.service.processes import terminable
from bench.sources.plan import Line, Open, Part, Sample, Sizes
from bench.stores.report import Finding, Report, StoreReport
from rich.console import Console

BUSY = "more programs than processors wanted to run meanwhile: a rate that falls short is not judged; see client µs"


def run(parts: Mapping[str, Open], sizes: Sizes, console: Console) -> Report:
    """Measure one part after the other. Their servers do not run at the same time, and are stopped afterwards."""
    begun = time.monotonic()
    report = Report(
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        load_begin=os.getloadavg()[0],
    )
    for opened in parts.values():
        with terminable(), TemporaryDirectory(prefix="semel-bench-") as work, opened(Path(work), sizes) as part:
            report.stores.append(_measure(part, sizes.rounds, console))
    report.load_end = os.getloadavg()[0]
    report.seconds = time.monotonic() - begun
    return report


def _measure(part: Part, rounds: int, console: Console) -> StoreReport:
    load = os.getloadavg()[0]
    samples: dict[str, list[Sample]] = {scenario.name: [] for scenario in part.scenarios}
    for turn in range(rounds):
        for scenario in part.scenarios:
            samples[scenario.name].append(scenario.measure())
        console.print(f"{part.name}: round {turn + 1} of {rounds} is done")
    labels = {scenario.name: scenario.label for scenario in part.scenarios}
    busy = max(load, os.getloadavg()[0]) > (os.cpu_count() or 1)  # a run alone keeps about one processor busy
    return StoreReport(
        name=part.name,
        title=part.title,
        rounds=rounds,
        findings=[finding(line, labels, samples, busy) for line in part.lines],
        samples=samples,
        meanings={scenario.meaning: [scenario.label] for scenario in part.scenarios},
        remarks=[*part.remarks(), *([BUSY] if busy else [])],
    )


def finding(line: Line, labels: Mapping[str, str], samples: Mapping[str, list[Sample]], busy: bool = False) -> Finding:
    """A line with its medians over the rounds. A ratio is the median of the ratios of the rounds. On a busy machine a
    rate below its target is not judged."""
    own, other = samples[line.scenario], samples.get(line.against)
    rate, cpu_us, server_us = (median([getattr(one, name) for one in own]) for name in ("rate", "cpu_us", "server_us"))
    ratio = median([mine.rate / theirs.rate for mine, theirs in zip(own, other, strict=True)]) if other else None
    by_cpu = median([theirs.cpu / mine.cpu for mine, theirs in zip(own, other, strict=True)]) if other else None
    aim, met = "", False
    if line.at_least is not None and ratio is not None:
        aim, met = f"≥ {line.at_least:g} ×", ratio >= line.at_least
    elif line.rate_at_least is not None:
        aim, met = f"≥ {line.rate_at_least:,.0f}/s", rate >= line.rate_at_least
        if line.or_reaches and not met:
            aim, met = f"{aim} or the {labels[line.or_reaches]}", rate >= _median_rate(samples[line.or_reaches])
    verdict = "" if not aim else "ok" if met else "unjudged" if busy and line.rate_at_least is not None else "below"
    against = labels[line.against] if line.against else ""
    return Finding(line.scenario, labels[line.scenario], rate, cpu_us, server_us, against, ratio, by_cpu, aim, verdict)


def _median_rate(samples: list[Sample]) -> float:
    return median([sample.rate for sample in samples])
