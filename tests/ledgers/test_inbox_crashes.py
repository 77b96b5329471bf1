"""Kill the process around every commit of the inbox: what was answered is there, and everything is all or nothing.

One story is told step by step, each step one commit. A process is killed just before and just after each of them; what
it leaves must be, table by table, what the same story leaves when it is told undisturbed to that point.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import apsw
import pytest
from tests.forking import START, preload

from semel.ledgers.sqlite import SqliteLedger
from semel.ports import EntryQuery
from semel.testing.crash import crash_at, landing
from semel.testing.harness import FakeClock, Harness, arrival, of_handler
from semel.values.claim import DeadLetter, Granted, Settlement
from semel.values.event import DecodeOptions
from semel.values.inbox import Finished, GivenUp, Postponed
from semel.values.outcome import Done, Reject, Retry

HARNESS = Harness(open=lambda: SqliteLedger("nowhere"), namespace="crash")
LANE = arrival(HARNESS, "a").lane
LEASE_MS = 60_000
STEPS = 21

preload("pytest", "semel.ledgers.sqlite", "semel.testing.harness")

Contents: TypeAlias = dict[str, list[tuple[object, ...]]]  # of each table
SentStatus: TypeAlias = list[tuple[str, Contents]]  # a step, and what is there after it


async def story(ledger: SqliteLedger, clock: FakeClock) -> AsyncIterator[str]:
    """Says each step after it was answered."""
    aliased = HARNESS.claim("aliased", aliases=["x"])
    names = ["a", "b", "c", "d"]
    came = [arrival(HARNESS, name, event=name.encode()) for name in names]
    pair = arrival(HARNESS, of_handler(HARNESS, "one", "p"), of_handler(HARNESS, "two", "p"), event=b"pair")
    await ledger.accept([*came, pair, came[0]])
    yield "accepted"
    a, b, c, d, p = await ledger.take({LANE: 10}, LEASE_MS)
    yield "taken"
    claims = [HARNESS.claim("a"), HARNESS.claim("b"), aliased]
    one, two, three = [verdict for verdict in await ledger.claim(claims) if isinstance(verdict, Granted)]
    yield "granted"
    dead_letter = DeadLetter(b"b", 1)
    await ledger.settle([Settlement(one.lease, Done(b"1")), Settlement(two.lease, Reject("no"), dead_letter)])
    yield "settled"
    assert await ledger.finish([Finished(a), Finished(b)]) == [True, True]
    yield "finished"
    assert await ledger.finish([Postponed(c, 5_000)]) == [True]
    yield "postponed"
    assert await ledger.finish([GivenUp(d, "nobody"), GivenUp(p, "nobody")]) == [True, True]
    yield "given up"
    await ledger.settle([Settlement(three.lease, Reject("no"), DeadLetter(b"aliased", 1))])
    yield "dead"
    assert await ledger.replay(HARNESS.claim("b").digest.hex(), "fixed", "anna")
    yield "replayed"
    assert await ledger.replay(aliased.digest.hex(), "fixed", "anna")
    yield "replayed with its aliases"
    assert await ledger.discard(HARNESS.claim("d").digest.hex(), "not needed", "otto")
    yield "discarded"
    (entry,) = await ledger.entries(EntryQuery("dead"))
    assert await ledger.replay(entry.key, "fixed", "anna")
    yield "replayed what was given up"
    taken = await ledger.take({LANE: 1, "on_event": 2}, LEASE_MS)
    assert len(taken) == 3
    yield "taken again"
    clock.now_ms += LEASE_MS
    assert len(await ledger.take({LANE: 5, "on_event": 5}, LEASE_MS)) == 4
    yield "taken after a lapse"
    clock.now_ms += 10 * HARNESS.retention_ms
    assert await ledger.purge(2) == 2
    yield "purged in part"
    assert await ledger.purge(100) > 0
    yield "purged"
    elsewhere = HARNESS.claim("of a handler elsewhere")
    (first,) = await ledger.claim([elsewhere])
    assert isinstance(first, Granted)
    yield "granted elsewhere"
    assert await ledger.settle([Settlement(first.lease, Retry(0, "not yet"))]) == [True]
    yield "waits with its reason"
    (second,) = await ledger.claim([elsewhere])
    assert isinstance(second, Granted)
    yield "granted once more"
    foreign = DeadLetter(b"{}", 2, DecodeOptions(foreign=True))
    assert await ledger.settle([Settlement(second.lease, Reject("no"), foreign)]) == [True]
    yield "dead elsewhere"
    assert await ledger.replay(elsewhere.digest.hex(), "fixed", "anna")
    yield "its key is free again"


def tell(folder: str, boundary: str, hit: int) -> None:
    """In a process of its own, which does not come to the end."""
    clock, place = FakeClock(), Path(folder)
    crash = crash_at(boundary, hit, marker=place / "landed")
    said = os.open(place / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def tell_it() -> None:
        ledger = SqliteLedger(str(place / "ledger.db"), clock=clock, observe=crash)
        async for step in story(ledger, clock):
            os.write(said, f"{step}\n".encode())
        await ledger.close()

    asyncio.run(tell_it())


def contents(path: Path) -> Contents:
    """Everything in the file but the time at which somebody last tried whether it can be written."""
    connection = apsw.Connection(str(path))
    tables = [name for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")]
    found = {name: sorted(connection.execute(f"select * from {name}"), key=repr) for name in tables}
    found["semel_meta"] = [row for row in found["semel_meta"] if row[0] != "touched"]
    assert connection.execute("pragma integrity_check").get == "ok"
    connection.close()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SentStatus:
    """What is there before the first step, and after each."""
    path, clock = tmp_path_factory.mktemp("undisturbed") / "ledger.db", FakeClock()
    found: SentStatus = []

    async def tell_it() -> None:
        ledger = SqliteLedger(str(path), clock=clock)
        await ledger.claim([])
        found.append(("nothing", contents(path)))
        found.extend([(step, contents(path)) async for step in story(ledger, clock)])
        await ledger.close()

    asyncio.run(tell_it())
    assert len(found) == STEPS + 1
    return found


@pytest.mark.parametrize("hit", range(1, STEPS + 1))
@pytest.mark.parametrize("boundary", ["before_commit", "after_commit"])
def test_a_crash_around_a_commit_leaves_all_of_it_or_nothing(
    tmp_path: Path, undisturbed: SentStatus, boundary: str, hit: int
) -> None:
    process = START.Process(target=tell, args=(str(tmp_path), boundary, hit))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / "landed").read_text() == landing(boundary, hit), f"inconclusive: no crash at {boundary}"
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [step for step, _ in undisturbed[1:hit]], "all steps before it were answered"
    committed = hit if boundary == "after_commit" else hit - 1
    found = contents(tmp_path / "ledger.db")
    for table, rows in undisturbed[committed][1].items():
        assert found[table] == rows, table


def test_every_step_changes_something(undisturbed: SentStatus) -> None:
    """Else a crash there would prove nothing."""
    for (_, before), (step, after) in pairwise(undisturbed):
        assert before != after, step
