"""The loop around the flow: what the source is told, and when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run
from tests.engine.faults import FaultyLine

from semel import Context, Event, LedgerUnavailable, Reject, Retry, Semel, keys
from semel.ports import Delivery


class ForwardedEvent(Delivery):
    """A delivery that writes down what it is told."""

    def __init__(self, body: bytes, told: list[tuple[str, object]]) -> None:
        self.body = body
        self.tenant = ""
        self._told = told

    async def ack(self) -> None:
        self._told.append(("ack", None))

    async def retry(self, after_s: float) -> None:
        self._told.append(("retry", after_s))

    async def reject(self, reason: str) -> None:
        self._told.append(("reject", reason))


class Parcels:
    """A source that ends."""

    def __init__(self, *bodies: Any) -> None:
        self.told: list[tuple[str, object]] = []
        self._waiting = [
            ForwardedEvent(body if isinstance(body, bytes) else json.dumps(body).encode(), self.told) for body in bodies
        ]

    async def receive(self, limit: int) -> Sequence[Delivery]:
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return taken


@both_ledgers
def test_the_source_is_told_what_to_do_with_each_delivery(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("t")
            async def handle(event: Event, ctx: Context) -> None:
                match event.body["how"]:
                    case "retry":
                        raise Retry(after=3)
                    case "reject":
                        raise Reject("never")

            def of(how: str, **more: Any) -> dict[str, Any]:
                return message(more.get("id"), type="t", how=how)

            source = Parcels(
                of("done", id="a"), of("done", id="a"), of("conflict", id="a"), of("retry"), of("reject"),
                message(type="unknown"), b"{",
            )  # fmt: skip
            assert await app.worker(source).run() == 7
            assert [told for told, _ in source.told] == ["ack", "ack", "reject", "retry", "ack", "ack", "reject"]
            assert source.told[3] == ("retry", 3)
            assert len(await app.entries("dead")) == 1

    run(story())


@both_ledgers
def test_an_event_without_a_key_for_one_handler_is_acknowledged_once_it_is_a_dead_letter(
    ledger: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            ran: list[str] = []
            app.on("t", name="all")(lambda event, ctx: ran.append(event.id))
            app.on("t", name="one", key=keys.fields("data.missing"))(lambda event, ctx: ran.append("never"))
            source = Parcels(message("a", type="t"), message("a", type="t"))
            await app.worker(source).run()
            assert [told for told, _ in source.told] == ["ack", "ack"]
            assert ran == ["a"]
            assert [entry.handler for entry in await app.entries("dead")] == ["one"]

    run(story())


def test_it_goes_back_to_its_source_while_the_dead_letter_cannot_be_recorded(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path, lease=0.2) as app:
            app.on("t", name="all")(lambda event, ctx: None)
            app.on("t", name="one", key=keys.fields("data.missing"))(lambda event, ctx: None)
            settle = app.ledger.settle

            async def full(settlements: Any) -> Any:
                if any(one.dead_letter is not None for one in settlements):
                    raise LedgerUnavailable("no room for dead letters")
                return await settle(settlements)

            app.ledger.settle = full  # type: ignore[method-assign]
            source = Parcels(message("a", type="t"))
            await app.worker(source).run()
            assert [told for told, _ in source.told] == ["retry"]

    run(story())


@both_ledgers
def test_everything_goes_back_when_the_ledger_cannot_be_asked(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            line = FaultyLine(app)

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None: ...

            line.cut = {"claim"}
            source = Parcels(message(), message())
            await app.worker(source).run()
            assert line.landed == 1
            assert [told for told, _ in source.told] == ["retry", "retry"]

    run(story())


@both_ledgers
def test_nothing_is_acknowledged_before_it_is_settled(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        order: list[str] = []
        async with app_on(ledger, tmp_path, observe=order.append) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                order.append("handler")

            source = Parcels(message())
            await app.worker(source).run()
            flow = [at for at in order if not at.endswith("_commit")]
            assert flow == [
                *("before_claim", "after_claim", "handler_start", "handler", "handler_end"),
                *("before_settle", "after_settle", "before_ack", "after_ack"),
            ]
            assert len(await app.entries("done")) == 1

    run(story())


@both_ledgers
def test_a_stopped_worker_answers_what_it_has_received(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                worker.stop()
                await asyncio.sleep(0.05)

            source = Parcels(*[message() for _ in range(150)])
            worker = app.worker(source)
            assert await worker.run() == 100
            assert [told for told, _ in source.told] == ["ack"] * 100

    run(story())


@both_ledgers
def test_a_stopped_worker_does_not_wait_for_a_source_that_waits(ledger: str, tmp_path: Path) -> None:
    class Quiet(Parcels):
        """Nothing comes; who waits for something waits until it is told to stop."""

        def __init__(self) -> None:
            super().__init__()
            self.waiting, self.stopped = asyncio.Event(), asyncio.Event()

        async def receive(self, limit: int) -> Sequence[Delivery]:
            self.waiting.set()
            await self.stopped.wait()
            return []

        def stop(self) -> None:
            self.stopped.set()

        async def close(self) -> None:
            self.stop()

    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            source = Quiet()
            worker = app.worker(source)
            running = asyncio.create_task(worker.run())
            await source.waiting.wait()
            worker.stop()
            async with asyncio.timeout(30):
                assert await running == 0

    run(story())


@both_ledgers
def test_a_cancelled_worker_gives_back_what_it_holds(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            begun = asyncio.Event()

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                begun.set()
                await asyncio.sleep(3600)

            source = Parcels(message(), message())
            running = asyncio.create_task(app.worker(source).run())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert source.told == [("retry", 0.0)] * 2

    run(story())


@both_ledgers
def test_a_delivery_that_cannot_be_answered_keeps_no_other_waiting(ledger: str, tmp_path: Path) -> None:
    class Torn(ForwardedEvent):
        async def ack(self) -> None:
            raise ConnectionError("the source is gone")

    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None: ...

            source = Parcels(message(), message())
            source._waiting.insert(0, Torn(json.dumps(message()).encode(), source.told))
            with pytest.raises(ConnectionError):
                await app.worker(source).run()
            assert [told for told, _ in source.told] == ["ack", "ack"]
            assert len(await app.entries("done")) == 3

    run(story())


def test_the_log_says_where_a_handler_raised_and_not_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Semel("memory://") as app:

            def deep() -> None:
                raise ValueError("the customer's number is 4711")

            @app.on("**")
            async def charge(event: Event, ctx: Context) -> None:
                deep()

            await app.process({"id": "1", "type": "x", "data": {}})

    asyncio.run(story())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("event_retry handler=charge ")
    assert 'reason_class=ValueError raised_at="test_worker.py:' in line
    assert "deep" in line
    assert "4711" not in line
