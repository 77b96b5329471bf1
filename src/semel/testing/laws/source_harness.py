"""The harness of a source under test, and a consumer that records every answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import pytest

from semel.ports import Delivery, Entry, Source
from semel.values.event import Event

SOON_S = 60.0  # for whatever must happen; a busy machine may need long
LOOK_S = 0.05
ENTRIES_MAX = 100_000
TOPIC = "law"  # the type of all events that have a handler
LANDED, SAID = "landed", "said"  # files of a process that is to die
LANES = 3  # workers that share a source: a slow handler holds up only the batch it came with
LEASE_S = 5.0  # of the apps under test: long against what a busy machine makes them wait, short against a test


class SourceDeadLetter(NamedTuple):
    """A message that a source has put aside because it is not an event."""

    body: bytes  # as it was sent
    reason: str


class Process(Protocol):
    """`subprocess.Popen` is one."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal. Raises subprocess.TimeoutExpired."""

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


class SourceWorker(Protocol):
    """`semel.core.worker.Worker`."""

    async def run(self) -> int: ...
    def stop(self) -> None: ...


class SourceApp(Protocol):
    """`semel.Semel`."""

    def worker(self, source: Source) -> SourceWorker: ...
    async def entries(self, state: str | None = None, limit: int = 100) -> Sequence[Entry]: ...
    async def close(self) -> None: ...


Handle: TypeAlias = Callable[[Event, Any], Awaitable[Any]]


class MakeApp(Protocol):
    """Opens an app on the ledger of the harness, with one handler for TOPIC. Its leases last LEASE_S, and where a
    handler raises, the next try is due at once (`Semel(…, random=lambda: 0.0)`)."""

    def __call__(self, handle: Handle, *, max_attempts: int = 8) -> SourceApp: ...


def _stop(source: Source) -> None:
    getattr(source, "stop", lambda: None)()


async def _close(source: Source) -> None:
    close: Callable[[], Awaitable[None]] | None = getattr(source, "close", None)
    if close is not None:
        await close()


@dataclass
class SourceHarness:
    """One source, empty, and the ways to it."""

    send: Callable[[Sequence[bytes], str], None]
    """Put messages there, in order; they are durable when it returns. The text is their group, where a source keeps
    order by groups (a message group of SQS, a key of Kafka); empty: each has a group of its own."""

    open: Callable[[], Source]
    """Another consumer, on the running loop, that hands over up to 50 messages before it wants an answer. What it has
    received is its own for `hold_s`."""

    app: MakeApp

    left: Callable[[], int]
    """How many messages are not acknowledged: to be had, hidden, or in somebody's hands."""

    dead_letters: Callable[[], list[SourceDeadLetter]]
    """The dead letters of the source. Looking does not change them."""

    consumer: Callable[[str, Path], Process]
    """Starts a process that works off the source until it is killed, as `CrashLaws` describes it. It dies at the step,
    with `crash_at(step, marker=folder / LANDED)`, at none where that is empty, and says what it has to say in the file
    SAID of the folder."""

    steps: Sequence[str]
    """All steps at which the process may die, of the flow and of the source."""

    happened: Callable[[], list[str]]
    """The ids of the events that the process has acted on, in order, one for each time."""

    hold_s: float
    """How long a silent consumer keeps what it has received from others; 0: there is no such time. Laws that show that
    something was given back need it long, 20 s or more; the process should take a second or two."""

    ends: bool = False
    """It ends when it is empty, instead of waiting for more."""

    stop: Callable[[Source], None] = _stop
    """As a service that is told to end: nothing more is handed over."""

    close: Callable[[Source], Awaitable[None]] = _close
    """After that: tell the source all answers, give the rest back, let go of it."""

    sent: int = field(default=0, init=False)

    def put(self, *bodies: bytes, group: str = "group") -> None:
        self.sent += len(bodies)
        self.send(bodies, group)


def document(event: str, type: str = TOPIC, **data: Any) -> bytes:
    return json.dumps({"id": event, "type": type, "createdTime": 1678886400000, "data": data}).encode()


