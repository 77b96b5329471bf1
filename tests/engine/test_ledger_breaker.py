"""The gate before the store: slow is told from stuck, nobody waits for long, and nothing is lost by impatience."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.engine.apps import app_on, both_ledgers, message

from semel import LedgerUnavailable
from semel.app import IncomingMessage, to_bytes
from semel.core.breaker import Breaker, State
from semel.core.ledger_breaker import (
    SLOW_IN_A_ROW,
    STUCK,
    WINDOW_CALLS,
    WINDOW_S,
    LedgerBreaker,
    RoundTrip,
)
from semel.core.routing import Plan
from semel.ports import Ledger
from semel.service.served_ledger import ServedLedger, StoreHealth
from semel.values.claim import Busy, Claim, Granted, Verdict
from semel.values.log import IncidentLog

PATIENCE_S = 0.05


class Store:
    """Answers after a while, which a test sets."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        await asyncio.sleep(self.takes_s)
        return "answer"


def gate(open_max_s: float = 60.0) -> tuple[LedgerBreaker, Breaker, list[State]]:
    moves: list[State] = []
    clock = asyncio.get_running_loop().time
    breaker = Breaker(SLOW_IN_A_ROW, 0.2, open_max_s=open_max_s, clock=clock, random=lambda: 0.0, moved=moves.append)
    return LedgerBreaker(breaker, PATIENCE_S), breaker, moves


async def measured(open_max_s: float = 60.0) -> tuple[LedgerBreaker, Breaker, list[State]]:
    """A gate to a store that was near up to now."""
    through, breaker, moves = gate(open_max_s)
    assert await through.ask(Store()) == "answer"
    return through, breaker, moves


async def refused(asked: Awaitable[str]) -> bool:
    try:
        await asked
    except LedgerUnavailable:
        return True
    return False


def test_slow_calls_are_awaited_until_several_in_a_row_open_the_breaker() -> None:
    async def story() -> None:
        through, _, moves = await measured()
        store = Store()
        store.takes_s = 3 * PATIENCE_S
        for _ in range(SLOW_IN_A_ROW):
            assert await through.ask(store) == "answer"
        assert moves == ["open"]
        assert await refused(through.ask(store))
        assert store.asked == SLOW_IN_A_ROW  # it was not even asked

    asyncio.run(story())


def test_a_quick_one_between_slow_ones_is_reason_enough_to_go_on() -> None:
    async def story() -> None:
        through, _, moves = await measured()
        store = Store()
        for takes_s in (2 * PATIENCE_S, 2 * PATIENCE_S, 0.0) * 3:
            store.takes_s = takes_s
            assert await through.ask(store) == "answer"
        assert moves == []

    asyncio.run(story())


def test_a_stuck_call_is_abandoned_and_later_calls_are_refused_at_once() -> None:
    async def story() -> None:
        through, _, moves = await measured()
        store = Store()
        store.takes_s = 8
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await refused(through.ask(store))
        assert STUCK * PATIENCE_S * 0.9 < loop.time() - begun < 7
        assert moves == ["open"]
        begun = loop.time()
        assert all([await refused(through.ask(store)) for _ in range(100)])
        assert loop.time() - begun < 5
        assert store.asked == 1

    asyncio.run(story())


def test_a_probe_that_is_slow_keeps_it_open_and_a_quick_one_closes_it() -> None:
    async def story() -> None:
        through, breaker, moves = await measured()
        store = Store()
        store.takes_s = 8
        await refused(through.ask(store))
        await asyncio.sleep(breaker.ready_in_s() + 0.01)
        assert await refused(through.ask(store))  # the probe: it has our patience and no more
        store.takes_s = 0
        assert await refused(through.ask(store))
        await asyncio.sleep(breaker.ready_in_s() + 0.01)
        assert await through.ask(store) == "answer"
        assert moves == ["open", "half-open", "open", "half-open", "closed"]

    asyncio.run(story())


def test_an_error_of_the_store_opens_it_and_another_error_does_not() -> None:
    async def story() -> None:
        through, _, moves = gate()

        def raising(error: Exception) -> Callable[[], Awaitable[str]]:
            async def call() -> str:
                raise error

            return call

        for _ in range(10):
            with pytest.raises(ValueError, match="a bug"):
                await through.ask(raising(ValueError("a bug")))
        assert moves == []
        with pytest.raises(LedgerUnavailable, match="disk"):
            await through.ask(raising(LedgerUnavailable("disk")))
        assert moves == ["open"]

    asyncio.run(story())


# ------------------------------------------------------------------------------------------ the usual round trip


@pytest.mark.parametrize("takes_s", [2 * PATIENCE_S, 5 * PATIENCE_S])
def test_a_store_that_is_always_far_away_opens_nothing(takes_s: float) -> None:
    async def story() -> None:
        through, _, moves = gate()
        store = Store()
        store.takes_s = takes_s
        for _ in range(2 * SLOW_IN_A_ROW):
            assert await through.ask(store) == "answer"
        assert moves == []
        assert (through.report().round_trip_ms or 0) >= takes_s * 1000

    asyncio.run(story())


