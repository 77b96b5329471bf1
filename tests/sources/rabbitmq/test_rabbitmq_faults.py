"""A bad network, and a broker that dies: nothing is lost, nothing is done twice, and it goes on by itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiormq.abc import AbstractChannel
from tests.sources.consumer_process import in_transaction
from tests.sources.rabbitmq.places import Client, Place
from tests.sources.rabbitmq.test_rabbitmq_answers import until
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.rabbitmq import RabbitServer

from semel import Semel
from semel.sources.rabbitmq_queue import RabbitPublisher, RabbitSource
from semel.sources.rabbitmq_queue.messages import wait_queue
from semel.testing.laws.source_harness import SOON_S, SourceConsumer, document
from semel.testing.laws.sources import received
from semel.testing.proxy import Fault, FaultProxy
from semel.testing.source_laws import LEASE_S, TOPIC, SourceHarness
from semel.values.event import Event
from semel.values.forwarded import ForwardedEvent
from semel.values.outcome import Retry

TIMEOUT_S = 5.0  # of the impatient broker, for an answer
CUTS = 8
LATER_S = 3
SLOW_S = 0.3  # for a question to be asked meanwhile; an early answer is a wrong one


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    parts = urlsplit(place.broker.url)
    with FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    """A broker of our own, which may be killed, and which is impatient."""
    server = RabbitServer(
        tmp_path_factory.mktemp("own"),
        {"consumer_timeout": str(int(TIMEOUT_S * 1000))},
        {"channel_tick_interval": "200"},
    )
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


# --------------------------------------------------------------------------------------------------- the network


def test_a_connection_that_is_cut_loses_nothing_and_does_nothing_twice(
    place: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Cut again and again, at whatever byte, while messages are handled, retried and rejected."""

    async def story() -> None:
        tries: Counter[str] = Counter()

        async def handle(event: Event, ctx: Any) -> None:
            await in_transaction(event, ctx)
            tries[event.id] += 1
            if event.id.endswith("7") and tries[event.id] == 1:
                raise Retry(after=0)

        harness = once(place.harness(tmp_path), tmp_path)
        harness.open = lambda: place.source(url=proxy.url(place.broker.url), prefetch=5, random=lambda: 0.0)
        events: list[str] = []
        async with SourceConsumer(harness, handle) as consumer:
            for number in range(CUTS):
                mine = [f"e{number}-{event}" for event in (*range(5), 7)]
                events += mine
                proxy.reset_after(200 + 97 * number)  # less than these take
                await asyncio.to_thread(harness.put, *[document(event) for event in mine], b"{")
                await consumer.until(lambda at=number: proxy.seen.resets > at, "the cut")  # type: ignore[misc]
            await consumer.until_all_is_answered()
        assert proxy.seen.resets >= CUTS
        assert Counter(harness.happened()) == dict.fromkeys(events, 1)
        dead_letters = [dead_letter.body for dead_letter in place.dead_letters()]
        assert len(dead_letters) >= CUTS
        assert set(dead_letters) == {b"{"}

    asyncio.run(story())


def test_an_answer_on_a_connection_that_is_gone_is_harmless(place: Place, proxy: FaultProxy) -> None:
    async def story() -> None:
        place.send([document("a"), document("b"), b"{"])
        source = place.source(url=proxy.url(place.broker.url), random=lambda: 0.0)
        old = await received(source, 3)
        assert proxy.reset() >= 1, "inconclusive: there was no connection to reset"
        again = await received(source, 3)
        assert source.counts.lost == 3
        for delivery, answer in zip(old, ("ack", "retry", "reject"), strict=True):
            await (
                delivery.ack() if answer == "ack" else delivery.retry(0) if answer == "retry" else delivery.reject("")
            )
        assert (source.counts.acked, source.counts.dead_letters) == (0, 0)
        for delivery in again:
            await delivery.ack()
        await source.close()
        assert (place.left(), source.counts.acked) == (0, 3)

    asyncio.run(story())


