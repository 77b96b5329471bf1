from __future__ import annotations
import asyncio, time
from contextlib import ExitStack
from urllib.parse import urlsplit
import pytest
from semel.adapters.sources.rabbitmq import RabbitSource
from semel.testing.laws.sources_harness import SOON_S, document
from semel.testing.proxy import FaultProxy

def test_one(new_place, monkeypatch) -> None:
    place = new_place()
    real = RabbitSource._connected
    t0 = time.monotonic()
    async def connected(self, **o):
        try:
            return await real(self, **o)
        except BaseException as e:
            print("CONNECTED", round(time.monotonic()-t0, 1), repr(e), asyncio.current_task().cancelling())
            raise
    monkeypatch.setattr(RabbitSource, "_connected", connected)
    parts = urlsplit(place.broker.url)
    async def story(proxy, nth):
        source = place.source(url=proxy.url(place.broker.url)+"?heartbeat=1", random=lambda: 0.0)
        proxy.lose("reply", nth, "silence")
        try:
            await asyncio.wait_for(source.receive(1), 12)
        except BaseException as e: print(repr(e))
        await source.close()
    for nth in (7, 11,12,13):
        with FaultProxy(parts.hostname, parts.port) as proxy:
            print("nth", nth); t0 = time.monotonic()
            asyncio.run(story(proxy, nth))
