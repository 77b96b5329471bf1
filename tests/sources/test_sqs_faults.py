"""A bad network between the source and the queue, and two consumers of which one is killed again and again.

The queue is an emulator, by real HTTP through a proxy that loses what it is told to lose."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.forking import Forked
from tests.sources.consumer_process import happened
from tests.sources.forking import starting
from tests.sources.meddling import Meddler, refusal
from tests.sources.places import Queue, make_app
from tests.sources.test_sqs_answers import bodies

from semel.testing.laws.source_harness import SOON_S, document
from semel.testing.proxy import FaultProxy
from semel.testing.source_laws import SAID
from semel.values.event import Event
from semel.values.outcome import Retry

MESSAGES = 120
EVENTS = 1_400  # of the storm; 2,000 messages with their duplicates
DUPLICATES = 600
PORTION = 250  # messages for each death


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_lost_requests_and_replies_lose_no_message_and_double_no_effect(
    new_queue: Any, tmp_path: Path, what: Any, fifo: bool
) -> None:
    """Every few messages one request does not arrive, or its reply does not: receives, deletions, whatever comes."""

    async def story() -> None:
        queue: Queue = new_queue(fifo=fifo)
        ran: Counter[str] = Counter()

        async def handle(event: Event, ctx: Any) -> None:
            ran[event.id] += 1

        queue.send(bodies(MESSAGES))
        with FaultProxy("127.0.0.1", queue.server.port) as proxy:
            app = make_app(tmp_path)(handle)
            source = queue.source(endpoint=proxy.url(queue.server.endpoint), visibility=2, max_in_flight=30)
            workers = [asyncio.ensure_future(app.worker(source).run()) for _ in range(2)]
            ends = time.monotonic() + SOON_S
            while await asyncio.to_thread(queue.left):
                assert time.monotonic() < ends, f"{queue.left()} are left, {source.counts}"
                if lost_so_far(proxy) < 8 and not proxy._loss:
                    proxy.lose(what, nth=2)
                await asyncio.sleep(0.01)
            proxy.disarm()
            source.stop()
            await asyncio.gather(*workers)
            await source.close()
            await app.close()
            assert lost_so_far(proxy) >= 3, "inconclusive: too little was lost"
        assert ran == dict.fromkeys((f"e{number:04}" for number in range(MESSAGES)), 1)

    asyncio.run(story())


def lost_so_far(proxy: FaultProxy) -> int:
    return proxy.seen.lost_requests + proxy.seen.lost_replies


class Dice:
    """Meddles with every request: some do not arrive, the answers of some are lost, some batches fail in part."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.meddler = Meddler(self.meddle)
        self.fell: Counter[str] = Counter()

    def meddle(self, operation: str, request: Mapping[str, Any]) -> Any:
        if operation == "get_queue_attributes":
            return None
        roll = self._dice.random()
        if roll < 0.1:
            self.fell["refused"] += 1
            raise refusal("RequestThrottled")
        if roll < 0.2:
            self.fell["not arrived"] += 1
            raise ConnectionResetError("for a test")
        if roll < 0.3:
            return self._lost(operation, request)
        if roll < 0.5 and len(request.get("Entries", ())) > 1:
            return self._partly(operation, request)
        return None

    async def _lost(self, operation: str, request: Mapping[str, Any]) -> Any:
        await self.meddler.really(operation, request)
        self.fell["answer lost"] += 1
        raise ConnectionResetError("for a test")

    async def _partly(self, operation: str, request: Mapping[str, Any]) -> Any:
        kept = [entry for entry in request["Entries"] if self._dice.random() < 0.5] or request["Entries"][:1]
        answer = await self.meddler.really(operation, {**request, "Entries": kept})
        names = {entry["Id"] for entry in kept}
        failed = [
            {"Id": entry["Id"], "Code": "InternalError", "Message": "for a test", "SenderFault": False}
            for entry in request["Entries"]
            if entry["Id"] not in names
        ]
        self.fell["in part"] += bool(failed)
        return {"Successful": answer.get("Successful", []), "Failed": [*answer.get("Failed", []), *failed]}


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("seed", [1])
def test_no_mixture_of_failures_loses_or_doubles_anything_or_breaks_the_order(
    new_queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fifo: bool, seed: int
) -> None:
    """One consumer after the other, each closed in the middle of its work, on a service that fails at every turn."""
    monkeypatch.setattr("semel.sources.sqs_queue.answers.DEAD_LETTER_RETRY_S", 1.0)

    async def story() -> None:
        queue: Queue = new_queue(fifo=fifo)
        dice = random.Random(seed)
        succeeded: list[str] = []

        async def handle(event: Event, ctx: Any) -> None:
            await asyncio.sleep(0)
            if dice.random() < 0.15:
                raise Retry(after=0)
            succeeded.append(event.id)

        groups = {group: [f"{group}{number:02}" for number in range(20)] for group in "abcdef"}
        for group, events in groups.items():
            queue.send([document(event) for event in [*events[:10], *events[5:15], *events[10:]]], group)
        queue.send([b"{"] * 3, "malformed")
        faults = Dice(seed)
        app = make_app(tmp_path)(handle, max_attempts=100)
        ends = time.monotonic() + SOON_S
        consumers = 0
        while await asyncio.to_thread(queue.left):
            assert time.monotonic() < ends, f"{queue.left()} are left, {faults.fell}"
            connect = faults.meddler.connect(queue.server, queue.url)
            source = queue.source(connect=connect, visibility=1, max_in_flight=40)
            workers = [asyncio.ensure_future(app.worker(source).run()) for _ in range(2)]
            consumers += 1
            await asyncio.sleep(0.5 + dice.random())
            if consumers % 2:
                source.stop()
                await asyncio.gather(*workers)
                await source.close()
            else:  # without waiting for the workers
                await source.close()
                await asyncio.gather(*workers)
        await app.close()
        assert Counter(succeeded) == dict.fromkeys((event for events in groups.values() for event in events), 1)
        if fifo:
            for group, events in groups.items():
                assert [event for event in succeeded if event[0] == group] == events
        assert {dead_letter["Body"] for dead_letter in queue.dead_letters()} == {"{"}
        assert len(queue.dead_letters()) >= 3
        assert min(faults.fell[kind] for kind in ("refused", "not arrived", "answer lost", "in part")) >= 1, faults.fell
        assert consumers >= 2

    asyncio.run(story())


