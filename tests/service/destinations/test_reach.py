"""Whether a destination can be reached, for people who ask before they start."""

from __future__ import annotations

import asyncio

import pytest
from tests.service.destinations.servers import closed_port, opened, raw, run, saying, until

from semel.destinations import reach


def test_a_destination_that_accepts_a_connection_is_reached_and_nothing_is_sent() -> None:
    async def story() -> None:
        async with raw(saying()) as server, opened(server.url) as crm:
            assert await reach(crm) is None
            await until(lambda: server.ended == 1)
            assert (server.connections, server.requests) == (1, [])

    run(story())


def test_a_refused_connection_is_reported() -> None:
    async def story() -> str | None:
        async with opened(f"http://127.0.0.1:{await closed_port()}/") as crm:
            return await reach(crm)

    assert (run(story()) or "").startswith("crm (127.0.0.1): ")


def test_a_name_that_does_not_resolve_is_reported() -> None:
    async def story() -> str | None:
        async with opened("https://nobody.invalid/") as crm:
            return await reach(crm)

    assert "nobody.invalid" in (run(story()) or "")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_a_forbidden_address_is_reported_without_a_call(host: str) -> None:
    async def story() -> tuple[str | None, int]:
        async with raw(saying()) as server:
            async with opened(f"http://{host}:{server.port}/", allow=[]) as crm:
                return await reach(crm), server.connections

    reason, connections = run(story())
    assert "loopback" in (reason or "")
    assert "allow = " in (reason or "")
    assert connections == 0


def test_a_hanging_handshake_is_reported() -> None:
    async def story() -> str | None:
        async with raw(saying()) as server:
            async with opened(f"https://127.0.0.1:{server.port}/", timeout_s=0.3) as crm:
                async with asyncio.timeout(30):
                    return await reach(crm)

    reason = run(story()) or ""
    assert reason.startswith("crm (127.0.0.1): ")
    assert "0.3 s" in reason
