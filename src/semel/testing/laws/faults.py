"""The load of the fault laws, and the checks of each effect after it: the promises of `values/effect.py`, compared with
the calls that a resource outside the ledger recorded."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import pytest

from semel.ports import Entry
from semel.testing.child_processes import start_child
from semel.testing.folder_source import FolderSource
from semel.testing.proxy import FaultProxy
from semel.values.outcome import Outcome


class Happened(NamedTuple):
    """One call of a handler, as recorded by its resource."""

    effect: str
    event: str
    key: str
    token: int
    attempt: int
    applied: bool = True  # False: the resource refused it because of an old token


class EventRecord(NamedTuple):
    """The final state of one event in the ledger."""

    state: str  # in the catalog
    token: int | None  # of the settled run; handlers return their token


Kept: TypeAlias = Callable[[Sequence[Happened], Mapping[str, EventRecord]], None]


def exactly_once(calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    assert Counter(call.event for call in calls) == dict.fromkeys(known, 1)


def once_by_key(calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    """Calls may repeat, but always with the same key, so a downstream that honours it applies each event once."""
    keys = {(call.event, call.key) for call in calls}
    assert Counter(event for event, _ in keys) == dict.fromkeys(known, 1)
    assert len({key for _, key in keys}) == len(known), "no two events share a key"


def last_token_wins(calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    """The resource holds the write of the settled run: it accepted no other write after it."""
    assert {call.event: call.token for call in calls if call.applied} == {
        name: one.token for name, one in known.items()
    }


def at_least_once(calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    assert {call.event for call in calls} == set(known)


def at_most_once(calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    """An event that is done happened once. An uncertain event happened once or not at all, and is listed."""
    times = Counter(call.event for call in calls)
    assert {event for event, count in times.items() if count > 1} == set()
    assert {event for event, one in known.items() if one.state == "done" and not times[event]} == set()


KEPT: dict[str, Kept] = {
    "transaction": exactly_once,
    "keyed": once_by_key,
    "fenced": last_token_wins,
    "retry": at_least_once,
    "park": at_most_once,
}
ENDINGS = {effect: {"done"} for effect in KEPT} | {"park": {"done", "uncertain"}}


def check_kept(effect: str, calls: Sequence[Happened], known: Mapping[str, EventRecord]) -> None:
    """Check that every event has a final state that its effect allows, and that the promise of the effect holds.
    `calls` are the calls of this effect."""
    strange = {event: one.state for event, one in known.items() if one.state not in ENDINGS[effect]}
    assert strange == {}, f"{effect}: not every event has ended"
    assert {call.event for call in calls} <= set(known)
    KEPT[effect](calls, known)


# The load for fault injection: worker processes on one store receive duplicates during the faults, and drain their
# sources afterwards.

SOON_S = 60.0  # the limit of every wait; a busy machine is slow
DRAIN_S = 60.0
LAST_WORDS_S = 1.0
POLL_S = 0.01
WORKERS = ("one", "two")
BACKLOG = 24  # messages that wait for each worker: enough to keep it busy, few enough to drain soon
FEED = 10
AMID_S = 0.2  # kills hit any moment of a batch, not only the one after an acknowledgement
LONELY = 0.5  # share of the events that are delivered once
FINISHED = "finished"  # workers end when this file exists and their source is empty
UNDECIDED = "undecided"
ENTRIES_MAX = 100_000


class FaultApp(Protocol):
    """`semel.Semel`, with a handler for each effect, named after it, on the topic of that name."""

    ledger: Any

    async def process(self, body: Mapping[str, Any]) -> Outcome: ...
    async def process_many(self, bodies: Sequence[Mapping[str, Any]]) -> list[Outcome]: ...
    async def entries(self, state: str | None = None, limit: int = 100) -> Sequence[Entry]: ...
    async def close(self) -> None: ...


class Killable(Protocol):
    """A server process that a law kills and starts again on its data."""

    def start(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class FaultHarness:
    """Access to one empty store behind a proxy."""

    home: Path
    proxy: FaultProxy

    app: Callable[[], FaultApp]
    """Opens the store through the proxy. Each handler returns its token."""

    hasty: Callable[[], FaultApp]
    """The same with short leases and short timeouts, for laws that wait for them."""

    worker: Callable[[str], Sequence[str]]
    """The command of a process that consumes the folder of this name in `home`, through the proxy, with the same
    handlers. Its retries have short delays. For each delivery that it returns because the ledger is unavailable, it
    adds a byte to the file UNDECIDED in `home`. It exits with 0 when its folder is empty and `home` has a file
    FINISHED."""

    happened: Callable[[], list[Happened]]
    """Every call so far, in order, read without the proxy. Also works after a restart of the store."""

    effects: Sequence[str]
    """The effects that the store supports."""

    server: Killable | None = None
    """The server of the store. None: the tests cannot restart it."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The environment of the workers."""


def document(event: str) -> dict[str, str]:
    return {"id": event, "type": event.partition("-")[0]}


def inconclusive(what: str) -> NoReturn:
    """Fail the test, because a fault that did not land proves nothing."""
    pytest.fail(f"inconclusive: {what}")


def wait_until(true: Callable[[], bool], what: str, seconds: float = SOON_S) -> None:
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(POLL_S)


