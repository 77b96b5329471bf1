"""What goes wrong for a while is in the log with why: when it begins, now and then, and when it is over."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from semel.core.breaker import Breaker
from semel.core.ledger_breaker import SLOW_IN_A_ROW, LedgerBreaker
from semel.service.served_ledger import ServedLedger, StoreHealth
from semel.values.claim import Claim
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.log import REPEAT_S, IncidentLog
from semel.wiring import open_ledger

PATIENCE_S = 0.1


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "semel")
    return caplog


def test_an_incident_is_logged_when_it_starts_repeatedly_and_when_it_ends(said: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    trouble = IncidentLog("inbox_unavailable", "inbox_recovered", clock, lane="crm")
    for _ in range(65):
        trouble.report("connection refused")
        clock.now += 1.0
    trouble.resolve()
    trouble.resolve()
    trouble.report("once more")
    assert said.messages == [
        'inbox_unavailable lane=crm error="connection refused"',
        'inbox_unavailable lane=crm lasts_s=30 error="connection refused"',
        'inbox_unavailable lane=crm lasts_s=60 error="connection refused"',
        "inbox_recovered lane=crm after_s=65",
        'inbox_unavailable lane=crm error="once more"',
    ]


def test_after_a_long_silence_it_is_a_new_trouble(said: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    trouble = IncidentLog("ledger_refused", clock=clock)
    trouble.report("no table")
    clock.now += 10 * REPEAT_S
    trouble.report("no table")
    assert said.messages == ['ledger_refused error="no table"'] * 2


# ---------------------------------------------------------------------------------------------------- of a store


class Ailing:
    """A ledger in memory whose claims wait, fail or are refused."""

    def __init__(self) -> None:
        self._ledger = open_ledger("memory://")
        self.traits = self._ledger.traits
        self.wait_s = 0.0
        self.error: Exception | None = None

    async def claim(self, claims: list[Claim]) -> object:
        await asyncio.sleep(self.wait_s)
        if self.error is not None:
            raise self.error
        return await self._ledger.claim(claims)


def asked(ailing: Ailing, times: int, *, gated: bool = True) -> list[str]:
    """What became of so many claims, one after the other."""

    async def run() -> list[str]:
        health = StoreHealth(IncidentLog("breaker_open", "breaker_closed"), quiet=gated)
        clock = asyncio.get_running_loop().time
        breaker = Breaker(
            SLOW_IN_A_ROW, 0.01, open_max_s=0.01, clock=clock, random=lambda: 0.0, moved=health.breaker_changed
        )
        ledger = ServedLedger(ailing, None, health, LedgerBreaker(breaker, PATIENCE_S) if gated else None)  # type: ignore[arg-type]
        if ailing.wait_s:
            wait_s, ailing.wait_s = ailing.wait_s, 0.0
            await ledger.claim([])  # it was near up to now
            ailing.wait_s = wait_s
        ended = []
        for _ in range(times):
            try:
                await ledger.claim([])
                ended.append("answered")
            except LedgerUnavailable as error:
                ended.append(str(error))
            await asyncio.sleep(0.03)  # a probe is let through every time
        return ended

    return asyncio.run(run())


def test_an_open_breaker_logs_the_failure_once(said: pytest.LogCaptureFixture) -> None:
    ailing = Ailing()
    ailing.error = LedgerUnavailable("PostgreSQL at db.example: connection refused")
    assert asked(ailing, 5) == ["PostgreSQL at db.example: connection refused"] * 5, "every probe failed"
    assert said.messages == ['breaker_open error="PostgreSQL at db.example: connection refused"']


def test_an_open_breaker_logs_the_call_that_is_slow(said: pytest.LogCaptureFixture) -> None:
    ailing = Ailing()
    ailing.wait_s = 1.5 * PATIENCE_S
    assert "answered" in asked(ailing, SLOW_IN_A_ROW)
    (line,) = said.messages
    assert line.startswith("breaker_open ")
    assert all(part in line for part in ("slow", "claim"))


def test_an_open_breaker_logs_the_call_that_is_stuck(said: pytest.LogCaptureFixture) -> None:
    ailing = Ailing()
    ailing.wait_s = 30.0
    assert asked(ailing, 1) != ["answered"]
    (line,) = said.messages
    assert re.match(r'breaker_open error=".*claim', line)
    assert "slow" not in line


def test_a_refusal_of_the_store_is_unavailable_and_opens_no_breaker(said: pytest.LogCaptureFixture) -> None:
    """It may be about one handler: all others would be sent away with it."""
    ailing = Ailing()
    ailing.error = ConfigError("there is no such table; `semel migrate` creates it")
    assert asked(ailing, 5) == [str(ailing.error)] * 5
    assert said.messages == [f'ledger_refused error="{ailing.error}"']


def test_without_a_breaker_each_failure_counts(said: pytest.LogCaptureFixture) -> None:
    ailing = Ailing()
    ailing.error = LedgerUnavailable("connection refused")
    assert asked(ailing, 3, gated=False) == ["connection refused"] * 3
    assert said.messages == ['breaker_open error="connection refused"']
