"""`app.consume`: workers on one source, whatever the source, the ledger and the caller do."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.faults import FaultyLine
from tests.service.consuming.shelf import Shelf, ShelfItem, app_with, body, run, until
from tests.sources.places import Queue

from semel import ConfigError, Context, Event, Semel, sources
from semel.core import ledger_breaker, worker
from semel.core.routing import REASON, TOPICS_MAX, Unmatched, topic_class
from semel.ports import Delivery


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff is there, and short."""
    for module in (worker, ledger_breaker):
        monkeypatch.setattr(module, "AGAIN_BASE_S", 0.01)
        monkeypatch.setattr(module, "AGAIN_CAP_S", 0.02)


# ----------------------------------------------------------------------------------------------------- its beginning


@pytest.mark.parametrize("workers", [0, -1, 101, True, 2.0, "4"])
def test_a_number_of_workers_that_cannot_be_is_refused(workers: Any) -> None:
    async def story() -> None:
        async with app_with() as app:
            with pytest.raises(ConfigError, match=r"workers=.*\b1\b.*\b100\b"):
                await app.consume(Shelf(), workers=workers)

    run(story())


def test_an_app_without_handlers_consumes_nothing() -> None:
    async def story() -> None:
        source = Shelf(body(1))
        async with Semel("memory://") as app:
            with pytest.raises(ConfigError, match=r"@app\.on"):
                await app.consume(source)
        assert source.told == []

    run(story())


def test_a_lease_that_outlasts_the_visibility_of_a_queue_is_refused() -> None:
    async def story() -> None:
        async with app_with() as app:
            queue = sources.sqs("http://127.0.0.1:1/queue", visibility=25)
            with pytest.raises(ConfigError, match=r"'ok'.*lease.* 25 s.*visibility.* 25 s"):
                await app.consume(queue)

    run(story())


def test_it_ends_with_the_source_and_returns_the_count() -> None:
    async def story() -> None:
        source = Shelf(*[body(number) for number in range(30)], ends=True)
        async with app_with() as app:
            assert await app.consume(source, workers=3) == 30
        assert source.answers() == ["ack"] * 30
        assert source.closed

    run(story())


def test_workers_work_beside_each_other() -> None:
    async def story() -> None:
        together = asyncio.Barrier(4)

        async def handle(event: Event, ctx: Context) -> None:
            await together.wait()

        source = Shelf(*[body(number) for number in range(4)], ends=True)
        async with app_with(handle) as app:
            assert await app.consume(source, workers=4) == 4

    run(story())


# ----------------------------------------------------------------------------------------------------------- its end


def test_a_consumer_ends_after_its_stopped_source_and_the_deliveries_in_flight() -> None:
    async def story() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await may_end.wait()

        source = Shelf(body(1))
        async with app_with(handle) as app:
            consuming = asyncio.create_task(app.consume(source))
            await begun.wait()
            source.stop()
            await asyncio.sleep(0.05)
            assert not consuming.done()
            may_end.set()
            assert await consuming == 1
        assert source.answers() == ["ack"]
        assert source.closed

    run(story())


def test_a_cancelled_consumer_finishes_deliveries_in_flight() -> None:
    async def story() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await may_end.wait()

        source = Shelf(body(1))
        async with app_with(handle) as app:
            consuming = asyncio.create_task(app.consume(source))
            await begun.wait()
            source.put(body(2))
            await asyncio.sleep(0)
            consuming.cancel()
            await until(lambda: source.stopped)
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert "ack" in source.answers()
        assert source.closed

    run(story())


def test_deliveries_that_outlast_the_drain_are_returned() -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await asyncio.sleep(3600)

        source = Shelf(body(1))
        async with app_with(handle) as app:
            consuming = asyncio.create_task(app.consume(source, drain=0.05))
            await begun.wait()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert source.answers() == ["retry"]
        assert source.closed

    run(story())


def test_a_second_cancel_does_not_wait_for_the_drain() -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await asyncio.sleep(3600)

        source = Shelf(body(1))
        async with app_with(handle) as app:
            consuming = asyncio.create_task(app.consume(source, drain=3600))
            await begun.wait()
            consuming.cancel()
            await until(lambda: source.stopped)
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert source.answers() == ["retry"]

    run(story())


