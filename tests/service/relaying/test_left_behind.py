"""What a relay has left behind at a provider that nobody serves any more is told: no relay will call it uncertain."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from semel.ledgers.sqlite import SqliteLedger
from semel.service.relays import OutboxRelay
from semel.settings.schema import OutboxSettings
from semel.testing.harness import crossing
from semel.values.notification import Notification
from semel.values.outbox import Crossed, Lane

SAID = Notification(key="k", kind="k", recipient="+491", channel="sms", body="Hello", provider="gone")


def test_sending_notifications_are_logged_if_they_remain_at_the_next_check(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> list[list[str]]:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        try:
            await ledger.outbox.add([SAID])
            (dispatch,) = await ledger.outbox.take({"gone": Lane(1, "gone")}, 1)
            assert await ledger.outbox.cross([crossing(dispatch)]) == [Crossed()]
            relaying = OutboxRelay(ledger.outbox, {}, {}, OutboxSettings())
            said = []
            for _ in range(2):
                caplog.clear()
                await relaying._log_unserved()
                said.append(caplog.messages.copy())
            return said
        finally:
            await ledger.close()

    with caplog.at_level(logging.ERROR, "semel"):
        first, second = asyncio.run(story())
    assert first == [], "another relay may have it"
    assert len(second) == 1
    assert second == ["outbox_unserved notifications=1 state=sending provider=gone"]
