"""A decision whose reply is lost: whoever decided is told that it was done, not that there was nothing to decide."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from tests.ledgers.redis.stores import with_options

from semel import Context, Event, Reject, Semel
from semel.testing.proxy import FaultProxy
from semel.values.errors import LedgerUnavailable

REPLIES = range(1, 9)  # of one decision, and of the opening of its connection: later ones do not come


def message(kind: str) -> dict[str, Any]:
    return {"id": f"{kind}-{uuid4().hex}", "type": kind, "createdTime": 1_678_886_400_000, "data": {}}


def test_a_replay_whose_reply_is_lost_returns_true(redis_url: str) -> None:
    place = urlsplit(redis_url)
    landed: list[tuple[str, int]] = []

    async def story(proxy: FaultProxy) -> None:
        async with Semel(with_options(proxy.url(redis_url), prefix=uuid4().hex), origin="test") as app:

            @app.on("fine")
            async def succeed(event: Event, ctx: Context) -> None: ...

            @app.on("dead")
            async def refuse(event: Event, ctx: Context) -> None:
                raise Reject("no")

            ledger: Any = app.ledger
            for kind, before in (("fine", "done"), ("dead", "dead")):
                for nth in REPLIES:
                    body = message(kind)
                    outcome = await app.process(body)
                    assert outcome.status == before
                    proxy.lose("reply", nth)
                    try:
                        told = await ledger.replay(outcome.key, "again", "kim", force=kind == "fine")
                    except LedgerUnavailable:  # it is not known, and nobody is told that it is
                        told = None
                    if proxy.disarm():
                        assert told is True
                        break
                    landed.append((kind, nth))
                    assert told is not False, (
                        f"reply {nth} was lost: the {before} one can be run again, and that is denied"
                    )

    with FaultProxy(place.hostname or "", place.port or 6379) as proxy:
        asyncio.run(story(proxy))
    assert {kind for kind, _ in landed} == {"fine", "dead"}, "inconclusive: nothing was lost"


@pytest.mark.parametrize("kind", ["fine", "dead"])
def test_of_two_equal_decisions_only_one_returns_true(redis_url: str, kind: str) -> None:
    """In the same words: what makes a repetition known must not make another one's decision look like one's own."""

    async def story() -> None:
        async with Semel(with_options(redis_url, prefix=uuid4().hex), origin="test") as app:

            @app.on("*")
            async def act(event: Event, ctx: Context) -> None:
                if event.type == "dead":
                    raise Reject("no")

            ledger: Any = app.ledger
            key = (await app.process(message(kind))).key
            told = await asyncio.gather(*[ledger.replay(key, "again", "kim", force=True) for _ in range(4)])
            assert sorted(told) == [False, False, False, True]

    asyncio.run(story())
