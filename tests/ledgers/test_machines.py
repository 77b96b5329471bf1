"""Random histories: the memory and the SQLite ledger against the model, and proof that the machine would notice."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from semel.ledgers.memory import MemoryLedger
from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock, Harness
from semel.testing.machine import ledger_machine
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.outcome import Done, Release, Retry

RARELY = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def memory() -> Harness:
    clock = FakeClock()
    ledger = MemoryLedger(clock)
    return Harness(open=lambda: ledger, clock=clock)


def sqlite() -> Harness:
    folder, clock = tempfile.mkdtemp(), FakeClock()
    path = str(Path(folder, "ledger.db"))
    return Harness(
        open=lambda: SqliteLedger(path, synchronous="normal", clock=clock),
        clock=clock,
        dispose=lambda: shutil.rmtree(folder),
    )


def run(harness: Callable[[], Harness], examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(
        ledger_machine(harness),
        settings=settings(max_examples=examples, stateful_step_count=steps, suppress_health_check=RARELY),
    )


def test_memory_answers_like_the_model() -> None:
    run(memory, 40)


def test_sqlite_answers_like_the_model() -> None:
    run(sqlite, 30)


@pytest.mark.long
@pytest.mark.parametrize("harness", [memory, sqlite])
def test_long_histories_are_answered_like_the_model(harness: Callable[[], Harness]) -> None:
    run(harness, 600, steps=80)


# ------------------------------------------------------------------------------------- would the machine notice?


class IgnoresTokens(MemoryLedger):
    """Writes by key: whoever comes late overwrites."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await super().settle([Settlement(self._current(s.lease), s.outcome, s.dead_letter) for s in settlements])

    def _current(self, lease: Lease) -> Lease:
        known = self._known.get(lease.claim.digest)
        return lease if known is None else Lease(lease.claim, known.token)


class GrantsCopies(MemoryLedger):
    """Decides a batch by what was known before it."""

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        before = dict(self._known)
        verdicts: list[Verdict] = []
        for claim in claims:
            kept, self._known = self._known, dict(before)
            verdicts += await super().claim([claim])
            self._known = kept | {k: v for k, v in self._known.items() if before.get(k) is not v}
        return verdicts


class CountsOnlyRetries(MemoryLedger):
    """Forgets that a crash is an attempt."""

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = await super().claim(claims)
        return [
            Granted(v.lease, max(1, v.attempt - v.takeover), v.takeover, v.age_ms) if isinstance(v, Granted) else v
            for v in verdicts
        ]


class HidesTakeovers(MemoryLedger):
    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        verdicts = await super().claim(claims)
        return [Granted(v.lease, v.attempt, False, v.age_ms) if isinstance(v, Granted) else v for v in verdicts]


class BurnsReleases(MemoryLedger):
    """Counts a claim that was taken back."""

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await super().settle(
            [Settlement(s.lease, Retry(0)) if isinstance(s.outcome, Release) else s for s in settlements]
        )


class AlwaysRenews(MemoryLedger):
    async def renew(self, leases: Sequence[Lease]) -> list[bool]:
        await super().renew(leases)
        return [True] * len(leases)


class SweepsLeases(MemoryLedger):
    """Purges what has lapsed, and with it the knowledge that someone may have acted."""

    async def purge(self, limit: int) -> int:
        for digest in [d for d, known in self._known.items() if known.until_ms <= self._clock()]:
            del self._known[digest], self._about[digest]
        return await super().purge(limit)


class ExpiresLate(MemoryLedger):
    """A lease that ends now is still held."""

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        real, self._clock = self._clock, lambda: real() - 1
        try:
            return await super().claim(claims)
        finally:
            self._clock = real


class AppliesEverything(MemoryLedger):
    """Moves the subject on though the event was not done."""

    def _free_subject(self, lease: Lease, now: int, applied: bool) -> None:
        super()._free_subject(lease, now, applied=True)


class ReusesTokens(MemoryLedger):
    async def purge(self, limit: int) -> int:
        self._tokens = count(1)
        return await super().purge(limit)


class ForgetsResults(MemoryLedger):
    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await super().settle(
            [Settlement(s.lease, Done()) if isinstance(s.outcome, Done) else s for s in settlements]
        )


BROKEN = [
    *(IgnoresTokens, GrantsCopies, CountsOnlyRetries, HidesTakeovers, BurnsReleases, AlwaysRenews),
    *(SweepsLeases, ExpiresLate, AppliesEverything, ReusesTokens, ForgetsResults),
]


@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN)
def test_the_machine_notices_a_broken_ledger(broken: type[MemoryLedger]) -> None:
    def harness() -> Harness:
        clock = FakeClock()
        ledger = broken(clock)
        return Harness(open=lambda: ledger, clock=clock)

    quick = settings(
        max_examples=300,
        stateful_step_count=40,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=RARELY,
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(ledger_machine(harness), settings=quick)
