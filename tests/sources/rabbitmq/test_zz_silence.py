from __future__ import annotations
import asyncio
from contextlib import ExitStack
from urllib.parse import urlsplit
import pytest
from tests.sources.rabbitmq.conftest import *
from tests.sources.rabbitmq.places import Place
from semel.testing.laws.sources_harness import SOON_S, document
from semel.testing.proxy import FaultProxy

@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("first", [True, False])
def test_sweep(new_place, what, first) -> None:
    async def one(nth: int, place, proxy):
        source = place.source(url=proxy.url(place.broker.url)+"?heartbeat=1", random=lambda: 0.0)
        await asyncio.to_thread(place.send, [document(f"e{nth}")])
        if not first:
            (d,) = await asyncio.wait_for(source.receive(1), 20)
            proxy.lose(what, nth, "silence")
            proxy.reset()
        else:
            proxy.lose(what, nth, "silence")
        r = ""
        try:
            (d,) = await asyncio.wait_for(source.receive(1), 25)
            await d.ack()
        except BaseException as e:
            r = repr(e)
        r = (nth, r, "notlanded" if proxy.disarm() else "")
        try:
            await asyncio.wait_for(source.close(), 40)
        except BaseException as e:
            r = (*r, "close", repr(e))
        return r

    with ExitStack() as stack:
        places = [new_place() for _ in range(14)]
        parts = urlsplit(places[0].broker.url)
        proxies = [stack.enter_context(FaultProxy(parts.hostname, parts.port)) for _ in places]
        async def story():
            return await asyncio.gather(*[one(n + 1, p, x) for n, (p, x) in enumerate(zip(places, proxies))])
        got = asyncio.run(story())
        print(*got, sep="\n")
        assert not [g for g in got if g[1] or len(g) > 3]
