"""The command: `python -m bench.sources` at the root of the repository."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Annotated

import typer
from bench.sources.sqs import PEER_SHARE, Sample, bodies, by_hand, by_semel
from rich.console import Console
from rich.table import Table

AIM = 12.0  # times the loop by hand


def main(
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="Deliveries of each run.")] = 40_000,
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    ledger: Annotated[str, typer.Option(help="The ledger's URL; a fresh one.")] = "memory://",
) -> None:
    """Measure the SQS path on a queue in memory, a millisecond away, and the loop that one would write by hand."""
    peer = bodies(messages // PEER_SHARE)
    table = Table(title=f"SQS, 1 ms away, ledger {ledger.partition(':')[0]}: medians of {rounds} rounds")
    for column in ("who", "messages/s", "CPU µs", "requests", "ratio"):
        table.add_column(column, justify="left" if column == "who" else "right")
    found: dict[str, list[Sample]] = {}
    for turn in range(rounds):
        found.setdefault("receive, SETNX, delete, one by one", []).append(asyncio.run(by_hand(peer)))
        for pollers, lanes in ((1, 1), (4, 2), (16, 4)):
            url = ledger if ledger == "memory://" else f"{ledger}-{turn}-{pollers}"
            sample = asyncio.run(by_semel(bodies(messages), url, pollers=pollers, lanes=lanes))
            found.setdefault(f"Semel, {pollers} pollers, {lanes} workers", []).append(sample)
    floor = next(iter(found.values()))
    for who, samples in found.items():
        ratio = median(mine.rate / other.rate for mine, other in zip(samples, floor, strict=True))
        table.add_row(
            who,
            f"{median(sample.rate for sample in samples):,.0f}",
            f"{median(sample.cpu_us for sample in samples):.1f}",
            f"{median(sample.requests for sample in samples):.2f}",
            f"{ratio:.1f} ×" + (f" (aim ≥ {AIM:g})" if who.startswith("Semel, 16") else ""),
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
