"""A provider gets no more requests at a time than its contract says, by whichever lane they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.adapters.ledgers.sqlite import SqliteLedger
from semel.adapters.providers.auth import Basic
from semel.adapters.providers.twilio import Twilio
from semel.core.relay import Relay
from semel.settings.secret import Secret
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.dialects.twilio import ACCOUNT, SECRET
from semel.values.notification import Notification
from semel.values.outbox import Dispatch
from semel.values.sending import Answer, Contract


class Counting(Twilio):
    busy = most = 0

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        self.busy += 1
        self.most = max(self.most, self.busy)
        try:
            return await super().send(dispatch, request)
        finally:
            self.busy -= 1


@pytest.fixture
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        simulator.answer_after(0.05)
        yield simulator


@pytest.mark.parametrize("concurrency", [1, 2, 5])
@pytest.mark.parametrize("named", ["all", "none", "every other"])
def test_no_more_at_a_time_than_its_contract_says(
    tmp_path: Path, simulator: SimulatorProcess, concurrency: int, named: str
) -> None:
    def notification(number: int) -> Notification:
        names = {"all": True, "none": False, "every other": number % 2 == 0}[named]
        return Notification(
            key=f"{number}",
            kind="k",
            recipient=f"+49{number}",
            channel="sms",
            body="text",
            provider="twilio" if names else "",
        )

    async def story() -> int:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        contract = Contract(name="twilio", channels=("sms",), concurrency=concurrency, timeout_s=30.0)
        auth = Basic(ACCOUNT, Secret(SECRET))
        provider = Counting(
            simulator.url("twilio"), auth, account=ACCOUNT, sender="+490", contract=contract, allow=["127.0.0.1"]
        )
        relay = Relay(ledger.outbox, {"twilio": provider}, {"sms": ["twilio"]})
        try:
            await ledger.outbox.add([notification(number) for number in range(12)])
            running = asyncio.create_task(relay.run())
            async with asyncio.timeout(60):
                while len(simulator.phone()) < 12:  # noqa: ASYNC110  the simulator tells
                    await asyncio.sleep(0.05)
            await relay.stop(10.0)
            await running
            return provider.most
        finally:
            await provider.close()
            await ledger.close()

    assert asyncio.run(story()) == concurrency, "and no less: the room is used"
