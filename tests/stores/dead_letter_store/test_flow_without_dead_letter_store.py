"""The flow while the letterbox is out of reach: nobody waits for it for ever, and nothing is given up."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.stores.dead_letter_store.broken import LEDGERS, out_of_reach

from semel import Context, Event, Reject, Semel
from semel.app import IncomingMessage
from semel.core.dead_letter_store import LedgerWithDeadLetterStore
from semel.ledgers.memory import MemoryLedger
from semel.values.errors import NotRecorded

LEASE_S = 0.6


def test_an_event_is_redelivered_if_its_dead_letter_could_not_be_kept_in_time(tmp_path: Path) -> None:
    async def story() -> None:
        app = Semel("memory://")
        runs: list[int] = []

        @app.on("**", lease=LEASE_S, timeout=LEASE_S / 2)
        async def handle(event: Event, ctx: Context) -> None:
            runs.append(ctx.attempt)
            raise Reject("no")

        dead_letter_store = LEDGERS["sqlite"](str(tmp_path / "letters.db"), synchronous="normal")
        dead_letter_store.interrupt("before keep", out_of_reach)
        engine = app.new_engine(LedgerWithDeadLetterStore(MemoryLedger(), dead_letter_store))
        body = IncomingMessage(json.dumps({"id": "1", "type": "t", "data": {}}).encode())
        async with asyncio.timeout(60 * LEASE_S):  # its heartbeat can renew the lease for ever
            with pytest.raises(NotRecorded):
                await engine.process([body])
        assert dead_letter_store.landed > 1, "it was tried again"
        dead_letter_store.interrupt("")
        (outcome,) = await engine.process([body])
        while outcome.status == "busy":  # until the lease has lapsed
            await asyncio.sleep(0.05)
            (outcome,) = await engine.process([body])
        assert (outcome.status, runs) == ("dead", [1, 2])
        await dead_letter_store.close()
        await app.close()

    asyncio.run(story())
