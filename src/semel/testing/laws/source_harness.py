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

SOON_S = 60.0  # the limit of every wait; a busy machine is slow
LOOK_S = 0.05
ENTRIES_MAX = 100_000
TOPIC = "law"  # the event type of the only handler
LANDED, SAID = "landed", "said"  # files of a consumer process: the crash marker and its output
LANES = 3  # workers that share a source, so that a slow handler delays only its own batch
LEASE_S = 5.0  # of the apps under test: longer than the delays of a busy machine, shorter than a test


class SourceDeadLetter(NamedTuple):
    """A malformed message that a source has kept as a dead letter."""

    body: bytes  # as it was sent
    reason: str


class Process(Protocol):
    """A process, such as `subprocess.Popen`."""

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
    """Opens an app on the ledger of the harness, with one handler for TOPIC. Its leases last LEASE_S. If the handler
    raises, the next attempt is due at once (`Semel(…, random=lambda: 0.0)`)."""

    def __call__(self, handle: Handle, *, max_attempts: int = 8) -> SourceApp: ...


def _stop(source: Source) -> None:
    getattr(source, "stop", lambda: None)()


async def _close(source: Source) -> None:
    close: Callable[[], Awaitable[None]] | None = getattr(source, "close", None)
    if close is not None:
        await close()


@dataclass
class SourceHarness:
    """Access to one empty source."""

    send: Callable[[Sequence[bytes], str], None]
    """Sends messages in order. They are durable when it returns. The text is their group, for a source that keeps order
    within groups (an SQS message group, a Kafka key). Empty: each message has its own group."""

    open: Callable[[], Source]
    """Opens another consumer on the running loop. It delivers up to 50 messages before the first answer, and keeps
    received messages for `hold_s`."""

    app: MakeApp

    left: Callable[[], int]
    """The number of unacknowledged messages: available, hidden, or in flight."""

    dead_letters: Callable[[], list[SourceDeadLetter]]
    """Reads the dead letters of the source without removing them."""

    consumer: Callable[[str, Path], Process]
    """Starts a process that consumes the source until it is killed, as described in `CrashLaws`. It crashes at the step
    with `crash_at(step, marker=folder / LANDED)`, or not at all if the step is empty. Its output goes to the file SAID
    in the folder."""

    steps: Sequence[str]
    """All steps of the flow and of the source at which the process can crash."""

    happened: Callable[[], list[str]]
    """The ids of the events whose effect happened, in order, once for each time."""

    hold_s: float
    """How long a source hides the messages of a silent consumer from others. 0: no such time. Laws of returned messages
    need a long time, 20 s or more. The consumer process should use a second or two."""

    ends: bool = False
    """True: the source ends when it is empty, instead of waiting for more messages."""

    stop: Callable[[Source], None] = _stop
    """Stops deliveries, as a service does when it shuts down."""

    close: Callable[[Source], Awaitable[None]] = _close
    """Sends all answers to the source, returns the remaining messages, and closes it."""

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
    states: Mapping[str, str]  # by event id

    @property
    def state(self) -> str:
        """The state of its own event. Empty: not in the ledger."""
        return self.states.get(json.loads(self.body)["id"], "")


class Watched:
    """A source that records every answer before it forwards it."""

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
    """Several workers that share one source. They run during the block and are then stopped as a service stops them."""

    def __init__(self, harness: SourceHarness, handle: Handle, *, max_attempts: int = 8) -> None:
        self.seen: list[AnswerSeen] = []
        self.app = harness.app(handle, max_attempts=max_attempts)
        self._harness = harness
        self._stopping = False
        self._source: Source | None = None

    async def __aenter__(self) -> SourceConsumer:
        self._source = self._harness.open()
        watched = Watched(self._source, self.app, self.seen)
        self._workers = [self.app.worker(watched) for _ in range(LANES)]
        self._running = asyncio.gather(*[self._run(worker) for worker in self._workers])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            self._running.cancel()  # its next message may never arrive
        with suppress(asyncio.CancelledError) if error is not None else nullcontext():
            await self.stop()
        await self.app.close()

    async def until(self, true: Callable[[], bool], what: str, within_s: float = SOON_S) -> None:
        """Wait for a condition while the workers run. The condition runs in a thread, because it may call a server."""
        ends = time.monotonic() + within_s
        while not await asyncio.to_thread(true):
            if self._running.done():
                await self._running
            if time.monotonic() > ends:
                pytest.fail(f"waited {within_s:g} s for {what}; answers so far: {self.answers()}")
            await asyncio.sleep(LOOK_S)

    async def until_all_is_answered(self, within_s: float = SOON_S) -> None:
        await self.until(lambda: self._harness.left() == 0, "the source to be empty", within_s)

    async def entries(self, state: str | None = None) -> Sequence[Entry]:
        return await self.app.entries(state, ENTRIES_MAX)

    def answers(self) -> Counter[str]:
        return Counter(seen.answer for seen in self.seen)

    def begin_to_stop(self) -> None:
        self._stopping = True
        if self._source is not None:
            self._harness.stop(self._source)
        for worker in self._workers:
            worker.stop()

    async def stop(self) -> None:
        """Stop the workers. Returns when the source has all answers."""
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
            if not self._stopping:  # a source that ended because it was empty is read again
                await asyncio.sleep(LOOK_S)


class SourceBinding:
    """A source's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> SourceHarness:
        raise NotImplementedError("bind the laws to a source: override the fixture `harness`")
