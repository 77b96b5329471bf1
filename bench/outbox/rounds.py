"""One run: every scenario of a store once in each round, so that noise of the machine affects all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.outbox import on_postgres, on_sqlite
from bench.outbox.far_end import away
from bench.outbox.measures import Measures
from bench.outbox.plan import Open, Sizes
from bench.outbox.report import Report, StoreReport, finding
from bench.outbox.sending import as_in_the_service
from bench.service.processes import terminable
from rich.console import Console
from rich.progress import Progress

STORES: Mapping[str, Open] = {"sqlite": on_sqlite.opened, "postgres": on_postgres.opened}

BUSY = "more programs than processors wanted to run meanwhile: a time that is too long is not judged"


def run(sizes: Sizes, only: Sequence[str], folder: Path | None, console: Console) -> Report:
    """Measure one store after the other. Their servers do not run at the same time, and are stopped afterwards."""
    begun = time.monotonic()
    report = Report(
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count() or 1,
        load_begin=os.getloadavg()[0],
    )
    for name in only:
        with terminable(), TemporaryDirectory(prefix="semel-bench-", dir=folder) as work, as_in_the_service():
            with STORES[name](Path(work)) as store, away() as far:
                console.print(f"{name}: {sizes.finished:,} finished messages are made")
                report.stores.append(_measure(Measures(store, far, sizes, Path(work)), sizes, console))
    report.load_end = os.getloadavg()[0]
    report.seconds = time.monotonic() - begun
    return report


def _measure(measures: Measures, sizes: Sizes, console: Console) -> StoreReport:
    store, figures = measures.store, dict[str, list[float]]()
    rounds, load = 0, os.getloadavg()[0]
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(store.name, total=sizes.rounds * len(measures.scenarios))
        ends = time.monotonic() + sizes.store_s
        for turn in range(sizes.rounds):
            if turn and time.monotonic() > ends:
                break
            for scenario in measures.scenarios:
                progress.update(task, description=f"{store.name}, round {turn + 1}: {scenario.name}")
                for name, value in scenario.measure().items():
                    figures.setdefault(name, []).append(value)
                progress.advance(task)
            rounds += 1
            if not console.is_terminal:
                console.print(f"{store.name}: round {turn + 1} of {sizes.rounds} is done")
    busy = max(load, os.getloadavg()[0]) > (os.cpu_count() or 1)  # a run alone keeps about one processor busy
    labels = {line.figure: line.label for line in measures.lines}
    return StoreReport(
        name=store.name,
        title=store.title,
        rounds=rounds,
        findings=[finding(line, labels, figures, busy) for line in measures.lines],
        figures=figures,
        meanings={scenario.name: scenario.meaning for scenario in measures.scenarios},
        remarks=[*measures.remarks(), *([BUSY] if busy else [])],
    )