class FaultStorm:
    """Runs a block under load. At its end the sources are drained and every promise is checked."""

    def __init__(self, harness: FaultHarness) -> None:
        self.harness = harness
        self.events: list[str] = []
        self.kills = 0
        self._dice = random.Random(repr(harness.effects))
        self._sources = {name: FolderSource(harness.home / name) for name in WORKERS}
        self._put = dict.fromkeys(WORKERS, 0)
        self._enough = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._stack = ExitStack()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> FaultStorm:
        self._top_up()
        for name in WORKERS:
            self._start(name)
        self._feeder.start()
        try:
            self.goes_on()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self._drain()
        finally:
            self._stop()
        if error is None:
            self.check()

    # -------------------------------------------------------------------------------------------------- while it lasts

    def goes_on(self, more: int = 12) -> None:
        """Wait for this number of further acknowledgements, which shows that the load makes progress."""
        wanted = self.acked + more
        wait_until(lambda: self.acked >= wanted, f"{more} more acknowledgements{self._worker_output()}")

    @property
    def acked(self) -> int:
        return sum(self._acked_by(name) for name in WORKERS)

    def _acked_by(self, name: str) -> int:
        return self._put[name] - len(self._sources[name].left())

    def is_undecided(self) -> None:
        """Wait until a worker has returned deliveries because the store is unreachable. The fault has then outlasted
        the retries of the ledger."""
        before = self.undecided
        wait_until(lambda: self.undecided > before, f"a worker without its ledger{self._worker_output()}")

    @property
    def undecided(self) -> int:
        path = self.harness.home / UNDECIDED
        return path.stat().st_size if path.exists() else 0

    def kill_worker(self) -> None:
        """Kill a busy worker by SIGKILL, and start it again on its unacknowledged messages."""
        name = WORKERS[self.kills % len(WORKERS)]
        begun = self._acked_by(name)
        wait_until(lambda: self._acked_by(name) > begun, f"worker {name} at work{self._worker_output()}")
        time.sleep(self._dice.uniform(0.0, AMID_S))
        process = self._running[name]
        process.kill()
        code = process.wait()
        assert code == -signal.SIGKILL, f"worker {name} exited with {code} before the kill{self._worker_output()}"
        self.kills += 1
        self._start(name)

    # ------------------------------------------------------------------------------------------------------- afterwards

    def check(self) -> None:
        """Check that no message is left, that no event runs again, and that every effect has kept its promise."""
        for source in self._sources.values():
            assert source.left() == []
            assert source.rejected() == {}
        before = self.harness.happened()
        known = asyncio.run(self._ask())
        assert self.harness.happened() == before, "a settled event has no further effect"
        for effect in self.harness.effects:
            of_effect = {event: one for event, one in known.items() if event.partition("-")[0] == effect}
            assert of_effect, f"inconclusive: the load contained no {effect} events"
            check_kept(effect, [call for call in before if call.effect == effect], of_effect)

    async def _ask(self) -> dict[str, EventRecord]:
        """The catalog entry of each event, and the answer to one more delivery of it."""
        app = self.harness.app()
        try:
            listed = {entry.text: entry.state for entry in await app.entries(limit=ENTRIES_MAX)}
            outcomes = await app.process_many([document(event) for event in self.events])
        finally:
            await app.close()
        assert {event: one.status for event, one in zip(self.events, outcomes, strict=True)} == dict.fromkeys(
            self.events, "duplicate"
        )
        assert set(self.events) <= set(listed), "every event is listed"
        return {
            event: EventRecord(listed[event], one.result if isinstance(one.result, int) else None)
            for event, one in zip(self.events, outcomes, strict=True)
        }

    # -------------------------------------------------------------------------------------------------------- its parts

    def _feed(self) -> None:
        while not self._enough.wait(POLL_S):
            self._top_up()

    def _top_up(self) -> None:
        """Add new events. Some are delivered once, to one worker, so a wrong acknowledgement loses them. The others are
        delivered to all workers, some of them twice, each time in another order."""
        if min(len(source.left()) for source in self._sources.values()) >= BACKLOG:
            return
        first = len(self.events)
        effects = self.harness.effects
        new = [f"{effects[number % len(effects)]}-{number:05}" for number in range(first, first + FEED)]
        self.events += new
        common = [event for event in new if self._dice.random() > LONELY]
        deliveries = {name: [*common, *self._dice.sample(common, len(common) // 3)] for name in WORKERS}
        for event in set(new).difference(common):
            deliveries[self._dice.choice(WORKERS)].append(event)
        for name, source in self._sources.items():
            self._dice.shuffle(deliveries[name])
            for event in deliveries[name]:
                source.put(f"{self._put[name]:06}", document(event))
                self._put[name] += 1  # after the put: a missing file counts as acknowledged

    def _start(self, name: str) -> None:
        with (self.harness.home / "output").open("ab") as output:
            self._running[name] = self._stack.enter_context(
                start_child(
                    [sys.executable, "-W", "error", *self.harness.worker(name)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=dict(self.harness.environment) or None,
                )
            )

    def _drain(self) -> None:
        self._enough.set()
        self._feeder.join()
        (self.harness.home / FINISHED).touch()
        ends = time.monotonic() + DRAIN_S
        for name, process in self._running.items():
            try:
                code = process.wait(max(1.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGUSR1)  # a worker may print its stack
                time.sleep(LAST_WORDS_S)
                left = [(self.harness.home / name / f"{one}.json").read_text() for one in self._sources[name].left()]
                pytest.fail(f"worker {name} did not end: {left} are left{self._worker_output()}")
            assert code == 0, f"worker {name} ended with {code}{self._worker_output()}"

    def _stop(self) -> None:
        self._enough.set()
        self._feeder.join()
        for process in self._running.values():
            process.kill()
        self._stack.close()

    def _worker_output(self) -> str:
        text = (self.harness.home / "output").read_text("utf-8", "replace")[-4_000:]
        return f"; output of the workers:\n{text}" if text else ""
