"""A provider gets no more requests at a time than its contract says, by whichever lane they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.providers.twilio import Twilio, TwilioOptions
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.twilio import ACCOUNT, SECRET
from semel.values.delivery_state import Accepted, Answer, Contract
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport, Dispatch, LookedUp, Unclear
from semel.values.secret import Secret


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
        url, token = simulator.url("twilio"), Secret(SECRET)
        options = TwilioOptions(url=url, account=ACCOUNT, token=token, sender="+490", allow=["127.0.0.1"])
        provider = Counting(options, contract)
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


class Paced:
    """Answers after so long. Tells how many a relay had in hand at the most while it was asked."""

    def __init__(self, seconds: float, per_second: float) -> None:
        self.contract = Contract(
            name="p", channels=("sms",), concurrency=8, timeout_s=30.0, per_second=per_second, looks_up=False
        )
        self._seconds = seconds
        self.in_hand: Callable[[], int] = lambda: 0
        self.busy = self.busiest = self.most = 0

    def prepare(self, dispatch: Dispatch) -> bytes:
        return b"{}"

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        self.busy += 1
        self.busiest, self.most = max(self.busiest, self.busy), max(self.most, self.in_hand())
        await asyncio.sleep(self._seconds)
        self.busy -= 1
        return Accepted()

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("nobody asks")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("seconds", "per_second", "number", "least", "most"),
    [(0.0, 0.0, 300, 9, 16), (0.25, 0.0, 100, 9, 13), (1.0, 0.0, 24, 8, 10), (0.0, 500.0, 100, 1, 8)],
    ids=["at once", "quick", "slow", "with a rate"],
)
def test_a_quick_provider_is_taken_ahead_of_and_is_asked_no_more_at_a_time(
    tmp_path: Path, seconds: float, per_second: float, number: int, least: int, most: int
) -> None:
    """What waits for a slow one, or for a rate, could go by another relay."""

    async def story() -> Paced:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        provider = Paced(seconds, per_second)
        relay = Relay(ledger.outbox, {"p": provider}, {"sms": ["p"]})
        provider.in_hand = lambda: sum(relay._slots._taken.values())
        try:
            await ledger.outbox.add(
                [
                    Notification(key=f"{at}", kind="k", recipient=f"+49{at}", channel="sms", body="text")
                    for at in range(number)
                ]
            )
            async with asyncio.timeout(60):
                running = asyncio.create_task(relay.run())
                while await ledger.outbox.backlog():  # noqa: ASYNC110  the store tells
                    await asyncio.sleep(0.05)
            await relay.stop(10.0)
            await running
            return provider
        finally:
            await ledger.close()

    provider = asyncio.run(story())
    assert provider.busiest <= 8
    assert least <= provider.most <= most