@contextmanager
def consumer(queue: Queue, home: Path, folder: Path) -> Iterator[Forked]:
    process = starting(queue.plan(home, effect="keyed", visibility=2, pollers=2))("", folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_two_consumers_of_which_one_is_killed_lose_nothing_and_double_nothing(queue: Queue, tmp_path: Path) -> None:
    """30 % duplicates; one consumer dies by SIGKILL every little while and is started again; a sink honours keys."""
    dice = random.Random(4711)
    events = [f"e{number}" for number in range(EVENTS)]
    messages = events + dice.choices(events, k=DUPLICATES)
    dice.shuffle(messages)
    home = tmp_path / "home"
    home.mkdir()
    killed_at: list[int] = []  # messages in flight in that moment
    with consumer(queue, home, tmp_path) as steady:
        for start in range(0, len(messages), PORTION):
            with consumer(queue, home, tmp_path) as victim:
                queue.send([document(event) for event in messages[start : start + PORTION]])
                time.sleep(dice.uniform(0, 0.3))
                for process in (steady, victim):
                    assert process.poll() is None, (tmp_path / SAID).read_text()[-2000:]
                killed_at.append(queue.attributes()["ApproximateNumberOfMessagesNotVisible"])
        ends = time.monotonic() + SOON_S
        while queue.left():
            assert time.monotonic() < ends, f"{queue.left()} are left: {(tmp_path / SAID).read_text()[-2000:]}"
            time.sleep(0.05)
    assert len([killed for killed in killed_at if killed]) >= 3, f"inconclusive: {killed_at}"
    assert Counter(happened(home / "sink.db")) == dict.fromkeys(events, 1)
    assert queue.dead_letters() == []
