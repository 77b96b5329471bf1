"""Decisions about many events: a steady rate, a killed and repeated replay, and paged lists."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import tracemalloc
from hashlib import blake2b
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.command import semel, started
from tests.cli.ledgers import url_of
from tests.cli.test_dead import REASON, states

from semel.cli import bulk_decision, dead_decisions, find
from semel.cli.find import Filters
from semel.cli.ledger_place import Place, opened
from semel.ledgers.sqlite import SqliteLedger
from semel.ports import DeadLetters
from semel.values.claim import Claim, DeadLetter, Granted, Settlement
from semel.values.outcome import Reject
from semel.values.secret import Secret


def fill(folder: Path, count: int, event_bytes: int = 100, together: int = 1_000) -> str:
    """So many letters, of three handlers, for seven reasons. Those that are given up together share a millisecond."""

    async def give_up() -> None:
        ledger = SqliteLedger(str(folder / "semel.db"), synchronous="normal")
        event = b'{"id":"e","type":"t","data":"%s"}' % (b"x" * event_bytes)
        for first in range(0, count, together):
            numbers = range(first, min(first + together, count))
            verdicts = await ledger.claim([_claim(number) for number in numbers])
            settlements = [
                Settlement(verdict.lease, Reject(f"the CRM answered {500 + number % 7}"), DeadLetter(event, 1))
                for number, verdict in zip(numbers, verdicts, strict=True)
                if isinstance(verdict, Granted)
            ]
            assert await ledger.settle(settlements) == [True] * len(numbers)
        await ledger.close()

    asyncio.run(give_up())
    return url_of(folder)


def _claim(number: int) -> Claim:
    digest = blake2b(str(number).encode(), digest_size=16).digest()
    return Claim(digest, f"handler-{number % 3}", f"key {number}", 30_000, 86_400_000)


def test_a_killed_replay_continues_when_it_is_repeated(tmp_path: Path) -> None:
    """Whatever was replayed is in the inbox once, and what was not is still a letter."""
    url = fill(tmp_path, 300)
    command = ("dead", "replay", "--all", "--yes", *REASON, "--rate", "20", "--ledger", url)
    process = started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while states(url)["accepted"] < 5:
        assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    between = states(url)
    assert between["accepted"] + between["dead"] == 300
    if not between["dead"]:
        pytest.fail("inconclusive: it was through before it was killed")
    report = semel("dead", "replay", "--all", "--yes", *REASON, "--ledger", url, "--json").json
    assert (report["replayed"], report["already_decided"]) == (between["dead"], 0)
    assert states(url) == {**states(url), "accepted": 300, "dead": 0}


def test_a_rate_is_steady_and_a_stall_is_not_followed_by_a_burst() -> None:
    """50 a second, and half a second in which nothing can be done: no more than what a moment allows comes at once."""

    async def times() -> list[float]:
        loop, pace, found = asyncio.get_running_loop(), bulk_decision.Pace(50), []
        for number in range(30):
            await pace.wait()
            found.append(loop.time())
            if number == 9:
                time.sleep(0.5)  # noqa: ASYNC251 # the loop itself stands still
        return found

    found = asyncio.run(times())
    for first in range(len(found)):
        in_a_tenth = [at for at in found[first:] if at - found[first] <= 0.1]
        assert len(in_a_tenth) <= 12, "5 by the rate, 5 to catch up, and one on each side"
    assert found[-1] - found[0] >= 29 / 50, "and on the whole never faster than the rate"


def test_without_a_rate_there_is_no_delay() -> None:
    async def many() -> None:
        pace = bulk_decision.Pace(None)
        for _ in range(10_000):
            await pace.wait()

    asyncio.run(asyncio.wait_for(many(), 30))


def test_a_dry_run_lists_exactly_what_would_be_replayed(tmp_path: Path) -> None:
    """All of them, also beyond the first pages, and nobody else's."""
    url = fill(tmp_path, 1_300)
    wanted = ("--route", "handler-1", "--matching", "answered 503", "--dry-run", "--ledger", url)
    out = semel("dead", "replay", *wanted).out
    expected = [number for number in range(1_300) if number % 3 == 1 and number % 7 == 3]
    for number in expected:
        assert f"{_claim(number).digest.hex()[:12]}…" in out
    assert out.count("…") == len(expected)
    assert out.splitlines()[-1].startswith(f"{len(expected)} ")
    report = semel("dead", "replay", *wanted, "--json").json
    assert {event["key"] for event in report["events"]} == {_claim(number).digest.hex() for number in expected}
    assert states(url)["dead"] == 1_300