def test_an_outage_is_waited_for_from_the_beginning_and_does_not_flood_the_log(
    place: Place, proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        proxy.set(Fault(refuse=True))
        source = place.source(url=proxy.url(place.broker.url), random=lambda: 0.01)
        waiting = asyncio.ensure_future(source.receive(1))
        await until(lambda: source.counts.failures >= 5, "some attempts")
        proxy.heal()
        await asyncio.to_thread(place.send, [document("e")])
        (delivery,) = await asyncio.wait_for(waiting, SOON_S)
        await delivery.ack()
        await source.close()
        assert place.left() == 0
        said = [record for record in caplog.records if "rabbitmq_disconnected" in record.getMessage()]
        assert 1 <= len(said) < source.counts.failures
        assert "test-password" not in caplog.text

    asyncio.run(story())


def test_a_source_can_be_stopped_while_the_broker_is_out_of_reach(place: Place, proxy: FaultProxy) -> None:
    async def story() -> None:
        source = place.source(url=proxy.url(place.broker.url))
        place.send([document("e")])
        (delivery,) = await source.receive(1)
        proxy.set(Fault(refuse=True))
        assert proxy.reset() >= 1
        await until(lambda: source.counts.failures >= 2, "attempts to connect")
        waiting = asyncio.ensure_future(source.receive(1))
        await asyncio.sleep(0)
        await asyncio.wait_for(source.close(), SOON_S)
        assert list(await waiting) == []
        await delivery.ack()
        assert place.left() == 1

    asyncio.run(story())


def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(place: Place) -> None:
    async def story() -> None:
        source = place.source(random=lambda: 0.01)
        place.send([document("first")])
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        await delivery.ack()
        await until(lambda: source.counts.acked == 1, "the acknowledgement")
        waiting = asyncio.ensure_future(source.receive(1))
        await asyncio.to_thread(place.delete, place.queue)
        await until(lambda: source.counts.failures >= 2, "the consumer to be cancelled")
        await asyncio.to_thread(place.declare)
        await asyncio.to_thread(place.send, [document("second")])
        (delivery,) = await asyncio.wait_for(waiting, SOON_S)
        assert delivery.body == document("second")
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())


# ------------------------------------------------------------------------------------------------------ the broker


@pytest.mark.long
def test_a_delivery_goes_back_before_the_broker_closes_the_channel(server: RabbitServer) -> None:
    """A handler takes too long: its message comes again. A source that does not know the broker's time loses its whole
    channel at the same moment, which proves that the fault was there."""

    async def again(source: RabbitSource) -> RabbitSource:
        (slow,) = await asyncio.wait_for(source.receive(1), SOON_S)
        (again,) = await asyncio.wait_for(source.receive(1), SOON_S)
        assert (slow.body, again.body) == (document("slow"), document("slow"))
        await slow.ack()  # too late, and harmless
        await again.ack()
        await source.close()
        return source

    async def story(knowing: Place, ignorant: Place) -> None:
        for place in (knowing, ignorant):
            place.send([document("slow")])
        ours, theirs = await asyncio.gather(
            again(knowing.source(consumer_timeout=TIMEOUT_S)), again(ignorant.source(random=lambda: 0.0))
        )
        assert (theirs.counts.overdue, theirs.counts.lost) == (0, 1)
        if ours.counts.lost:
            pytest.fail("inconclusive: this machine was too slow to be in time")
        assert (ours.counts.overdue, ours.counts.failures) == (1, 0)
        assert knowing.left() == ignorant.left() == 0

    with Client(server.url) as client:
        asyncio.run(story(Place(server.broker, client), Place(server.broker, client)))


