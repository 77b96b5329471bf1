"""A ledger that becomes unavailable while a file is processed, over a real connection."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cli.process.conftest import event
from tests.stores.conftest import redis_url, valkey

from semel import Context, Event, Semel
from semel.cli.process_input import find_input
from semel.cli.process_report import ProcessReport
from semel.cli.process_run import FileRun, ProcessOptions
from semel.testing.proxy import Fault, FaultProxy

__all__ = ["redis_url", "valkey"]

DOWN = Fault(refuse=True)
COUNT = 1_000


class Cut:
    """An app on Redis whose connection is cut in the middle of a file."""

    def __init__(self, url: str, folder: Path) -> None:
        server = urlsplit(url)
        self.proxy = FaultProxy(server.hostname or "", server.port or 6379)
        self.url = url
        self.file = folder / "events.jsonl"
        self.file.write_bytes(b"\n".join(event(f"e{at}") for at in range(COUNT)))
        self.acted: list[str] = []
        self.cut_at = ""

    def run(self, patience_s: float, *, heal_after_s: float | None = None) -> ProcessReport:
        async def work() -> ProcessReport:
            async with Semel(f"{self.proxy.url(self.url)}&timeout=1", lease=2.0) as app:

                @app.on("sale")
                async def act(event: Event, ctx: Context) -> None:
                    self.acted.append(event.id)
                    if event.id == self.cut_at:
                        self.proxy.set(DOWN)
                        self.proxy.reset()
                        if heal_after_s is not None:
                            asyncio.get_running_loop().call_later(heal_after_s, self.proxy.heal)

                options = ProcessOptions(patience_s=patience_s)
                return await FileRun(app, options, lambda *_: None).run([find_input(str(self.file))])

        return asyncio.run(work())


@pytest.fixture
def cut(redis_url: str, tmp_path: Path) -> Any:
    cut = Cut(redis_url, tmp_path)
    with cut.proxy:
        yield cut


def test_the_run_waits_for_an_unavailable_ledger(cut: Cut) -> None:
    cut.cut_at = "e450"
    report = cut.run(60.0, heal_after_s=1.5)
    assert report.counts["done"] + report.counts["duplicate"] == COUNT
    assert report.ok
    assert set(cut.acted) == {f"e{at}" for at in range(COUNT)}


def test_without_patience_the_run_stops_and_the_next_run_processes_the_rest(cut: Cut) -> None:
    cut.cut_at = "e450"
    report = cut.run(1.0)
    assert "ledger" in report.stopped
    assert report.exit_code == 1
    assert report.counts["left"] > 0
    assert report.counts["done"] < COUNT
    (file,) = report.files
    assert not file.finished
    cut.proxy.heal()
    cut.cut_at = ""
    report = cut.run(60.0)
    assert report.ok, report
    assert set(cut.acted) == {f"e{at}" for at in range(COUNT)}