def test_a_long_list_does_not_hold_all_events_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 letters of 20 KB are 60 MB; a page has 4 at the most."""
    url = fill(tmp_path, 3_000, event_bytes=20_000, together=50)
    monkeypatch.setattr(find, "PAGE_BYTES", 4_000_000)
    where = Place(Secret(url))
    ask = dead_decisions.DeadLetterRequest(
        action="replay", names=[], every=True, state=None, wanted=Filters(), reason="", by="me", dry_run=True
    )

    def listed() -> int:
        return len(asyncio.run(find.list_entries(where, ["dead"], 100_000, Filters()))[0])

    def chosen() -> int:
        decision = dead_decisions.EventDecision(where, ask)
        bulk_decision.run(decision, Console(stderr=True), None)
        return len(decision.report.chosen)

    for step in (listed, chosen):
        tracemalloc.start()
        try:
            assert step() == 3_000
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 20_000_000, f"{step.__name__}: {most:,} bytes"


@pytest.mark.long
def test_a_hundred_thousand_dead_letters_take_linear_time(tmp_path: Path) -> None:
    """Ten times as many take about ten times as long, and not a hundred times."""
    took: list[float] = []
    for at, count in enumerate((10_000, 100_000)):
        folder = tmp_path / str(at)
        folder.mkdir()
        url = fill(folder, count)
        begun = time.monotonic()
        report = semel("dead", "replay", "--all", "--yes", *REASON, "--ledger", url, "--json").json
        took.append(time.monotonic() - begun)
        assert report["replayed"] == count
        assert states(url) == {**states(url), "accepted": count, "dead": 0}
    assert took[1] < 30 * took[0], took


def test_pages_contain_each_dead_letter_once_while_others_are_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path, 500)
    monkeypatch.setattr(find, "PAGE", 50)
    monkeypatch.setattr(find, "PAGE_MAX", 70)

    async def meanwhile() -> list[str]:
        async with opened(Place(Secret(url))) as ledger:
            found = []
            async for entry in find.every_entry(ledger, "dead", Filters()):
                found.append(entry.key)
                if len(found) in (60, 200):
                    assert isinstance(ledger, DeadLetters)
                    for key in found[-20:-10]:
                        assert await ledger.discard(key, "meanwhile", "somebody")
            return found

    found = asyncio.run(meanwhile())
    assert len(found) == len(set(found)) == 500


def test_a_decision_in_progress_at_an_interrupt_is_finished_and_reported() -> None:
    """The store may have committed it. Reported as not decided, the counts would contradict the ledger."""
    decided: list[str] = []
    begun: list[str] = []

    async def story() -> None:
        committed, answered = asyncio.Event(), asyncio.Event()

        async def decide(name: str) -> bool:
            begun.append(name)
            committed.set()
            await answered.wait()
            return True

        def record(name: str, answer: bool) -> None:
            assert answer is True
            decided.append(name)

        report = bulk_decision.BulkReport(dry_run=False)

        command = asyncio.create_task(
            bulk_decision.decide_each(report, ["a", "b"], decide, record, lambda: None, rate=1_000.0)
        )
        await committed.wait()
        command.cancel()
        await asyncio.sleep(0)
        answered.set()
        with pytest.raises(asyncio.CancelledError):
            await command

    asyncio.run(story())
    assert decided == begun == ["a"]
