from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from tests.sources.rabbitmq.places import Place
from tests.sources.rabbitmq.test_rabbitmq_answers import until

from semel.testing.laws.sources_harness import SOON_S, document
from semel.testing.proxy import FaultProxy


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    parts = urlsplit(place.broker.url)
    with FaultProxy(parts.hostname or "", parts.port or 5672) as proxy:
        yield proxy


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("first", [True, False])
def test_sweep(place: Place, proxy: FaultProxy, what, first) -> None:
    bad = []

    async def one(nth: int) -> bool:
        source = place.source(url=proxy.url(place.broker.url), random=lambda: 0.0)
        await asyncio.to_thread(place.send, [document(f"e{nth}")])
        if not first:
            (d,) = await asyncio.wait_for(source.receive(1), 20)
            proxy.lose(what, nth)
            proxy.reset()
        else:
            proxy.lose(what, nth)
        landed = True
        try:
            (d,) = await asyncio.wait_for(source.receive(1), 8)
            landed = not proxy.disarm()
            await d.ack()
        except BaseException as e:
            bad.append((nth, repr(e), proxy.disarm()))
        await asyncio.wait_for(source.close(), 30)
        if bad and bad[-1][0] == nth:
            s2 = place.source()
            (d,) = await asyncio.wait_for(s2.receive(1), 20)
            await d.ack()
            await s2.close()
        return landed

    async def story():
        for nth in range(1, 40):
            if not await one(nth):
                print("swept", nth)
                break

    asyncio.run(story())
    assert not bad, bad
