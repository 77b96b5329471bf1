"""`semel process --force`: events that have succeeded run again, each once for a forced run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.process.conftest import Shop, event

from semel import Context, Event, Semel
from semel.cli.process_run import Force
from semel.ports import Entry
from semel.values.errors import LedgerUnavailable

FORCE = ("--force", "--reason", "again", "--json")


def test_events_that_succeeded_run_again_only_by_force_and_with_a_reason(shop: Shop) -> None:
    shop.write([event("1"), event("2"), event("1")])
    assert shop.process("events.jsonl").code == 0
    assert shop.process("events.jsonl", "--json").json["outcomes"] == {"duplicate": 3}
    assert shop.process("events.jsonl", "--force").code == 2
    ended = shop.process("events.jsonl", "--force", "--reason", "the CRM lost a day", "--by", "kim", "--json")
    assert ended.code == 0, ended.out + ended.err
    assert ended.json["forced"] == 2
    assert ended.json["outcomes"] == {"done": 2, "duplicate": 1}, "a copy in the same file is one event"
    assert sorted(shop.booked()) == ["1", "1", "2", "2"]


@pytest.mark.parametrize("options", [("--reason", "again"), ("--before", "2h"), (*FORCE, "--before", "yesterday")])
def test_invalid_options_of_force_are_refused(shop: Shop, options: tuple[str, ...]) -> None:
    shop.write([event("1")])
    assert shop.process("events.jsonl", *options).code == 2
    assert shop.booked() == []


def test_events_that_this_run_processes_for_the_first_time_are_not_forced(shop: Shop) -> None:
    bodies = [event(str(number)) for number in range(250)]
    shop.write([*bodies, *bodies])
    ended = shop.process("events.jsonl", *FORCE)
    assert ended.json["outcomes"] == {"done": 250, "duplicate": 250}
    assert len(shop.booked()) == 250


def test_a_forced_run_that_is_repeated_with_its_time_forces_nothing_twice(shop: Shop) -> None:
    shop.write([event("0", "later"), event("1"), event("2")])
    assert shop.process("events.jsonl").code == 1
    first = shop.process("events.jsonl", *FORCE)
    assert first.json["forced"] == 2
    time_of_run = first.json["forced_before"]
    assert f"--before {time_of_run}" in first.err
    again = shop.process("events.jsonl", *FORCE, "--before", time_of_run)
    assert again.json["forced"] == 0
    assert sorted(shop.booked()) == ["1", "1", "2", "2"]


def test_events_that_the_repeated_run_processed_for_the_first_time_are_not_forced(shop: Shop) -> None:
    shop.write([event("0", "later"), event("1"), event("2")])
    first = shop.process("events.jsonl", *FORCE)
    assert first.json["outcomes"] == {"done": 2, "left": 1}
    again = shop.process("events.jsonl", *FORCE, "--before", first.json["forced_before"])
    assert again.json["forced"] == 0
    assert again.json["outcomes"] == {"duplicate": 2, "left": 1}
    assert shop.booked() == ["1", "2"]


def test_a_forced_run_is_recognised_by_its_time_if_the_clocks_differ(tmp_path: Path) -> None:
    async def story() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:

            @app.on("sale")
            async def act(event: Event, ctx: Context) -> None: ...

            ledger: Any = app.ledger
            ahead_ms = time.time_ns() // 1_000_000 + 3_600_000  # for the ledger's clock, nothing is new
            outcomes = await app.process_many([event("1"), event("1")])
            assert [outcome.status for outcome in outcomes] == ["done", "duplicate"]
            for reopened in ([0], []):
                force = Force(ledger, "again", "kim", ahead_ms)
                assert await force.reopen(await app.process_many([event("1")])) == reopened
                await app.process_many([event("1")])

    asyncio.run(story())


class Interrupted:
    """A ledger whose first answer is lost and whose second is slow."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.late = asyncio.Event()
        self.calls = 0

    async def history(self, key: str) -> list[Entry]:
        self.calls += 1
        if self.calls == 1:
            raise LedgerUnavailable("no answer")
        history: list[Entry] = await self._ledger.history(key)
        if self.calls == 2:
            asyncio.get_running_loop().call_later(0.2, self.late.set)
            await self.late.wait()
        return history

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        done: bool = await self._ledger.replay(key, reason, by, force=force)
        return done


def test_no_call_from_before_an_outage_is_still_running_after_it(tmp_path: Path) -> None:
    """It would reopen a key that was forced and done in the meantime."""

    async def story() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:

            @app.on("sale")
            async def act(event: Event, ctx: Context) -> None: ...

            both = [event("1"), event("2")]
            await app.process_many(both)
            ledger: Any = Interrupted(app.ledger)
            force = Force(ledger, "again", "kim", time.time_ns() // 1_000_000 + 60_000)
            with pytest.raises(LedgerUnavailable):
                await force.reopen(await app.process_many(both))
            again = await app.process_many(both)
            for at in await force.reopen(again):
                again[at] = await app.process(both[at])
            assert [outcome.status for outcome in again] == ["done", "done"]
            await asyncio.wait_for(ledger.late.wait(), 60)
            await asyncio.sleep(0.05)
            last = await app.process_many(both)
            assert [outcome.status for outcome in last] == ["duplicate", "duplicate"], "forced twice"

    asyncio.run(story())
