"""`app.consume` when its ledger and its source fail in ways that nobody has promised not to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest
from tests.engine.faults import FaultyLine
from tests.service.consuming.shelf import Shelf, app_with, body, run, until

from semel.core import ledger_breaker, worker
from semel.core.ledger_breaker import Outage
from semel.values.claim import Claim, Verdict
from semel.values.errors import LedgerUnavailable


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff is there, and short."""
    for module in (worker, ledger_breaker):
        monkeypatch.setattr(module, "AGAIN_BASE_S", 0.01)
        monkeypatch.setattr(module, "AGAIN_CAP_S", 0.02)


class HalfLine(FaultyLine):
    """A store that answers whoever asks whether it is well, and fails whoever wants something of it."""

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        if not claims:
            return []
        return await super().claim(claims)


async def well() -> None:
    """What a store says that can be written."""


def test_a_store_that_passes_its_check_and_fails_is_checked_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each belief costs a receive of everything in hand, which a queue counts."""
    monkeypatch.setattr(ledger_breaker, "RELAPSE_BASE_S", 0.05)

    async def story() -> None:
        stopping = asyncio.Event()
        clock = asyncio.get_running_loop().time
        ledger = Outage(well, lambda: 1.0)
        assert await ledger.over(stopping)
        for relapses in range(5):
            began_at = clock()
            ledger.begins(LedgerUnavailable("no"), began_at)
            assert await ledger.over(stopping)
            assert relapses == 0 or clock() - began_at >= 0.99 * 0.05 * 2 ** (relapses - 1)

    run(story())


def test_a_store_that_worked_for_a_while_is_used_at_once_after_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_breaker, "RELAPSE_BASE_S", 3600.0)
    monkeypatch.setattr(ledger_breaker, "RELAPSE_WITHIN_S", 0.0)

    async def story() -> None:
        stopping = asyncio.Event()
        ledger = Outage(well, lambda: 1.0)
        for _ in range(5):
            ledger.begins(LedgerUnavailable("no"), asyncio.get_running_loop().time())
            assert await ledger.over(stopping)

    run(story())


def test_a_call_from_before_the_recovery_starts_no_new_outage() -> None:
    """Several workers wait for the same silent store, and give up one after the other."""

    async def story() -> None:
        stopping = asyncio.Event()
        ledger = Outage(well, lambda: 1.0)
        began_at = asyncio.get_running_loop().time()
        for _ in range(20):  # the twentieth relapse would take a minute
            ledger.begins(LedgerUnavailable("no"), began_at)
            assert await ledger.over(stopping)

    run(story())


def test_a_half_dead_store_does_not_use_up_the_receives_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_breaker, "RELAPSE_BASE_S", 3600.0)
    monkeypatch.setattr(ledger_breaker, "RELAPSE_CAP_S", 3600.0)
    monkeypatch.setattr("random.random", lambda: 1.0)

    async def story() -> None:
        source = Shelf()
        source.brings_again = True
        async with app_with() as app:
            line = HalfLine(app)
            line.cut = {"claim"}
            consuming = asyncio.create_task(app.consume(source, workers=4))
            await until(lambda: source.receives == 4)
            source.put(body(1))
            await until(lambda: line.landed == 2)
            await asyncio.sleep(0.3)  # long enough for a hundred more
            assert source.answers() == ["retry", "retry"], "the ledger_breaker, and that it was not over"
            source.brings_again = False
            consuming.cancel()
            with pytest.raises(asyncio.CancelledError):
                await consuming

    run(story())


def test_a_ledger_that_raises_what_it_should_not_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "semel")

    class Odd(FaultyLine):
        async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
            if self.landed < 2:
                self.landed += 1
                raise RuntimeError("password=hunter2")
            return await super().claim(claims)

    async def story() -> None:
        source = Shelf(body(1))
        async with app_with() as app:
            line = Odd(app)
            consuming = asyncio.create_task(app.consume(source, workers=1))
            await until(lambda: source.answers() == ["ack"] or consuming.done())
            assert line.landed == 2
            source.stop()
            assert await consuming == 1

    run(story())
    assert "hunter2" not in caplog.text


def test_a_cancellation_by_a_driver_does_not_end_the_consumer() -> None:
    """Some cancel whoever waits on a connection that is lost. To end quietly then would look like the end."""

    class Cancels(Shelf):
        async def receive(self, limit: int) -> Sequence[object]:  # type: ignore[override]
            taken = await super().receive(limit)
            if self.receives == 1:
                self.put(taken[0].body)
                raise asyncio.CancelledError
            return taken

    async def story() -> None:
        source = Cancels(body(1))
        async with app_with() as app:
            consuming = asyncio.create_task(app.consume(source, workers=1))  # type: ignore[arg-type]
            await until(lambda: source.answers() == ["ack"] or consuming.done())
            assert source.receives >= 2, "it ended as if the source had"
            source.stop()
            assert await consuming == 1

    run(story())
