"""Sources beside the webhooks: what is counted, what is said of them, and how they end."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pytest
from tests.engine.faults import FaultyLine
from tests.service.consuming.shelf import Shelf, app_with, body, run, until

from semel import ConfigError, Context, Event, Semel
from semel.core import ledger_breaker, worker
from semel.service import consumers
from semel.service.assembly import SourceSpec
from semel.service.background import Background
from semel.service.consumers import Consumers
from semel.service.metrics import Metrics


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff is there, and short."""
    for module in (worker, ledger_breaker, consumers):
        monkeypatch.setattr(module, "AGAIN_BASE_S", 0.01)
        monkeypatch.setattr(module, "AGAIN_CAP_S", 0.02)
    monkeypatch.setattr(consumers, "CHECK_S", 0.01)


def of(app: Semel, *shelves: Any, metrics: Metrics | None = None, name: str = "shelf") -> Consumers:
    """Takes from these, one after the other: each time when it is made anew."""
    waiting = list(shelves)

    def make() -> Any:
        made = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(made, Exception):
            raise made
        return made

    return Consumers(app, [SourceSpec(name, make, 2, "ack")], metrics or Metrics())


def told(metrics: Metrics, name: str) -> dict[str, float]:
    page = metrics.exposition()[0].decode()
    found = {}
    for line in page.splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            last = re.search(r'became="(\w+)"', labels) or re.search(r'source="(\w+)"', labels)
            assert last is not None
            found[last[1]] = float(value)
    return found


def test_everything_that_passes_is_counted() -> None:
    async def story() -> None:
        source = Shelf(body(1), body(2), b"{", body(3, "nobody"))
        metrics = Metrics()
        async with app_with() as app:
            running = of(app, source, metrics=metrics)
            running.start()
            await until(lambda: len(source.told) == 4)
            await running.stop(30)
        assert told(metrics, "semel_source_deliveries_total") == {
            "received": 4,
            "acked": 3,
            "retried": 0,
            "rejected": 1,
            "failed": 0,
            "unmatched": 1,
        }
        assert told(metrics, "semel_source_in_flight") == {"shelf": 0}
        assert source.closed

    run(story())


def test_a_delivery_whose_answer_failed_is_no_longer_in_flight() -> None:
    async def story() -> None:
        source = Shelf(body(1), body(2))
        source.deaf = 1
        metrics = Metrics()
        async with app_with() as app:
            running = of(app, source, metrics=metrics)
            running.start()
            await until(lambda: len(source.told) == 1)
            await running.stop(30)
        deliveries = told(metrics, "semel_source_deliveries_total")
        assert (deliveries["received"], deliveries["acked"], deliveries["failed"]) == (2, 1, 1)
        assert told(metrics, "semel_source_in_flight") == {"shelf": 0}

    run(story())


def test_a_source_that_only_a_person_can_help_is_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        missing = [Shelf(fails=[ConfigError("there is no such queue")] * 2) for _ in range(5)]
        good = Shelf(body(1))
        metrics = Metrics()
        async with app_with() as app:
            running = of(app, *missing, good, metrics=metrics)
            assert running.problem == ""
            running.start()
            await until(lambda: running.problem != "")
            assert running.problem.startswith("1 of 1 ")
            assert told(metrics, "semel_source_broken") == {"shelf": 1}
            await until(lambda: good.told == [("ack", body(1))])
            await until(lambda: told(metrics, "semel_source_broken") == {"shelf": 0})
            assert running.problem == ""
            await running.stop(30)
        assert all(source.closed for source in missing)

    run(story())
    assert caplog.text.count('source_unavailable source=shelf error="ConfigError: there is no such queue"') == 1, (
        "it does not fill the log"
    )
    assert caplog.text.count("source_resumed source=shelf") == 1


def test_a_source_that_recovers_is_healthy_even_if_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        empty = Shelf()
        async with app_with() as app:
            running = of(app, ConfigError("there is no such queue"), empty)
            running.start()
            await until(lambda: empty.receives > 0)
            assert running.problem != ""
            monkeypatch.setattr(consumers, "QUIET_S", 0.0)
            await until(lambda: running.problem == "")
            await running.stop(30)

    run(story())


def test_a_source_that_cannot_even_be_made_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        good = Shelf(body(1))
        async with app_with() as app:
            running = of(app, RuntimeError("amqp://user:hunter2@host"), ConfigError("no driver"), good)
            running.start()
            await until(lambda: good.told != [])
            await running.stop(30)

    run(story())
    assert re.search(r'error="RuntimeError\b.*test_service_side\.py:\d', caplog.text)
    assert "hunter2" not in caplog.text


def test_failures_between_a_source_and_its_broker_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Counts:
        failures: int = 0
        lost: int = 0
        expired: int = 0

    class Counting(Shelf):
        counts = Counts()

    async def story() -> None:
        monkeypatch.setattr(consumers, "QUIET_S", 3600.0)
        source = Counting()
        metrics = Metrics()
        async with app_with() as app:
            running = of(app, source, metrics=metrics)
            running.start()
            await until(lambda: source.receives > 0)
            source.counts.failures, source.counts.lost, source.counts.expired = 3, 1, 1
            await until(lambda: running.problem != "")
            await until(lambda: told(metrics, "semel_source_failures_total") == {"shelf": 3})
            assert told(metrics, "semel_source_lost_total") == {"shelf": 2}
            source.put(body(1))  # something came: it works
            await until(lambda: running.problem == "")
            source.counts.failures = 4
            await until(lambda: running.problem != "")
            monkeypatch.setattr(consumers, "QUIET_S", 0.0)  # nothing came for long, and nothing failed: all is well
            await until(lambda: running.problem == "")
            await running.stop(30)
        assert told(metrics, "semel_source_failures_total") == {"shelf": 4}

    run(story())


def test_deliveries_that_do_not_end_in_time_are_returned() -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await asyncio.sleep(3600)

        source = Shelf(body(1))
        async with app_with(handle) as app:
            running = of(app, source)
            running.start()
            await begun.wait()
            running.begin_to_stop()
            assert source.stopped
            await running.stop(0.05)
        assert source.answers() == ["retry"]
        assert source.closed

    run(story())


def test_sources_stop_as_soon_as_a_drain_begins() -> None:
    """Not when the last connection of a sender is closed, which may be long after."""

    async def story() -> None:
        source = Shelf()
        async with app_with() as app:
            background = Background(app, consumers=of(app, source))
            background.start()
            await until(lambda: source.receives > 0)
            background.begin_to_stop()
            assert source.stopped
            await until(lambda: source.closed)
            await background.stop(30)

    run(story())


def test_an_outage_of_the_ledger_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        source = Shelf(body(1))
        async with app_with() as app:
            line = FaultyLine(app)
            line.cut = {"claim"}
            running = of(app, source)
            running.start()
            await until(lambda: line.landed > 3)
            assert source.receives == 0
            await running.stop(30)
        assert source.closed

    run(story())
    assert caplog.text.count("ledger_unavailable sources=paused") == 1


def test_without_sources_there_is_nothing_to_do() -> None:
    async def story() -> None:
        async with app_with() as app:
            running = Consumers(app, [], Metrics())
            running.start()
            assert running.problem == ""
            running.begin_to_stop()
            await running.stop(0)

    run(story())
