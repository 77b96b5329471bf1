"""Whoever stops asking the outbox leaves nothing taken: no lease has to lapse for that, and nobody has vanished."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.values.notification import Notification
from semel.values.outbox import Lane

SAID = Notification(key="k", kind="k", recipient="+491", channel="sms", body="Hello", provider="phone")
LANES = {"phone": Lane(10, "phone")}
LEASE_MS = 3_600_000


def test_dispatches_taken_for_a_cancelled_caller_are_released(tmp_path: Path) -> None:
    async def story() -> None:
        path = str(tmp_path / "semel.db")
        ledger, other = SqliteLedger(path), apsw.Connection(path)
        try:
            await ledger.outbox.add([SAID])
            other.execute("begin immediate")
            asked = asyncio.create_task(ledger.outbox.take(LANES, LEASE_MS))
            done, _ = await asyncio.wait([asked], timeout=0.05)
            assert not done, "it waits for the write lock"
            asked.cancel()
            await asyncio.sleep(0)  # it hears of that while it waits
            other.execute("rollback")
            with pytest.raises(asyncio.CancelledError):
                await asked
            (taken,) = await ledger.outbox.take(LANES, LEASE_MS)
            assert not taken.vanished
        finally:
            other.close()
            await ledger.close()

    asyncio.run(story())
