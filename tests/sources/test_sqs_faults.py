"""A bad network between the source and the queue, and two consumers of which one is killed again and again.

The queue is an emulator, by real HTTP through a proxy that loses what it is told to lose."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.sources.consumer_process import happened
from tests.sources.places import Queue, command, make_app
from tests.sources.test_sqs_answers import bodies

from semel.testing.laws.sources_harness import SOON_S, document
from semel.testing.proxy import FaultProxy
from semel.values.event import Event

MESSAGES = 120
EVENTS = 1_400  # of the storm; 2,000 messages with their duplicates
DUPLICATES = 600
KILL_EVERY_S = 1.5


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


@contextmanager
def consumer(queue: Queue, home: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    plan = queue.plan(home, effect="keyed", visibility=2, pollers=2)
    with (folder / "said").open("ab") as said:
        with subprocess.Popen(command(plan)("", folder / "never"), stdout=said, stderr=said) as process:
            try:
                yield process
            finally:
                process.kill()


def test_two_consumers_of_which_one_is_killed_lose_nothing_and_double_nothing(queue: Queue, tmp_path: Path) -> None:
    """30 % duplicates; one consumer dies by SIGKILL every little while and is started again; a sink honours keys."""
    dice = random.Random(4711)
    events = [f"e{number}" for number in range(EVENTS)]
    messages = events + dice.choices(events, k=DUPLICATES)
    dice.shuffle(messages)
    home = tmp_path / "home"
    home.mkdir()
    killed_at: list[int] = []
    with ExitStack() as steady:
        steady.enter_context(consumer(queue, home, tmp_path))
        half = len(messages) // 2
        queue.send([document(event) for event in messages[:half]])
        rest = [messages[at : at + 100] for at in range(half, len(messages), 100)]
        ends = time.monotonic() + 2 * SOON_S
        while rest or queue.left():
            assert time.monotonic() < ends, f"{queue.left()} are left: {(tmp_path / 'said').read_text()[-2000:]}"
            with consumer(queue, home, tmp_path) as victim:
                lives = time.monotonic() + KILL_EVERY_S
                while time.monotonic() < lives and (rest or queue.left()):
                    if rest:
                        queue.send([document(event) for event in rest.pop()])
                    assert victim.poll() is None, (tmp_path / "said").read_text()[-2000:]
                    time.sleep(0.1)
                in_flight = queue.attributes()["ApproximateNumberOfMessagesNotVisible"]
            killed_at.append(in_flight)
    assert len([in_flight for in_flight in killed_at if in_flight]) >= 2, f"inconclusive: {killed_at}"
    assert Counter(happened(home / "sink.db")) == dict.fromkeys(events, 1)
    assert queue.letters() == []
