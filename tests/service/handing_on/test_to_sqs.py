"""Receiving apart from handling: webhooks, a queue of SQS between, and whoever works it off."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import Running, event, service
from tests.service.test_mounted import post, served
from tests.sources.places import Queue

from semel import Context, Event, Semel
from semel.service.app import Mounted
from semel.service.endpoints import ServedEndpoint
from semel.sources.sqs_queue import SqsPublisher
from semel.testing.proxy import BLACK_HOLE, Fault, FaultProxy
from semel.values.event import DecodeOptions

SOON_S = 120.0  # a busy machine may need long
SENDERS = 8

pytestmark = pytest.mark.timeout(280)


@contextmanager
def receiver(folder: Path, queue: Queue, endpoint: str = "") -> Iterator[Running]:
    """A service that only receives."""
    place = f'queue = "{queue.url}"\nregion = "{queue.server.region}"\n'
    place += f'endpoint = "{endpoint or queue.server.endpoint}"\n'
    with service(folder, f'[[endpoints]]\naccept = "sqs"\n[brokers.sqs]\n{place}') as running:
        yield running


def publisher(queue: Queue, endpoint: str = "") -> SqsPublisher:
    return SqsPublisher(queue.url, endpoint=endpoint or queue.server.endpoint, region=queue.server.region, timeout=3.0)


def until(true: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends, f"waited {SOON_S:g} s for {what}"
        time.sleep(0.02)


def until_taken(url: str, body: Any, headers: dict[str, str] | None = None) -> None:
    until(lambda: post(url, body, headers)[0] == 200, "a 200")


def events_in(queue: Queue) -> set[str]:
    found: set[str] = set()
    while some := queue.aws.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10).get("Messages", []):
        found |= {json.loads(message["Body"])["id"] for message in some}
    return found


def test_an_event_answered_200_is_in_the_queue_even_if_the_receiver_is_killed(queue: Queue, tmp_path: Path) -> None:
    answered: list[str] = []
    with receiver(tmp_path, queue) as running:
        until_taken(f"{running.url}/events", event("first"))
        assert running.workers() == [], "whoever serves is the one that is killed"

        def send(sender: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
            with closing(connection):
                for number in range(10_000):
                    try:
                        connection.request("POST", "/events", json.dumps(event(f"{sender}-{number}")))
                        answer = connection.getresponse()
                        answer.read()
                    except (OSError, http.client.HTTPException):
                        return  # it is dead
                    if answer.status == 200:
                        answered.append(f"e-{sender}-{number}")

        senders = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
        for thread in senders:
            thread.start()
        until(lambda: len(answered) >= 200, "200 answers")
        running.kill()
        for thread in senders:
            thread.join(60)
    there = events_in(queue)
    assert set(answered) <= there
    assert len(answered) >= 200


@pytest.mark.parametrize("fault", [BLACK_HOLE, Fault(refuse=True)], ids=["silent", "refused"])
def test_senders_get_503_while_the_queue_is_unavailable(queue: Queue, fault: Fault) -> None:
    with FaultProxy("127.0.0.1", queue.server.port) as proxy:
        door = ServedEndpoint("/events", publisher=publisher(queue, proxy.url(queue.server.endpoint)))
        with served(Mounted(Semel("memory://"), door)) as url:
            until_taken(f"{url}/events", event("before"))
            with proxy.fault(fault) as before:
                proxy.reset()
                told = [post(f"{url}/events", event(number)) for number in range(30)]
                assert {status for status, _ in told} == {503}
                landed = proxy.seen.swallowed > before.swallowed or fault.refuse
                assert landed, "inconclusive: nothing was swallowed"
            proxy.reset()
            until_taken(f"{url}/events", event("after"))
    assert {"e-before", "e-after"} <= events_in(queue)


def test_an_event_by_the_inbox_and_by_the_queue_is_one_event(queue: Queue, tmp_path: Path, quick_end: None) -> None:
    """One ledger; the inbox first, or the queue first."""
    ran: Counter[tuple[str, str]] = Counter()

    def make() -> Semel:
        app = Semel(f"sqlite:///{tmp_path}/semel.db", tenant="house")

        @app.on("**", name="noted")
        async def noted(event: Event, ctx: Context) -> None:
            ran[event.tenant, event.id] += 1

        return app

    async def work(count: int) -> None:
        """The consumer: all that was handed on."""
        async with make() as app:
            source = queue.source(forwarded=True)
            working = asyncio.ensure_future(app.worker(source).run())
            await asyncio.to_thread(until, lambda: queue.left() == 0, "the queue to be empty")
            source.stop()
            await working
            await source.close()
            assert sum(ran.values()) == count

    orders = {"order": {"number": "7"}, "kind": "placed"}
    binary = {"ce-specversion": "1.0", "ce-id": "c", "ce-type": "t", "ce-source": "/s"}
    ways: list[tuple[dict[str, Any], Any, dict[str, str]]] = [
        ({}, event(1), {}),
        ({"tenant": "acme"}, event(1), {}),
        ({"decode_options": DecodeOptions("shop", "order.number", "kind")}, orders, {}),
        ({"tenant": "binary"}, {"a": 1}, {**binary, "content-type": "application/json"}),
    ]
    for door, body, headers in ways[:2]:  # the inbox first
        with served(Mounted(make(), ServedEndpoint("/events", mode="inbox", **door))) as url:
            assert post(f"{url}/events", body, headers)[1]["status"] == "accepted"
            tenant = door.get("tenant", "house")
            until(partial(ran.__contains__, (tenant, "e-1")), "the handler")
    for door, body, headers in ways:
        with served(Mounted(make(), ServedEndpoint("/events", publisher=publisher(queue), **door))) as url:
            until_taken(f"{url}/events", body, headers)
    asyncio.run(work(4))
    for door, body, headers in ways:
        with served(Mounted(make(), ServedEndpoint("/events", mode="inbox", **door))) as url:
            assert post(f"{url}/events", body, headers)[1]["status"] == "duplicate"
    assert ran == {("house", "e-1"): 1, ("acme", "e-1"): 1, ("house", "7"): 1, ("binary", "c"): 1}


@pytest.mark.long
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_storm_of_duplicates_on_a_bad_network_has_each_effect_once(
    new_queue: Any, tmp_path: Path, quick_end: None, fifo: bool
) -> None:
    queue: Queue = new_queue(fifo=fifo)
    dice = random.Random(5)
    events = [f"{number}" for number in range(250)]
    sending = events + dice.choices(events, k=110)
    dice.shuffle(sending)
    ran: Counter[str] = Counter()

    async def work() -> None:
        async with Semel(f"sqlite:///{tmp_path}/handling.db", lease=1.0) as app:  # what is Busy comes again soon

            @app.on("**", name="noted")
            async def noted(event: Event, ctx: Context) -> None:
                ran[event.id] += 1

            source = queue.source(forwarded=True)
            working = [asyncio.ensure_future(app.worker(source).run()) for _ in range(2)]
            await asyncio.to_thread(until, lambda: done.is_set() and queue.left() == 0, "the queue to be empty")
            source.stop()
            await asyncio.gather(*working)
            await source.close()

    done = threading.Event()
    with FaultProxy("127.0.0.1", queue.server.port) as proxy:
        with receiver(tmp_path, queue, proxy.url(queue.server.endpoint)) as running:
            refused: list[int] = []

            def send(mine: Sequence[str]) -> None:
                for number in mine:
                    while (status := post(f"{running.url}/events", event(number))[0]) != 200:
                        assert status == 503
                        refused.append(status)
                        time.sleep(0.05)

            def break_it() -> None:
                for number in range(1_000):
                    if done.is_set():
                        return
                    proxy.lose("reply" if number % 2 else "request", nth=3)
                    time.sleep(0.05)

            breaking = threading.Thread(target=break_it)
            senders = [threading.Thread(target=send, args=(sending[at::SENDERS],)) for at in range(SENDERS)]
            for thread in [breaking, *senders]:
                thread.start()

            def finish() -> None:
                for thread in senders:
                    thread.join(SOON_S)
                done.set()

            threading.Thread(target=finish).start()
            asyncio.run(work())
            breaking.join(30)
        assert not any(thread.is_alive() for thread in senders)
        assert proxy.seen.lost_replies + proxy.seen.lost_requests >= 3, "inconclusive: too little was lost"
    assert ran == dict.fromkeys((f"e-{number}" for number in events), 1)
    assert queue.dead_letters() == []


def test_publishes_in_flight_are_answered_before_the_publisher_is_closed(queue: Queue) -> None:
    with FaultProxy("127.0.0.1", queue.server.port) as proxy:
        closed: list[bool] = []

        class Watched(SqsPublisher):
            async def close(self) -> None:
                await super().close()
                closed.append(not self._publishing)

        place = Watched(queue.url, endpoint=proxy.url(queue.server.endpoint), region=queue.server.region, timeout=3.0)
        told: list[int] = []
        with served(Mounted(Semel("memory://"), ServedEndpoint("/events", publisher=place))) as url:
            until_taken(f"{url}/events", event("before"))
            proxy.set(Fault(latency_ms=300))
            asking = threading.Thread(target=lambda: told.append(post(f"{url}/events", event("late"))[0]))
            asking.start()
            until(lambda: bool(place._publishing), "the publish")
        asking.join(30)
    assert closed == [True]
    assert told == [200], "inconclusive: the machine was slower than the publisher's patience"
    assert "e-late" in events_in(queue)
