"""Cancelled, closed and failing at the worst moment: nothing stays in hands that nobody looks after."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.facts import rendered
from tests.sources.rabbitmq.places import Place
from tests.sources.rabbitmq.test_rabbitmq_answers import until

from semel.sources.rabbitmq_queue import RabbitPublisher
from semel.sources.rabbitmq_queue.messages import wait_queue
from semel.sources.rabbitmq_queue.session import RabbitSession
from semel.testing.laws.source_harness import SOON_S, document
from semel.testing.laws.sources import received
from semel.testing.proxy import FaultProxy
from semel.values.errors import ConfigError
from semel.values.forwarded import ForwardedEvent

MEMORY_WAIT_MIN_S = 0.1


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    parts = urlsplit(place.broker.url)
    with FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy


def test_a_second_close_waits_for_the_first_one(place: Place) -> None:
    async def story() -> None:
        place.send([document("e")])
        source = place.source()
        await received(source, 1)
        first = asyncio.ensure_future(source.close())
        await asyncio.sleep(0)
        await source.close()
        assert (source.counts.returned, source._session is not None and source._session.is_open) == (1, False)
        await first
        await until(lambda: place.ready(place.queue) == 1, "it to be back")

    asyncio.run(story())


def test_a_close_that_is_cancelled_gives_everything_back_all_the_same(place: Place) -> None:
    """The process lives on: a connection that nobody closes would keep its messages for ever."""

    async def story() -> None:
        place.send([document("handed out"), document("waits in hand")])
        source = place.source()
        await received(source, 1)
        closing = asyncio.ensure_future(source.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until(lambda: place.ready(place.queue) == 2, "both messages to be back")
        await source.close()

    asyncio.run(story())


def test_two_concurrent_receives_reopen_the_source_once(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)

    async def story() -> None:
        source = place.source()
        refused = 0
        opened = asyncio.Event()

        async def stubborn() -> None:
            nonlocal refused
            while not opened.is_set():
                try:
                    assert await source.receive(1) == []
                except ConfigError:
                    refused += 1

        receivers = [asyncio.ensure_future(stubborn()) for _ in range(4)]
        await until(lambda: refused >= 8, "some refusals")
        await asyncio.to_thread(place.declare)
        await until(lambda: source._opened, "the queue to be opened")
        opened.set()
        facts = rendered(await place.source().diagnose())
        assert facts["consumers"] == "1", "a consumer that nobody knows keeps what it is given"
        await source.close()
        await asyncio.gather(*receivers)

    asyncio.run(story())


@pytest.mark.parametrize("error", [Exception, asyncio.CancelledError, KeyError("driver")])
@pytest.mark.parametrize("nth", [1, 2])
def test_any_error_of_the_driver_while_connecting_is_a_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch, error: Any, nth: int
) -> None:
    """It raises a bare Exception, and cancels whoever waits, where it knows no reason for the end of a connection."""
    real = RabbitSession.consume
    calls = 0

    async def consume(self: RabbitSession, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise error
        await real(self, *args)

    monkeypatch.setattr(RabbitSession, "consume", consume)

    async def story() -> None:
        place.send([document("e")])
        source = place.source(random=lambda: 0.0)
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        if nth == 2:
            assert source._session is not None
            await source._session._connection.close()
            (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        assert calls == nth + 1
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())


def test_returned_messages_wait_longer_each_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each return counts against the delivery limit, after which the broker drops a message or buries it."""
    monkeypatch.setattr("semel.sources.rabbitmq_queue.answers.MEMORY_WAIT_MIN_S", MEMORY_WAIT_MIN_S)

    async def story() -> None:
        place.delete(wait_queue(place.queue, 1))
        place.occupy(wait_queue(place.queue, 1))
        place.send([document("e")])
        source = place.source()
        began_at = time.monotonic()
        for returns in range(5):
            (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
            assert source.counts.waited_in_memory == returns
            await delivery.retry(0.01)
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        assert time.monotonic() - began_at >= MEMORY_WAIT_MIN_S * (1 + 2 + 4 + 8 + 16)
        await delivery.ack()
        await source.close()
        assert place.left() == 0

    asyncio.run(story())


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_source_that_is_stopped_while_connecting_leaves_no_connection(
    place: Place, proxy: FaultProxy, nth: int
) -> None:
    """The broker falls silent at one of the first things it says; the last of them is that a channel is open."""

    async def story() -> None:
        url = proxy.url(place.broker.url)
        source, publisher = place.source(url=url), RabbitPublisher(url, place.queue, timeout=0.5)
        proxy.lose("reply", nth, "silence")
        receiving = asyncio.ensure_future(source.receive(1))
        await until(lambda: proxy.seen.lost_replies == 1, "the silence")
        source.stop()
        assert list(await asyncio.wait_for(receiving, SOON_S)) == []
        await source.close()
        proxy.lose("reply", nth, "silence")
        assert await publisher.publish([ForwardedEvent(document("e"))]) != [""]
        await until(lambda: proxy.seen.lost_replies == 2, "the silence again")  # it goes on connecting without us
        await publisher.close()
        await until(lambda: proxy.open == 0, "the connections to be closed")

    asyncio.run(story())
