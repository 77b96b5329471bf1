"""One run: every scenario of a store once in each round, so that a noisy minute of the machine falls on all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.service.processes import terminable
from bench.stores import on_cluster, on_postgres, on_redis
from bench.stores.plan import Sample, Scenario, Sizes, Store
from bench.stores.report import Report, StoreReport, finding
from rich.console import Console
from rich.progress import Progress

STORES: Mapping[str, Callable[[Path, Sizes], AbstractContextManager[Store]]] = {
    "redis": on_redis.opened,
    "postgres": on_postgres.opened,
    "cluster": on_cluster.opened,
}


def run(sizes: Sizes, only: Sequence[str], folder: Path | None, console: Console) -> Report:
    """Measure one store after the other: their servers do not run at the same time, and are gone afterwards."""
    begun = time.monotonic()
    report = Report(
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        load_begin=os.getloadavg()[0],
    )
    for name in only:
        with terminable(), TemporaryDirectory(prefix="semel-bench-", dir=folder) as work:
            with STORES[name](Path(work), sizes) as store:
                report.stores.append(_measure(store, sizes, console))
    report.load_end = os.getloadavg()[0]
    report.seconds = time.monotonic() - begun
    return report


def _measure(store: Store, sizes: Sizes, console: Console) -> StoreReport:
    samples: dict[str, list[Sample]] = {scenario.name: [] for scenario in store.scenarios}
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        filling = progress.add_task(f"{store.name}: preparing", total=sizes.keys)
        store.prepare(lambda keys: progress.advance(filling, keys))
        progress.remove_task(filling)
        task = progress.add_task(store.name, total=sizes.rounds * len(store.scenarios))
        ends = time.monotonic() + sizes.store_s
        for turn in range(sizes.rounds):
            if turn and time.monotonic() > ends:
                break
            for scenario in store.scenarios:
                progress.update(task, description=f"{store.name}, round {turn + 1}: {scenario.label}")
                samples[scenario.name].append(scenario.measure())
                progress.advance(task)
            if not console.is_terminal:
                console.print(f"{store.name}: round {turn + 1} of {sizes.rounds} is done")
    labels = {scenario.name: scenario.label for scenario in store.scenarios}
    return StoreReport(
        name=store.name,
        title=store.title,
        rounds=len(next(iter(samples.values()))),
        findings=[finding(line, labels, samples) for line in store.lines],
        samples=samples,
        meanings=_meanings(store.scenarios),
        remarks=[
            *store.remarks(),
            *[f"{labels[line.scenario]}: not judged, {line.unjudged}" for line in store.lines if line.unjudged],
        ],
    )


def _meanings(scenarios: Sequence[Scenario]) -> dict[str, list[str]]:
    """Notes that are equal at several sizes appear once."""
    meanings: dict[str, list[str]] = {}
    for scenario in scenarios:
        meanings.setdefault(scenario.meaning, []).append(scenario.label)
    return meanings
