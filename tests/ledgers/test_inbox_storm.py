"""Two workers fill and empty one inbox, and someone kills one of them again and again: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import Harness, InboxCaller, arrival
from semel.values.claim import Claim, Granted, Settled, Settlement
from semel.values.inbox import Finished, InboxEnding, Postponed, Taken
from semel.values.outcome import Done

HARNESS = Harness(open=lambda: SqliteLedger("nowhere"), namespace="storm")
LANE = arrival(HARNESS, "a").lane
LEASE_MS = 300
BATCH = 10
KILL_EVERY_S = 0.25
KEPT_MS = 3_600_000


def claim_on(name: str) -> Claim:
    return HARNESS.claim(name, lease_ms=LEASE_MS, retention_ms=KEPT_MS)


def worker(folder: str, number: int, events: int, seed: int) -> None:
    """Brings all events, some of them twice, in an order of its own, and handles what is due; ends when all is done."""
    dice = random.Random(seed)
    names = [f"event {at}" for at in range(events)]
    names += dice.sample(names, events // 3)
    dice.shuffle(names)
    said = os.open(Path(folder, f"said {number}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(_work(SqliteLedger(f"{folder}/ledger.db", synchronous="normal"), names, said))


async def _work(ledger: SqliteLedger, names: list[str], said: int) -> None:
    while names or any(depth.lane == LANE for depth in await ledger.depths()):
        bringing, names = names[:BATCH], names[BATCH:]
        if bringing:
            answers = await ledger.accept([arrival(HARNESS, claim_on(name), event=name.encode()) for name in bringing])
            lines = [f"{answer.status} {name}\n" for answer, name in zip(answers, bringing, strict=True)]
            os.write(said, "".join(lines).encode())
        if taken := await ledger.take({LANE: BATCH}, LEASE_MS):
            await ledger.finish([await _handle(ledger, one) for one in taken])
        await asyncio.sleep(0.01)
    await ledger.close()


async def _handle(ledger: SqliteLedger, taken: Taken) -> InboxEnding:
    (verdict,) = await ledger.claim([claim_on(taken.event.decode())])
    match verdict:
        case Granted():
            kept = await ledger.settle([Settlement(verdict.lease, Done(taken.event))])
            return Finished(taken) if kept == [True] else Postponed(taken, 50)
        case Settled():
            return Finished(taken)
        case _:
            return Postponed(taken, 50)


def storm(folder: Path, events: int, kills: int) -> None:
    dice = random.Random(events)
    context = multiprocessing.get_context("spawn")

    def start(number: int) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=worker, args=(str(folder), number, events, dice.randrange(2**31)))
        process.start()
        return process

    running = [start(0), start(1)]
    landed = 0
    while landed < kills:
        time.sleep(dice.uniform(0.5, 1.5) * KILL_EVERY_S)
        number = dice.randrange(2)
        if (folder / f"said {number}").exists() and running[number].is_alive():
            running[number].kill()
            running[number].join()
            landed += running[number].exitcode == -9
        if not running[number].is_alive():
            running[number] = start(number)
    for process in running:
        process.join(100)
        assert process.exitcode == 0
    check(folder, [f"event {at}" for at in range(events)])


def check(folder: Path, names: Sequence[str]) -> None:
    told = [line.split(" ", 1) for at in (0, 1) for line in (folder / f"said {at}").read_text().splitlines()]
    accepted = Counter(name for status, name in told if status == "accepted")
    assert set(accepted.values()) == {1}, "what was answered accepted is never accepted again"
    assert {status for status, _ in told} == {"accepted", "duplicate"}
    with InboxCaller(partial(SqliteLedger, f"{folder}/ledger.db")) as clerk:
        verdicts = clerk.claim_all([claim_on(name) for name in names])
        assert verdicts == [Settled(Done(name.encode())) for name in names], "nothing is lost"
        again = clerk.accept_all([arrival(HARNESS, claim_on(name)) for name in names])
        assert {answer.reason for answer in again} == {"done"}
    with apsw.Connection(f"{folder}/ledger.db") as connection:
        assert connection.execute("select count(*), count(distinct digest) from semel_record").get == (len(names),) * 2
        for table in ("semel_inbox", "semel_inbox_event", "semel_inbox_key", "semel_lease"):
            assert connection.execute(f"select count(*) from {table}").get == 0, f"{table} has something left behind"


@pytest.mark.long
def test_a_storm_of_kills_loses_and_duplicates_no_inbox_item(tmp_path: Path) -> None:
    storm(tmp_path, events=300, kills=8)


@pytest.mark.long
def test_a_long_storm_of_kills_loses_and_duplicates_no_inbox_item(tmp_path: Path) -> None:
    storm(tmp_path, events=6_000, kills=150)