def test_a_store_that_stays_slow_is_used_again_after_two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("semel.core.ledger_breaker.WINDOW_S", 0.2)
        through, _, moves = await measured(open_max_s=0.2)
        store = Store()
        store.takes_s = 3 * PATIENCE_S
        while moves != ["open"]:
            assert await through.ask(store) == "answer"
        report = through.report()
        assert (report.breaker, report.reason) == ("open", "slow")
        async with asyncio.timeout(20):
            while not through.is_closed:
                await refused(through.ask(store))
                await asyncio.sleep(0.05)
        for _ in range(2 * SLOW_IN_A_ROW):
            assert await through.ask(store) == "answer"
        assert through.report().breaker == "closed"

    asyncio.run(story())


def test_the_limit_grows_with_the_items_that_are_under_way() -> None:
    async def story() -> None:
        through, _, moves = await measured()
        store = Store()
        store.takes_s = 3 * PATIENCE_S
        for _ in range(SLOW_IN_A_ROW):
            assert await through.ask(store, items=500) == "answer"
        assert moves == [], "a large call is no slow call"
        with through.under_way(500):
            for _ in range(SLOW_IN_A_ROW):
                assert await through.ask(store) == "answer"
        assert moves == [], "a small call waits behind a large one"
        for _ in range(SLOW_IN_A_ROW):
            assert await through.ask(store) == "answer"
        assert moves == ["open"], "a small call alone is slow"

    asyncio.run(story())


def test_a_round_trip_is_usual_when_every_call_of_two_windows_took_it() -> None:
    now = 0.0
    round_trip = RoundTrip(lambda: now)
    assert round_trip.usual_s is None
    for seconds in (0.3, 0.001, 0.2):
        round_trip.add(seconds)
    assert round_trip.usual_s == 0.001
    usual: list[float | None] = []
    for _ in range(60):
        now += 1
        round_trip.add(0.4)
        usual.append(round_trip.usual_s)
    assert usual[: int(WINDOW_S)] == [0.001] * int(WINDOW_S), "a store that became slow is not usual yet"
    assert usual[-1] == 0.4
    round_trip.add(0.002)
    assert round_trip.usual_s == 0.002, "a fast call counts at once"


def test_few_slow_calls_are_never_usual_however_long_they_are_apart() -> None:
    now = 0.0
    round_trip = RoundTrip(lambda: now)
    for _ in range(WINDOW_CALLS):
        round_trip.add(0.001)
    for _ in range(WINDOW_CALLS):
        now += 10 * WINDOW_S
        round_trip.add(0.4)
    assert round_trip.usual_s == 0.001


@both_ledgers
def test_a_lease_that_is_granted_too_late_is_released(ledger: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            app.on("**", name="h")(lambda event, ctx: None)
            through, _, _ = await measured()
            slow = Slow(app.ledger)
            plan = app.planner.plan(IncomingMessage(to_bytes(message("1"))))
            assert isinstance(plan, Plan)
            with pytest.raises(LedgerUnavailable, match="stuck"):
                await ServedLedger(slow, None, StoreHealth(IncidentLog("x"), quiet=True), through).claim(
                    list(plan.claims)
                )
            assert isinstance((await app.ledger.claim(plan.claims))[0], Busy)  # it was granted, and nobody knows
            slow.go.set()
            verdict: Verdict | None = None
            for _ in range(500):
                await asyncio.sleep(0.01)
                (verdict,) = await app.ledger.claim(plan.claims)
                if isinstance(verdict, Granted):
                    break
            assert isinstance(verdict, Granted)
            assert (verdict.attempt, verdict.takeover) == (1, False)

    asyncio.run(story())


class Slow:
    """A ledger whose claims are answered when the test says so."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.traits = ledger.traits
        self.go = asyncio.Event()
        self.settle, self.renew, self.purge, self.close = ledger.settle, ledger.renew, ledger.purge, ledger.close

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = await self._ledger.claim(claims)
        await self.go.wait()
        return verdicts


def test_a_handlers_own_transaction_is_no_evidence_against_the_store() -> None:
    async def story() -> None:
        held = True
        moves: list[State] = []
        loop = asyncio.get_running_loop()
        breaker = Breaker(SLOW_IN_A_ROW, 0.2, clock=loop.time, random=lambda: 0.0, moved=moves.append)
        through = LedgerBreaker(breaker, PATIENCE_S, lambda: held)
        store = Store()
        assert await through.ask(store) == "answer"
        store.takes_s = (STUCK + 5) * PATIENCE_S
        for _ in range(SLOW_IN_A_ROW):
            assert await through.ask(store) == "answer"
        assert moves == []
        held = False
        assert await refused(through.ask(store))
        assert moves == ["open"]

    asyncio.run(story())
