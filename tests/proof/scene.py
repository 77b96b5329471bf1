"""One proof's stage: a ledger, a source, effects, the processes that work on them, and what must hold at the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import apsw
import msgspec
from tests.forking import START, Forked, preload
from tests.proof import worker_process
from tests.proof.worker_process import Plan, app_of, connect_outside, main

import semel
from semel.ports import Entry
from semel.testing.crash import landing
from semel.testing.folder_source import FolderSource
from semel.values.effect import Effect
from semel.values.outcome import Outcome

preload("tests.proof.scene", "semel.ledgers.sqlite")

PROCESS_S = 60.0  # no process of a proof needs longer; a hung one fails here, with its name
POLL_S = 0.005
ENTRIES_MAX = 100_000


class Row(NamedTuple):
    """One effect, as the world outside the ledger saw it."""

    event: str
    key: str
    token: int
    attempt: int
    applied: int


class Scene:
    def __init__(self, home: Path, effect: Effect, **settings: Any) -> None:
        self.home = home
        self.effect = effect
        self.plan = Plan(home=str(home), effect=effect, **settings)

    # ------------------------------------------------------------------------------------------------ processes

    def deliver(self, *events: str, source: str = "source") -> None:
        """One message for each name; a name that comes again is a duplicate copy."""
        folder = FolderSource(self.home / source)
        for number, event in enumerate(events):
            folder.put(f"{number:05}", document(event))

    @contextmanager
    def process(self, **changes: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process; it does not outlive the block."""
        plan = msgspec.structs.replace(self.plan, **changes)
        command = [sys.executable, "-W", "error", worker_process.__file__, msgspec.json.encode(plan).decode()]
        found_at = [str(Path(semel.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))}
        with (self.home / "stderr").open("ab") as stderr:
            with subprocess.Popen(command, env=environment, stdout=stderr, stderr=stderr) as process:
                try:
                    yield process
                finally:
                    process.kill()

    def run(self, **changes: Any) -> int:
        """A worker process to its end. Returns its exit code, negative for a signal."""
        plan = msgspec.structs.replace(self.plan, **changes)
        started = START.Process(target=_work, args=(plan, self.home / "stderr"), daemon=True)
        started.start()
        process = Forked(started)
        try:
            return process.wait(PROCESS_S)
        finally:
            process.kill()

    def run_until_killed(self, boundary: str, hit: int, **changes: Any) -> None:
        """A process that dies at a boundary. One that does not has proven nothing."""
        marker = self.home / "landed"
        marker.unlink(missing_ok=True)
        code = self.run(crash=(boundary, hit), **changes)
        assert code in (0, -signal.SIGKILL), f"failed with {code} before {landing(boundary, hit)}{self.said()}"
        assert marker.exists(), f"inconclusive: {landing(boundary, hit)} was never reached{self.said()}"
        assert marker.read_text() == landing(boundary, hit)
        assert code == -signal.SIGKILL, f"it outlived its crash at {landing(boundary, hit)}{self.said()}"

    def run_to_the_end(self, **changes: Any) -> None:
        """A healthy process, until the source is empty."""
        code = self.run(**changes)
        assert code == 0, f"exit code {code}{self.said()}"

    @contextmanager
    def stopped(self, boundary: str, hit: int, **changes: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A process that stands still at a boundary."""
        marker = self.home / "landed"
        with self.process(stop=(boundary, hit), **changes) as process:
            stands = partial(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
            wait_until(lambda: stands() is not None, landing(boundary, hit))
            assert process.poll() is None, f"ended with {process.poll()} instead of standing still{self.said()}"
            assert marker.read_text() == landing(boundary, hit)
            yield process

    def said(self) -> str:
        text = (self.home / "stderr").read_text("utf-8", "replace")
        return f"; it said:\n{text}" if text else ""

    # --------------------------------------------------------------------------------------------------- looking

    def rows(self) -> list[Row]:
        """All effects in the order in which they happened."""
        select = "select event, key, token, attempt, applied from effect order by rowid"
        if self.effect != "transaction":
            with closing(connect_outside(self.home / "effects.db")) as connection:
                return [Row(*row) for row in connection.execute(select)]
        with closing(apsw.Connection(str(self.home / "ledger.db"))) as ledger:
            ledger.set_busy_timeout(30_000)
            ledger.execute("begin immediate; " + worker_process.TABLE + "; commit")
            return [Row(*row) for row in ledger.execute(select)]

    def entries(self) -> dict[str, Entry]:
        """What the ledger lists, by event."""

        async def ask() -> Sequence[Entry]:
            async with app_of(self.plan) as app:
                return await app.entries(limit=ENTRIES_MAX)

        listed = asyncio.run(ask())
        assert len({entry.text for entry in listed}) == len(listed), "every event has one entry"
        return {entry.text: entry for entry in listed}

    def deliver_again(self, events: Sequence[str]) -> dict[str, Outcome]:
        """What the ledger says of each event when it comes once more."""

        async def ask() -> list[Outcome]:
            async with app_of(self.plan) as app:
                return await app.process_many([document(event) for event in events])

        return dict(zip(events, asyncio.run(ask()), strict=True))

    def answers(self, name: str) -> list[str]:
        path = self.home / name
        return path.read_text().split() if path.exists() else []

    # ------------------------------------------------------------------------------------------------ the promise

    def check(self, events: Sequence[str], sources: Sequence[str] = ("source",)) -> None:
        """Nothing is lost, nothing is left, and the effect has kept its promise."""
        for source in sources:
            assert FolderSource(self.home / source).left() == []
            assert FolderSource(self.home / source).rejected() == {}
        states = {event: entry.state for event, entry in self.entries().items()}
        assert set(states) == set(events), "every event is listed"
        assert set(states.values()) <= ENDINGS[self.effect]
        rows = self.rows()
        assert {row.event for row in rows} <= set(events)
        again = self.deliver_again(events)
        assert {outcome.status for outcome in again.values()} == {"duplicate"}
        assert self.rows() == rows, "a settled event has no further effect"
        PROMISE_KEPT[self.effect](rows, states, {event: outcome.result for event, outcome in again.items()})


def _work(plan: Plan, said: Path) -> None:
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    warnings.simplefilter("error")
    main(plan)


def document(event: str) -> bytes:
    return json.dumps({"id": event, "type": "proof"}).encode()


def times(rows: Sequence[Row]) -> Counter[str]:
    """How often each event had its effect."""
    return Counter(row.event for row in rows if row.applied)


def exactly_once(rows: Sequence[Row], states: Mapping[str, str], settled: Mapping[str, int]) -> None:
    assert times(rows) == dict.fromkeys(states, 1)


def once_by_key(rows: Sequence[Row], states: Mapping[str, str], settled: Mapping[str, int]) -> None:
    """Calls may repeat, always with the same key: a downstream that honours it has applied each event once."""
    keys = {(row.event, row.key) for row in rows}
    assert Counter(event for event, _ in keys) == dict.fromkeys(states, 1)
    assert len({key for _, key in keys}) == len(states), "no two events share a key"


def last_token_wins(rows: Sequence[Row], states: Mapping[str, str], settled: Mapping[str, int]) -> None:
    """What the resource ends with is what the settled run wrote: nothing came after it, refused or not."""
    assert {row.event: row.token for row in rows if row.applied} == settled


def at_least_once(rows: Sequence[Row], states: Mapping[str, str], settled: Mapping[str, int]) -> None:
    assert set(times(rows)) == set(states)


def at_most_once(rows: Sequence[Row], states: Mapping[str, str], settled: Mapping[str, int]) -> None:
    """What is done happened once; what is uncertain happened once or not at all, and is listed."""
    happened = times(rows)
    assert all(happened[event] == 1 for event, state in states.items() if state == "done")
    assert all(happened[event] <= 1 for event, state in states.items() if state == "uncertain")


Kept: TypeAlias = Callable[[Sequence[Row], Mapping[str, str], Mapping[str, int]], None]

PROMISE_KEPT: dict[str, Kept] = {
    "transaction": exactly_once,
    "keyed": once_by_key,
    "fenced": last_token_wins,
    "retry": at_least_once,
    "park": at_most_once,
}
ENDINGS = {effect: {"done"} for effect in PROMISE_KEPT} | {"park": {"done", "uncertain"}}


def wait_until(true: Callable[[], bool], what: str, seconds: float = PROCESS_S) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, f"waited {seconds:g} s for {what}"
        time.sleep(POLL_S)