def test_a_broker_that_is_short_of_memory_still_gets_acknowledgements(
    server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing more from whoever publishes. Acknowledgements travel elsewhere, and a retry waits in hand."""
    monkeypatch.setattr("semel.sources.rabbitmq_queue.answers.CONFIRM_S", 0.5)
    alarm = "{{resource_limit, memory, node()}, []}"

    async def story(place: Place) -> None:
        publisher = RabbitPublisher(server.url, place.queue, timeout=SOON_S / 2, random=lambda: 0.0)
        bodies = [document("retried"), document("settled")]
        assert await publisher.publish([ForwardedEvent(body) for body in bodies]) == ["", ""]
        publisher.timeout = 0.5  # from here on for what is never confirmed
        source = place.source(forwarded=True)
        deliveries = {delivery.body: delivery for delivery in await received(source, 2)}
        server.broker.evaluate(f"rabbit_alarm:set_alarm({alarm})")
        try:
            assert await publisher.publish([ForwardedEvent(document("refused"))]) != [""]
            await deliveries[document("retried")].retry(0.0)
            await deliveries[document("settled")].ack()
            await until(lambda: server.broker.messages(place.queue) == 1, "the acknowledgement to be heard")
            (again,) = await asyncio.wait_for(source.receive(1), SOON_S)
            assert (again.body, source.counts.waited_in_memory) == (document("retried"), 1)
        finally:
            server.broker.evaluate(f"rabbit_alarm:clear_alarm({alarm.removesuffix(', []}')[1:]})")
        await again.ack()
        await publisher.close()
        await source.close()

    with Client(server.url) as client:
        asyncio.run(story(Place(server.broker, client)))


def test_an_answer_that_is_heard_is_counted_though_the_disk_is_slow(server: RabbitServer) -> None:
    """The broker says that it has closed a channel before the channel's answers are on its disk: our count waits."""

    async def taken(place: Place) -> tuple[AbstractChannel, list[int]]:
        channel = await place.client.channel()
        return channel, [(await channel.basic_get(place.queue)).delivery_tag or 0 for _ in range(5)]

    async def answered(channel: AbstractChannel, tags: list[int]) -> None:
        for tag in tags:
            await channel.basic_ack(tag)
        await channel.close()

    with Client(server.url) as client, ThreadPoolExecutor(1) as thread:
        place = Place(server.broker, client)
        place.send([document(f"e{number}") for number in range(5)])
        channel, tags = client.run(taken(place))
        server.broker.evaluate("sys:suspend(ra_log_wal)")
        try:
            client.run(answered(channel, tags[1:]))
            assert server.broker.messages(place.queue) == 5, "inconclusive: the disk was not slow"
            counting = thread.submit(place.left)
            time.sleep(SLOW_S)
        finally:
            server.broker.evaluate("sys:resume(ra_log_wal)")
        assert counting.result(SOON_S) == 1


@pytest.mark.long
def test_a_broker_that_is_killed_and_restarted_has_lost_nothing(server: RabbitServer, tmp_path: Path) -> None:
    """Messages that wait, are in hand, wait for their retry, and are being published meanwhile."""
    with Client(server.url) as client:
        place = Place(server.broker, client)

        async def story() -> None:
            tries: Counter[str] = Counter()
            killed = asyncio.Event()

            async def handle(event: Event, ctx: Any) -> None:
                await in_transaction(event, ctx)
                tries[event.id] += 1
                if event.id.startswith("later") and tries[event.id] == 1:
                    raise Retry(after=LATER_S)
                if event.id.startswith("held") and not killed.is_set():
                    await killed.wait()

            harness = once(place.harness(tmp_path), tmp_path)
            harness.open = lambda: place.source(prefetch=20, random=lambda: 0.1, forwarded=True)
            events = [f"{kind}{number}" for kind in ("later", "held", "plain") for number in range(20)]
            harness.put(*[document(event) for event in events])
            publisher = RabbitPublisher(server.url, place.queue, timeout=10, random=lambda: 0.1)
            assert await publisher.publish([ForwardedEvent(document("published"))]) == [""]
            async with SourceConsumer(harness, handle) as consumer:
                waits = wait_queue(place.queue, LATER_S)
                await consumer.until(lambda: place.ready(waits) == 20, "retries to wait at the broker")
                await consumer.until(lambda: len([e for e in tries if e.startswith("held")]) >= 5, "some in hand")
                server.process.kill()
                killed.set()
                refused = await publisher.publish([ForwardedEvent(document("while it was dead"))])
                assert refused != [""], "nobody has it"
                await asyncio.to_thread(server.start)
                await until(lambda: _ready_again(place), "its queues")
                await _published(publisher, document("after"))
                await consumer.until(lambda: _left(place) == 0, "everything to be answered")
            await publisher.close()
            ran = Counter(harness.happened())
            expected = dict.fromkeys([*events, "published", "after"], 1)
            assert {event: ran[event] for event in expected} == expected
            assert set(ran) - set(expected) <= {"while it was dead"}

        asyncio.run(story())


def once(harness: SourceHarness, home: Path) -> SourceHarness:
    """Effects that are written with their settle: a slow machine, on which leases lapse, doubles none of them."""

    def make(handle: Callable[..., Any], *, max_attempts: int = 8) -> Semel:
        app = Semel(f"sqlite:///{home}/ledger.db", lease=LEASE_S, random=lambda: 0.0)
        app.on(TOPIC, max_attempts=max_attempts, name="handle", effect="transaction")(handle)
        return app

    harness.app = make
    return harness


def _ready_again(place: Place) -> bool:
    with suppress(Exception):
        place.ready(place.queue)
        return True
    return False


def _left(place: Place) -> int:
    try:
        return place.left()
    except NoServer:  # a queue that has no leader yet
        return -1


async def _published(publisher: RabbitPublisher, body: bytes) -> None:
    ends = time.monotonic() + SOON_S
    while any(await publisher.publish([ForwardedEvent(body)])):
        assert time.monotonic() < ends
        await asyncio.sleep(0.1)