def test_a_source_that_cannot_be_stopped_does_not_delay_the_exit() -> None:
    class Plain:
        """Nothing ever comes, and it has no `stop`."""

        waits = 0

        async def receive(self, limit: int) -> Sequence[Delivery]:
            self.waits += 1
            await asyncio.Event().wait()
            raise AssertionError

    async def story() -> None:
        source = Plain()
        async with app_with() as app:
            consuming = asyncio.create_task(app.consume(source, workers=2, drain=3600))
            await until(lambda: source.waits == 2)
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming

    run(story())


# --------------------------------------------------------------------------------------------------- a broken source


def test_a_source_that_keeps_failing_is_tried_again_and_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        source = Shelf(body(1), fails=[ConnectionError("the broker is away")] * 40, ends=True)
        async with app_with() as app:
            assert await app.consume(source, workers=2) == 1
        assert source.receives > 40

    run(story())
    lines = [one.getMessage() for one in caplog.records if "source_failed" in one.getMessage()]
    assert len(lines) == 6, "the first, second, fourth, … thirty-second"
    assert 'source_failed source=Shelf failures=1 error="ConnectionError: the broker is away"' in lines
    assert "source_recovered source=Shelf" in caplog.text


def test_the_error_text_of_a_driver_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        source = Shelf(body(1), fails=[RuntimeError("amqp://user:hunter2@host")], ends=True)
        async with app_with() as app:
            assert await app.consume(source, workers=1) == 1

    run(story())
    assert "RuntimeError" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_answer_that_is_not_heard_ends_nothing() -> None:
    async def story() -> None:
        source = Shelf(body(1), body(2), body(3), ends=True)
        source.deaf = 1
        async with app_with() as app:
            await app.consume(source, workers=1)
            assert len(await app.entries("done")) == 3
        assert source.answers() == ["ack", "ack"]

    run(story())


def test_a_permanent_error_ends_the_consumer_after_the_deliveries_in_flight() -> None:
    async def story() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def handle(event: Event, ctx: Context) -> None:
            begun.set()
            await may_end.wait()

        source = Shelf(body(1))
        async with app_with(handle) as app:
            consuming = asyncio.create_task(app.consume(source, workers=1 + 1))
            await begun.wait()
            source._fails = [ConfigError("there is no such queue")]
            source.put(body(2))  # the other worker comes back, and asks again
            may_end.set()
            with pytest.raises(ConfigError, match="no such queue"):
                await consuming
        assert source.closed
        assert "ack" in source.answers()

    run(story())


def test_a_missing_queue_is_reported(queue: Queue) -> None:
    async def story() -> None:
        async with app_with() as app:
            with pytest.raises(ConfigError, match=re.escape(f"{queue.url}-not")):
                await app.consume(queue.source(queue=f"{queue.url}-not"))

    run(story())


# ------------------------------------------------------------------------------------------------------- the ledger


