"""The relay, from an outbox in SQLite to a simulated Twilio on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.providers.twilio import Twilio, TwilioOptions
from semel.testing.simulator import LIES, SimulatorProcess
from semel.testing.simulator.twilio import ACCOUNT, SECRET
from semel.values.delivery_state import Contract
from semel.values.notification import Notification
from semel.values.outbox import NotificationView
from semel.values.secret import Secret

CONTRACT = Contract(name="twilio", channels=("sms",), looks_up=True, settle_s=0.2, timeout_s=2.0)
ROUTES = {"sms": ["twilio"]}


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


@pytest.fixture
def number(simulator: SimulatorProcess, request: pytest.FixtureRequest) -> str:
    """A phone of its own for each test."""
    simulator.tell_the_truth()
    return f"+49{crc32(request.node.name.encode())}"


def notification(number: str, key: str = "order-1", **said: Any) -> Notification:
    wanted = {"key": key, "kind": "shipping", "recipient": number, "channel": "sms", "body": f"text {key}", **said}
    return Notification(**wanted)


def twilio(simulator: SimulatorProcess, contract: Contract = CONTRACT) -> Twilio:
    url, token = simulator.url("twilio"), Secret(SECRET)
    options = TwilioOptions(url=url, account=ACCOUNT, token=token, sender="+490", allow=["127.0.0.1"])
    return Twilio(options, contract)


def carry(
    tmp_path: Path,
    simulator: SimulatorProcess,
    notifications: list[Notification],
    until: Callable[[list[NotificationView]], bool],
    contract: Contract = CONTRACT,
) -> list[NotificationView]:
    """Add them, and relay until this is so of all of them."""

    async def story() -> list[NotificationView]:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        provider = twilio(simulator, contract)
        relay = Relay(ledger.outbox, {"twilio": provider}, ROUTES, random=lambda: 0.01)

        async def shown() -> list[NotificationView]:
            found = [await ledger.outbox.show(one.id) for one in notifications]
            return [one for one in found if one is not None]

        try:
            await ledger.outbox.add(notifications)
            return await _run(relay, shown, until)
        finally:
            await provider.close()
            await ledger.close()

    return asyncio.run(story())


async def _run(
    relay: Relay,
    shown: Callable[[], Awaitable[list[NotificationView]]],
    until: Callable[[list[NotificationView]], bool],
) -> list[NotificationView]:
    running = asyncio.create_task(relay.run())
    try:
        async with asyncio.timeout(60):
            while True:
                now = await shown()
                if until(now):
                    return now
                await asyncio.sleep(0.02)
    finally:
        await relay.stop(10.0)
        await running


def states(*wanted: str) -> Callable[[list[NotificationView]], bool]:
    return lambda shown: all(one.state in wanted for one in shown)


def texts(simulator: SimulatorProcess, number: str) -> list[str]:
    return [one.text for one in simulator.phone() if one.to == number]


def test_a_message_goes_out_once(tmp_path: Path, simulator: SimulatorProcess, number: str) -> None:
    (shown,) = carry(tmp_path, simulator, [notification(number)], states("accepted"))
    assert texts(simulator, number) == ["text order-1"]
    assert [one.outcome for one in shown.attempts] == ["accepted"]
    assert shown.attempts[0].reference.startswith("SM")


def test_many_go_out_once_each(tmp_path: Path, simulator: SimulatorProcess, number: str) -> None:
    many = [notification(number, f"n-{n}") for n in range(200)]
    carry(tmp_path, simulator, many + many, states("accepted"))
    assert sorted(texts(simulator, number)) == sorted(f"text n-{n}" for n in range(200))


@pytest.mark.parametrize("lie", [name for name, lie in LIES.items() if lie.ambiguous])
def test_whatever_the_provider_says_a_look_up_settles_it(
    tmp_path: Path, simulator: SimulatorProcess, number: str, lie: str
) -> None:
    simulator.lie(lie, "twilio")
    (shown,) = carry(tmp_path, simulator, [notification(number)], states("accepted"))
    assert texts(simulator, number) == ["text order-1"]
    delivered = LIES[lie].delivers
    outcomes = [one.outcome for one in shown.attempts]
    assert outcomes == (["unknown", "accepted"] if delivered else ["unknown", "absent", "accepted"])


@pytest.mark.parametrize("lie", [name for name, lie in LIES.items() if lie.ambiguous])
def test_without_a_look_up_an_unknown_outcome_stays_unknown(
    tmp_path: Path, simulator: SimulatorProcess, number: str, lie: str
) -> None:
    simulator.lie(lie, "twilio")
    blind = Contract(name="twilio", channels=("sms",), timeout_s=2.0)
    (shown,) = carry(tmp_path, simulator, [notification(number)], states("uncertain"), blind)
    assert [one.outcome for one in shown.attempts] == ["unknown"]
    assert texts(simulator, number) == (["text order-1"] if LIES[lie].delivers else [])


def test_a_rate_limit_is_waited_for_and_a_refusal_is_final(
    tmp_path: Path, simulator: SimulatorProcess, number: str
) -> None:
    simulator.lie("429", "twilio", times=2)
    (shown,) = carry(tmp_path, simulator, [notification(number)], states("accepted"))
    assert [one.outcome for one in shown.attempts] == ["limited", "limited", "accepted"]
    assert [one.number for one in shown.attempts][-1] == 1, "no attempt was burnt"
    simulator.lie("400", "twilio")
    (shown,) = carry(tmp_path, simulator, [notification(number, "order-2")], states("failed"))
    assert [one.outcome for one in shown.attempts] == ["refused"]
    assert texts(simulator, number) == ["text order-1"]
