"""`ctx.notify` in a handler whose effect has happened when the store goes away: it is not called undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.outbox.test_notify import BODY, SAID, listed, story

from semel import Context, Event, Semel
from semel.values.errors import LedgerUnavailable


class Outage:
    """The way to the store breaks for transactions, so many times."""

    def __init__(self, app: Semel, times: int) -> None:
        self.left, self.landed = times, 0
        ledger: Any = app.ledger
        self._begin: Callable[[Any], AbstractAsyncContextManager[Any]] = ledger.transaction
        ledger.transaction = self.transaction

    def transaction(self, lease: Any) -> AbstractAsyncContextManager[Any]:
        if self.left > 0:
            self.left -= 1
            self.landed += 1
            raise LedgerUnavailable("the store is out of reach")
        return self._begin(lease)


@pytest.mark.parametrize("effect", ["keyed", "retry", "park"])
def test_what_has_happened_is_recorded_when_the_store_is_back(tmp_path: Path, effect: Any) -> None:
    async def tell(app: Semel) -> None:
        runs: list[int] = []

        @app.on("a", effect=effect)
        async def handle(event: Event, ctx: Context) -> None:
            runs.append(ctx.attempt)
            ctx.notify(**SAID)

        outage = Outage(app, 3)
        assert (await app.process(BODY)).status == "done"
        assert (await app.process(BODY)).status == "duplicate"
        assert (runs, outage.landed) == ([1], 3)
        assert len(await listed(app)) == 1

    story(tmp_path, tell)


def test_what_could_not_be_recorded_while_its_lease_lasted_is_in_doubt(tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        runs: list[int] = []

        @app.on("a", effect="park", lease=1.0)
        async def handle(event: Event, ctx: Context) -> None:
            runs.append(ctx.attempt)
            ctx.notify(**SAID)

        outage = Outage(app, 1_000_000)
        first = await app.process(BODY)
        assert (first.status, outage.landed > 1) == ("busy", True)
        assert "recorded" in first.reason
        outage.left = 0
        async with asyncio.timeout(60):
            while (again := await app.process(BODY)).status == "busy":  # noqa: ASYNC110  it comes again, as from a source
                await asyncio.sleep(0.05)
        assert (again.status, runs) == ("uncertain", [1]), "at most once: a person decides"
        assert await listed(app) == []

    story(tmp_path, tell)
