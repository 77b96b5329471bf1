"""What is told of a file's place, and what a force may not repeat, when things end or overlap at a bad moment."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.process.conftest import Shop, event

from semel import Context, Event, Semel
from semel.cli.process_input import Stream, look_at
from semel.cli.process_run import Forcing
from semel.cli.process_source import READ_MAX, FileSource, load, path_for
from semel.ports import Entry
from semel.values.errors import LedgerUnavailable

FORCE = ("--force", "--reason", "again", "--json")


def test_what_was_only_read_ahead_is_not_finished(shop: Shop) -> None:
    """The thread has come to the end of the file, and the limit is before it."""
    shop.write([event(str(number)) for number in range(READ_MAX + 5)])
    ended = shop.process("events.jsonl", "--limit", str(READ_MAX))
    assert "--resume" in ended.out
    assert not shop.progress["finished"]
    assert shop.process("events.jsonl", "--resume", "--json").json["this_run"] == {"done": 5}


def test_a_run_that_begins_anew_leaves_no_place_of_an_earlier_one(tmp_path: Path) -> None:
    """It may die before anything is settled, and a resume would pass over what it was to do."""
    file = tmp_path / "events.jsonl"
    file.write_bytes(event("1") + b"\n" + event("2") + b"\n")
    progress = path_for(str(file))

    async def story() -> None:
        source = FileSource(Stream(look_at(str(file))), progress=progress, began_ms=1)
        while deliveries := await source.receive(10):
            for delivery in deliveries:
                await delivery.ack()
        await source.close()
        earlier = load(progress)
        assert earlier is not None
        assert earlier.finished
        again = FileSource(Stream(look_at(str(file))), progress=progress, began_ms=2)
        assert len(await again.receive(10)) == 2
        kept = load(progress)  # what whoever comes after a kill would find
        assert kept is not None
        assert (kept.place.at, kept.finished, kept.began_ms) == (0, False, 2)
        await again.close()

    asyncio.run(story())


def test_forces_of_different_runs_are_not_gone_on_with_as_one(shop: Shop) -> None:
    """Under the name of the later one, what the earlier one had forced would be forced once more."""
    shop.write([event("0", "later"), event("1")], "a.jsonl")
    shop.write([event("00", "later"), event("2")], "b.jsonl")
    for name in ("a.jsonl", "b.jsonl"):
        assert shop.process(name).code == 1
    for name in ("b.jsonl", "a.jsonl"):
        assert shop.process(name, *FORCE).json["forced"] == 1
    both = shop.process("a.jsonl", "b.jsonl", *FORCE, "--resume")
    assert sorted(shop.booked()) == ["1", "1", "2", "2"], "forced twice"
    assert both.code == 2
    assert "b.jsonl" in both.err
    assert shop.process("b.jsonl", *FORCE, "--resume").json["forced"] == 0


class Interrupted:
    """A ledger of which one answer is lost, while another one takes its time."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.late = asyncio.Event()
        self.asked = 0

    async def history(self, key: str) -> list[Entry]:
        self.asked += 1
        if self.asked == 1:
            raise LedgerUnavailable("no answer")
        found: list[Entry] = await self._ledger.history(key)
        if self.asked == 2:
            asyncio.get_running_loop().call_later(0.2, self.late.set)
            await self.late.wait()
        return found

    async def replay(self, key: str, reason: str, by: str, *, force: bool = False) -> bool:
        done: bool = await self._ledger.replay(key, reason, by, force=force)
        return done


def test_after_an_outage_nothing_of_before_is_still_under_way(tmp_path: Path) -> None:
    """Else it would reopen later what was forced, and done, meanwhile."""

    async def story() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:

            @app.on("sale")
            async def act(event: Event, ctx: Context) -> None: ...

            both = [event("1"), event("2")]
            await app.process_many(both)
            ledger: Any = Interrupted(app.ledger)
            forcing = Forcing(ledger, "again", "kim", time.time_ns() // 1_000_000 + 60_000)
            with pytest.raises(LedgerUnavailable):
                await forcing.reopened(await app.process_many(both))
            again = await app.process_many(both)
            for at in await forcing.reopened(again):
                again[at] = await app.process(both[at])
            assert [one.status for one in again] == ["done", "done"]
            await asyncio.wait_for(ledger.late.wait(), 60)
            await asyncio.sleep(0.05)
            assert [one.status for one in await app.process_many(both)] == ["duplicate", "duplicate"], "forced twice"

    asyncio.run(story())