def test_nothing_is_taken_while_the_ledger_cannot_be_written(
    tmp_path: Path, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each receive counts at a queue, and its redrive policy gives up after some of them."""
    caplog.set_level(logging.WARNING, "semel")
    monkeypatch.setattr("semel.core.worker.LEDGER_DOWN_S", 0.2)
    receives: dict[str, int] = {}

    async def story() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:
            line = FaultyLine(app)
            done: set[str] = set()

            @app.on("ok")
            async def ok(event: Event, ctx: Context) -> None:
                done.add(event.id)

            source = queue.source()
            receive = source.receive

            async def counted(limit: int) -> Sequence[Any]:
                taken = await receive(limit)
                for delivery in taken:
                    assert delivery._message is not None
                    id = delivery._message.id
                    receives[id] = max(receives.get(id, 0), delivery.receives)
                return taken

            source.receive = counted  # type: ignore[method-assign]
            consuming = asyncio.create_task(app.consume(source))
            await until(lambda: source.counts is not None and source._opened)
            line.cut = {"claim"}
            queue.send([body(number) for number in range(20)])
            await until(lambda: line.landed > 0)
            landed = line.landed
            await until(lambda: line.landed > landed + 60)  # ten times as long as what goes back stays away
            assert done == set()
            line.cut = set()
            await until(lambda: len(done) == 20)
            await until(lambda: source.counts.deleted == 20)
            source.stop()
            await consuming

    run(story())
    assert len(receives) == 20
    assert max(receives.values()) <= 2, "once before the outage was noticed, once after it"
    assert caplog.text.count("ledger_unavailable sources=paused") == 1
    assert caplog.text.count("ledger_recovered") == 1


def test_deliveries_received_during_an_outage_stay_in_flight() -> None:
    """Several wait for a delivery when the ledger goes: not each of them has to find that out with it."""

    async def story() -> None:
        source = Shelf()
        source.brings_again = True
        async with app_with() as app:
            line = FaultyLine(app)
            consuming = asyncio.create_task(app.consume(source, workers=4))
            await until(lambda: source.receives == 4)
            line.cut = {"claim"}
            source.put(body(1))
            await until(lambda: line.landed > 20)
            assert source.answers() == ["retry"]
            line.cut = set()
            await until(lambda: source.answers() == ["retry", "ack"])
            source.stop()
            await consuming

    run(story())


def test_a_worker_that_stops_in_an_outage_returns_its_deliveries() -> None:
    async def story() -> None:
        source = Shelf()
        source.brings_again = True
        async with app_with() as app:
            line = FaultyLine(app)
            consuming = asyncio.create_task(app.consume(source, workers=2))
            await until(lambda: source.receives == 2)
            line.cut = {"claim"}
            source.put(body(1))
            await until(lambda: line.landed > 5)
            source.brings_again = False
            source.stop()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert source.answers() == ["retry", "retry"]

    run(story())


def test_nothing_is_received_before_the_ledger_was_checked() -> None:
    async def story() -> None:
        source = Shelf(body(1))
        async with app_with() as app:
            line = FaultyLine(app)
            line.cut = {"claim"}
            consuming = asyncio.create_task(app.consume(source, workers=1))
            await until(lambda: line.landed > 2)
            assert source.receives == 0, "nobody knows whether the ledger can be written before it was asked"
            source.stop()
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming
        assert source.told == []

    run(story())


# ------------------------------------------------------------------------------------------------ what nobody wants


@pytest.mark.parametrize(("then", "answer"), [("ack", "ack"), ("reject", f"reject: {REASON}")])
def test_unmatched_events_are_answered_as_configured_and_logged(
    then: Any, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        source = Shelf(*[body(number, "unknown.topic") for number in range(5)], ends=True)
        async with app_with() as app:
            assert await app.consume(source, unmatched=then) == 5
        assert source.answers() == [answer] * 5

    run(story())
    said = [one.getMessage() for one in caplog.records if "topic=unknown.topic" in one.getMessage()]
    assert [line.partition("count=")[2].partition(" ")[0] for line in said] == ["1", "2", "4"]


def test_a_heartbeat_of_a_channel_is_not_an_unmatched_event(caplog: pytest.LogCaptureFixture) -> None:
    frame = b'{"topicName":"channel.metadata","version":"1","eventBody":{"message":"WebSocket Heartbeat"}}'

    async def story() -> None:
        source = Shelf(frame, ends=True)
        async with app_with() as app:
            assert await app.consume(source, unmatched="reject") == 1
        assert source.answers() == ["ack"]

    run(story())
    assert "event_unmatched" not in caplog.text


def test_topics_are_grouped_without_their_ids_and_their_number_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    assert topic_class("v2.users.4a5d7f6e-1b2c-4d3e-8f90-123456789abc.presence") == "v2.users.*.presence"
    assert (
        topic_class("v2.detail.events.conversation.{id}.customer.end")
        == "v2.detail.events.conversation.{id}.customer.end"
    )
    assert "\n" not in topic_class("a\nb")
    assert len(topic_class("x" * 10_000)) < 200

    async def story() -> None:
        topics = iter(f"t{number:x}y" for number in range(10_000))
        seen = Unmatched(lambda _: next(topics))
        source = Shelf()
        for _ in range(3 * TOPICS_MAX):
            await seen.answer(ShelfItem(source, b""))
        assert len(seen._counts) == TOPICS_MAX + 1

    run(story())