class AnswerSeen(NamedTuple):
    """The answer to one delivery, and the ledger's state at that time."""

    answer: str  # ack, retry, reject
    body: bytes
    states: Mapping[str, str]  # of each event

    @property
    def state(self) -> str:
        """Of its own event; empty: the ledger does not know it."""
        return self.states.get(json.loads(self.body)["id"], "")


class Watched:
    """A source that records every answer before it passes the answer on."""

    def __init__(self, source: Source, app: SourceApp, answers: list[AnswerSeen]) -> None:
        self._source = source
        self._app = app
        self._answers = answers

    async def receive(self, limit: int) -> Sequence[Delivery]:
        return [WatchedDelivery(delivery, self._app, self._answers) for delivery in await self._source.receive(limit)]


class WatchedDelivery(Delivery):
    def __init__(self, delivery: Delivery, app: SourceApp, answers: list[AnswerSeen]) -> None:
        self._delivery = delivery
        self._app = app
        self._answers = answers
        self.body = delivery.body
        self.tenant = delivery.tenant
        self.decode_options = delivery.decode_options
        self.headers = delivery.headers

    async def ack(self) -> None:
        await self._note("ack")
        await self._delivery.ack()

    async def retry(self, after_s: float) -> None:
        await self._note("retry")
        await self._delivery.retry(after_s)

    async def reject(self, reason: str) -> None:
        await self._note("reject")
        await self._delivery.reject(reason)

    async def _note(self, answer: str) -> None:
        entries = await self._app.entries(limit=ENTRIES_MAX)
        self._answers.append(AnswerSeen(answer, self.body, {entry.text: entry.state for entry in entries}))


class SourceConsumer:
    """Some workers that share a source of their own. They work while the block lasts, and are then stopped as a service
    stops them."""

    def __init__(self, harness: SourceHarness, handle: Handle, *, max_attempts: int = 8) -> None:
        self.told: list[AnswerSeen] = []
        self.app = harness.app(handle, max_attempts=max_attempts)
        self._harness = harness
        self._stopping = False
        self._source: Source | None = None

    async def __aenter__(self) -> SourceConsumer:
        self._source = self._harness.open()
        watched = Watched(self._source, self.app, self.told)
        self._workers = [self.app.worker(watched) for _ in range(LANES)]
        self._running = asyncio.gather(*[self._run(worker) for worker in self._workers])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            self._running.cancel()  # what it waits for may never come
        with suppress(asyncio.CancelledError) if error is not None else nullcontext():
            await self.stop()
        await self.app.close()

    async def until(self, true: Callable[[], bool], what: str, within_s: float = SOON_S) -> None:
        """Works until this is so. It is asked in a thread: it may ask a server."""
        ends = time.monotonic() + within_s
        while not await asyncio.to_thread(true):
            if self._running.done():
                await self._running
            if time.monotonic() > ends:
                pytest.fail(f"waited {within_s:g} s for {what}; told so far: {self.answers()}")
            await asyncio.sleep(LOOK_S)

    async def until_all_is_answered(self, within_s: float = SOON_S) -> None:
        await self.until(lambda: self._harness.left() == 0, "the source to be empty", within_s)

    async def entries(self, state: str | None = None) -> Sequence[Entry]:
        return await self.app.entries(state, ENTRIES_MAX)

    def answers(self) -> Counter[str]:
        return Counter(seen.answer for seen in self.told)

    def begin_to_stop(self) -> None:
        self._stopping = True
        if self._source is not None:
            self._harness.stop(self._source)
        for worker in self._workers:
            worker.stop()

    async def stop(self) -> None:
        """Returns when the source has all answers."""
        self.begin_to_stop()
        source, self._source = self._source, None
        if source is not None:
            try:
                await self._running
            finally:
                await self._harness.close(source)

    async def _run(self, worker: SourceWorker) -> None:
        while not self._stopping:
            await worker.run()
            if not self._stopping:  # a source that ends when it is empty is asked again
                await asyncio.sleep(LOOK_S)


class SourceBinding:
    """A source's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> SourceHarness:
        raise NotImplementedError("bind the laws to a source: override the fixture `harness`")
