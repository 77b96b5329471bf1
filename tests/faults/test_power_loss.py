"""The power fails: what the embedded ledger has answered is there afterwards, or it was said that it may not be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from tests.faults.power import Disk, such_a_disk

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import Harness
from semel.values.claim import Claim, Granted, Settled, Settlement
from semel.values.outcome import Done

ROUNDS = 12
CUTS = 4  # after each answer: once with nothing unsynced left, then with some of it
TABLE = "create table if not exists effect (name text)"


@pytest.fixture
def disk() -> Iterator[Disk]:
    with such_a_disk() as disk:
        yield disk


class Day:
    """A ledger at work. It remembers what it was told, to compare it with what is left."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self.keys = Harness(open=lambda: SqliteLedger(str(path)))
        self.synchronous = synchronous
        self.ledger = SqliteLedger(str(path), synchronous=synchronous)
        self.done: list[Claim] = []
        self.with_effect: list[Claim] = []
        self.token = 0

    async def goes_on(self, number: int) -> None:
        """One event that is claimed and settled, and one whose settle is part of its handler's transaction."""
        plain, transactional = self.keys.claim(f"plain {number}"), self.keys.claim(f"transaction {number}")
        granted = await self.ledger.claim([plain, transactional])
        leases = [one.lease for one in granted if isinstance(one, Granted)]
        self.token = max(lease.token for lease in leases)
        assert await self.ledger.settle([Settlement(leases[0], Done())]) == [True]
        self.done.append(plain)
        async with self.ledger.transaction(leases[1]) as transaction:
            transaction.handle.execute(TABLE)
            transaction.handle.execute("insert into effect values (?)", (transactional.text,))
            assert await transaction.settle(Settlement(leases[1], Done()))
        self.with_effect.append(transactional)

    async def left(self, path: Path) -> tuple[set[str], set[str], int]:
        """After the power loss: what is settled, which effects are there, and the next token."""
        ledger = SqliteLedger(str(path), synchronous=self.synchronous)
        try:
            told = [*self.done, *self.with_effect]
            verdicts = await ledger.claim([*told, self.keys.claim("the next one")])
            settled = {claim.text for claim, one in zip(told, verdicts, strict=False) if one == Settled(Done())}
            newest = verdicts[-1]
            assert isinstance(newest, Granted)
        finally:
            await ledger.close()
        with closing(apsw.Connection(str(path))) as connection:
            connection.execute(TABLE)
            effects = {name for (name,) in connection.execute("select name from effect")}
        return settled, effects, newest.lease.token


def days(folder: Path, disk: Disk, synchronous: str) -> Iterator[tuple[Day, set[str], set[str], int]]:
    """Power losses at every answer; each with what was told before, and what is left of it."""
    with asyncio.Runner() as runner:
        day = Day(folder / "ledger.db", synchronous)
        try:
            for number in range(ROUNDS):
                runner.run(day.goes_on(number))
                for cut in range(CUTS):
                    dice = random.Random(f"{number} {cut}") if cut else None
                    found = disk.lose_power(day.path, folder / f"{number}-{cut}", dice)
                    yield day, *runner.run(day.left(found))
        finally:
            runner.run(day.ledger.close())


def test_a_power_loss_takes_nothing_that_was_answered(tmp_path: Path, disk: Disk) -> None:
    for day, settled, effects, token in days(tmp_path, disk, "full"):
        assert settled == {claim.text for claim in [*day.done, *day.with_effect]}
        assert effects == {claim.text for claim in day.with_effect}
        assert token > day.token, "a token is never given twice"
    assert disk.images[str(tmp_path / "ledger.db-wal")].syncs >= 3 * ROUNDS, "one for each answer"


def test_without_a_sync_for_each_answer_the_newest_are_lost_and_never_half_of_one(tmp_path: Path, disk: Disk) -> None:
    """The positive control: the disk does forget, and `synchronous=normal` says so."""
    lost = 0
    for day, settled, effects, _ in days(tmp_path, disk, "normal"):
        told = {claim.text for claim in [*day.done, *day.with_effect]}
        lost += len(told - settled)
        transactional = {claim.text for claim in day.with_effect}
        assert settled <= told
        assert effects == settled & transactional, "an effect and its settle are there together or not at all"
    assert lost, "inconclusive: nothing was forgotten"
