"""`claim([])` asks the store itself: /readyz would else call a dead store ready."""

from __future__ import annotations

import asyncio
from urllib.parse import parse_qs, urlsplit

import pytest

from semel import wiring
from semel.ports import Migrates
from semel.testing.proxy import Fault, FaultProxy
from semel.values.errors import LedgerUnavailable

SOON_S = 30.0


def place_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    parts = urlsplit(parse_qs(parts.query)["endpoint"][0]) if parts.scheme == "dynamodb" else parts
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@pytest.mark.parametrize("store", ["postgres", "redis", "dynamodb"], indirect=True)
def test_a_store_that_is_cut_off_is_not_ready(store: str) -> None:
    host, port = place_of(store)

    async def run(proxy: FaultProxy) -> None:
        through = store.replace(str(port), str(proxy.port))
        assert through != store
        ledger = wiring.open_ledger(through)
        try:
            if isinstance(ledger, Migrates):
                await ledger.migrate()
            assert await ledger.claim([]) == []
            with proxy.fault(Fault(refuse=True)):
                proxy.reset()
                async with asyncio.timeout(SOON_S):
                    with pytest.raises(LedgerUnavailable):
                        await ledger.claim([])
            assert await ledger.claim([]) == []
        finally:
            await ledger.close()

    with FaultProxy(host, port) as proxy:
        asyncio.run(run(proxy))
