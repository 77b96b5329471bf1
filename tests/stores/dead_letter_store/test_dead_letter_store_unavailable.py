"""The store of the letters is gone: what has a letter waits for one lease, and nobody else waits at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest
from tests.support.servers.process import free_port

from semel import Context, Event, Reject, Semel
from semel.values.errors import NotRecorded

SOON_S = 20.0


@pytest.fixture(params=["closed", "silent"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Where no PostgreSQL answers: nobody listens, or somebody who says nothing."""
    if request.param == "closed":
        yield free_port()
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield listener.getsockname()[1]


def an_app(port: int, lease_s: float) -> Semel:
    app = Semel("memory://", dead_letters=f"postgresql://semel@127.0.0.1:{port}/letters")

    @app.on("bad", name="bad", lease=lease_s, timeout=lease_s / 2)
    async def refuse(event: Event, ctx: Context) -> Reject:
        return Reject("no")

    @app.on("fine", name="fine", lease=lease_s, timeout=lease_s / 2)
    async def succeed(event: Event, ctx: Context) -> int:
        return 7

    return app


def message(kind: str, number: int) -> dict[str, str]:
    return {"id": f"{kind} {number}", "type": kind}


def test_events_without_a_dead_letter_do_not_wait_for_the_store(port: int) -> None:
    """Neither beside one that does, nor behind it."""

    async def whole() -> list[str]:
        async with an_app(port, lease_s=600) as app, asyncio.timeout(SOON_S):
            bad = asyncio.create_task(app.process(message("bad", 0)))
            beside = await asyncio.gather(*[app.process(message("fine", number)) for number in range(5)])
            behind = await asyncio.gather(*[app.process(message("fine", number)) for number in range(5, 10)])
            assert not bad.done(), "its letter could be kept: inconclusive"
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)
            return [outcome.status for outcome in (*beside, *behind)]

    assert asyncio.run(whole()) == ["done"] * 10


def test_an_event_that_needs_a_dead_letter_is_retried_until_its_lease_ends() -> None:
    """The heartbeat renews the lease in a ledger that is well; whoever delivered it must not wait for ever."""

    async def whole() -> None:
        async with an_app(free_port(), lease_s=2) as app, asyncio.timeout(SOON_S):
            with pytest.raises(NotRecorded):
                await app.process(message("bad", 0))

    asyncio.run(whole())
