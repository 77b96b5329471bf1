"""Four processes empty one inbox, and one is killed with taken items: no item is lost or handled twice."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from semel.ledgers.postgres import PostgresLedger
from semel.testing.harness import Harness, InboxCaller, arrival, lane
from semel.values.claim import Claim, Granted, Settled, Settlement
from semel.values.inbox import Finished, InboxEnding, Postponed, Taken
from semel.values.outcome import Done

LETTERS = 2_000
BATCH = 25
LEASE_MS = 2_000
KEPT_MS = 3_600_000
WORKERS = 4
DEADLINE_S = 100.0

PROCESSES = multiprocessing.get_context("spawn")


def harness_of(namespace: str) -> Harness:
    return Harness(open=lambda: PostgresLedger.from_url("postgresql://nowhere/none"), namespace=namespace)


def claim_on(harness: Harness, event: bytes) -> Claim:
    return harness.claim(event.decode(), lease_ms=LEASE_MS, retention_ms=KEPT_MS)


def worker(url: str, namespace: str, said: str, dies: bool) -> None:
    """Report taken items before they are handled. One process then stops, to be killed."""
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asyncio.run(_work(PostgresLedger.from_url(url), harness_of(namespace), out, dies))


async def _work(ledger: PostgresLedger, harness: Harness, out: int, dies: bool) -> None:
    turns = 0
    while any(depth.lane == lane(harness) for depth in await ledger.depths()):
        taken = await ledger.take({lane(harness): BATCH}, LEASE_MS)
        os.write(out, "".join(f"took {one.id} {one.token} {one.lapses}\n" for one in taken).encode())
        turns += bool(taken)
        if dies and turns == 3:
            os.write(out, b"stands still\n")
            await asyncio.sleep(DEADLINE_S)
        endings = await _handle(ledger, harness, taken)
        held = await ledger.finish(endings)
        ended = zip(endings, held, strict=True)
        os.write(out, "".join(f"ended {one.taken.id} {one.taken.token}\n" for one, was in ended if was).encode())
        await asyncio.sleep(0 if taken else 0.05)
    await ledger.close()


async def _handle(ledger: PostgresLedger, harness: Harness, taken: list[Taken]) -> list[InboxEnding]:
    verdicts = await ledger.claim([claim_on(harness, one.event) for one in taken])
    granted = {verdict.lease.claim.text: verdict.lease for verdict in verdicts if isinstance(verdict, Granted)}
    kept = await ledger.settle([Settlement(lease, Done(text.encode())) for text, lease in granted.items()])
    over = {text for text, was in zip(granted, kept, strict=True) if was}
    over |= {one.event.decode() for one, said in zip(taken, verdicts, strict=True) if isinstance(said, Settled)}
    return [Finished(one) if one.event.decode() in over else Postponed(one, 50) for one in taken]


@pytest.mark.long
def test_a_worker_that_is_killed_with_taken_items_loses_and_repeats_none(url: str, tmp_path: Path) -> None:
    harness = harness_of(f"storm {os.getpid()}")
    events = [b"event %d" % at for at in range(LETTERS)]
    with InboxCaller(partial(PostgresLedger.from_url, url)) as clerk:
        clerk.accept_all([arrival(harness, claim_on(harness, event), event=event) for event in events])
        files = [tmp_path / f"said {number}" for number in range(WORKERS)]
        running = [
            PROCESSES.Process(target=worker, args=(url, harness.namespace, str(file), number == 0))
            for number, file in enumerate(files)
        ]
        running[0].start()
        _until_it_stands_still(files[0])  # alone: the others could empty the inbox before it has started
        for process in running[1:]:
            process.start()
        _until(lambda: any(file.exists() and "ended" in file.read_text() for file in files[1:]), "no other worker ran")
        running[0].kill()
        for process in running:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in running] == [-signal.SIGKILL, 0, 0, 0]
        check([file.read_text().splitlines() for file in files])
        verdicts = clerk.claim_all([claim_on(harness, event) for event in events])
        assert verdicts == [Settled(Done(event)) for event in events], "every one was handled"
        again = clerk.accept_all([arrival(harness, claim_on(harness, event)) for event in events])
        assert {answer.reason for answer in again} == {"done"}
        assert clerk.depths(harness) == []


def check(said: list[list[str]]) -> None:
    took = [tuple(map(int, line.split()[1:])) for lines in said for line in lines if line.startswith("took")]
    ended = [tuple(map(int, line.split()[1:])) for lines in said for line in lines if line.startswith("ended")]
    assert len({token for _, token, _ in took}) == len(took), "no token was given twice"
    finished = Counter(id for id, _ in ended)
    assert len(finished) == LETTERS, "none was lost"
    in_hands = {int(line.split()[1]) for line in said[0] if line.startswith("took")} - {
        int(line.split()[1]) for line in said[0] if line.startswith("ended")
    }
    assert len(in_hands) == BATCH, "inconclusive: it had nothing in its hands when it was killed"
    lapsed = {id for id, _, lapses in took if lapses}
    assert in_hands <= lapsed, "whoever took them after it was told so"
    for id in in_hands:
        tokens = [token for taken, token, _ in took if taken == id]
        assert tokens[0] < max(tokens)


def _until_it_stands_still(said: Path) -> None:
    _until(lambda: said.exists() and said.read_text().endswith("stands still\n"), "it did not take three batches")


def _until(holds: Callable[[], bool], otherwise: str) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < ends, f"inconclusive: {otherwise}"
        time.sleep(0.02)
