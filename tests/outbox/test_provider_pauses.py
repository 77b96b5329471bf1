"""A provider that refuses its own settings is paused: no message fails for it, and it is probed until it accepts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from semel.core.provider_calls import ProviderPauses
from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Contract, DeliveryState, Refused, Unknown
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport, Dispatch, Lane, LookedUp, NotificationView, Unclear

WRONG = Refused("535 5.7.8 wrong password of Maria +4917012345678", configuration=True)


class Scripted:
    """Answers what it is told to, and counts the requests."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.contract = Contract(name=name, channels=("sms",), timeout_s=2.0)
        self.answer = answer
        self.asked: list[str] = []

    def prepare(self, dispatch: Dispatch) -> bytes:
        return b"{}"

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        self.asked.append(dispatch.notification.key)
        return self.answer

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("no look-up")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...


def note(key: str, **more: Any) -> Notification:
    return Notification(key=key, kind="k", recipient="+4917012345678", channel="sms", body=f"text {key}", **more)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def shown(ledger: SqliteLedger, *keys: str) -> list[NotificationView]:
    found = [await ledger.outbox.show(note(key).id) for key in keys]
    return [one for one in found if one is not None]


def test_no_message_fails_and_one_at_a_time_probes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        wrong = Scripted("wrong", WRONG)
        relay = Relay(ledger.outbox, {"wrong": wrong}, {"sms": ["wrong"]}, random=lambda: 0.0)
        many = [f"n-{number}" for number in range(50)]
        try:
            await ledger.outbox.add([note(key) for key in many])
            running = asyncio.create_task(relay.run())
            await until(lambda: len(wrong.asked) > 0)
            await asyncio.sleep(2.0)
            burst = wrong.contract.concurrency + wrong.contract.concurrency // 2
            assert len(wrong.asked) <= burst + 4, "those under way, and a few probes"
            found_states = {one.state for one in await shown(ledger, *many)}
            assert found_states == {"pending"}
            wrong.answer = Accepted("r")
            await until(lambda: len(set(wrong.asked)) == len(many))
            await relay.stop(10.0)
            await running
            assert {one.state for one in await shown(ledger, *many)} == {"accepted"}
        finally:
            await ledger.close()

    with caplog.at_level(logging.INFO, "semel"):
        asyncio.run(story())
    lines = [record.getMessage() for record in caplog.records]
    paused = [line for line in lines if line.startswith("provider_paused ")]
    assert paused
    assert all("provider=wrong" in line and "535" in line for line in paused)
    assert "+4917012345678" not in "".join(lines)
    assert sum(line.startswith("provider_resumed ") for line in lines) == 1
    sent = [line for line in lines if line.startswith("notification_sent ")]
    assert len(sent) == len({line.partition("notification_id=")[2][:32] for line in sent}) == 50
    assert all("provider=wrong" in line for line in sent)


def test_another_process_with_other_settings_sends_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        wrong, right = Scripted("mail", WRONG), Scripted("mail", Accepted("r"))
        try:
            await ledger.outbox.add([note("a")])
            await Relay(ledger.outbox, {"mail": wrong}, {"sms": ["mail"]}).run_once()
            (waiting,) = await shown(ledger, "a")
            assert (waiting.state, "paused" in waiting.reason) == ("pending", True)
            begun = time.monotonic()
            relay = Relay(ledger.outbox, {"mail": right}, {"sms": ["mail"]})
            running = asyncio.create_task(relay.run())
            await until(lambda: bool(right.asked))
            assert time.monotonic() - begun < 5.0
            await relay.stop(10.0)
            await running
        finally:
            await ledger.close()

    asyncio.run(story())


def test_the_next_provider_of_the_channel_sends_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        wrong, right = Scripted("wrong", WRONG), Scripted("right", Accepted("r"))
        relay = Relay(ledger.outbox, {"wrong": wrong, "right": right}, {"sms": ["wrong", "right"]}, random=lambda: 1.0)
        many = [f"n-{number}" for number in range(100)]
        try:
            await ledger.outbox.add([note(key) for key in many])
            await relay.run_once()
            assert sorted(right.asked) == sorted(many)
            assert len(wrong.asked) < len(many)
            assert {(one.state, one.provider) for one in await shown(ledger, *many)} == {("accepted", "right")}
        finally:
            await ledger.close()

    asyncio.run(story())


def test_a_bystander_is_not_paused(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        wrong, other = Scripted("wrong", WRONG), Scripted("other", Accepted("r"))
        relay = Relay(ledger.outbox, {"wrong": wrong, "other": other}, {"sms": ["wrong"]})
        try:
            await ledger.outbox.add([note(f"w-{n}", provider="wrong") for n in range(20)])
            await ledger.outbox.add([note(f"o-{n}", provider="other") for n in range(20)])
            await relay.run_once()
            assert len(other.asked) == 20
        finally:
            await ledger.close()

    asyncio.run(story())


def test_probes_come_less_and_less_often() -> None:
    now = [0.0]
    pauses = ProviderPauses(lambda: now[0], lambda: 1.0)
    lanes = {"a": Lane(16, "a"), "b": Lane(16, "b")}
    waits: list[float] = []
    for _ in range(12):
        pauses.answered("a", WRONG, "wrong")
        pauses.answered("a", WRONG, "wrong")  # under way beside it: the same pause
        begun = now[0]
        assert pauses.lanes(lanes, lambda name: 0) == {"b": lanes["b"]}
        while "a" not in pauses.lanes(lanes, lambda name: 0):
            now[0] += 0.5
        assert pauses.lanes(lanes, lambda name: 0)["a"].room == 1
        assert "a" not in pauses.lanes(lanes, lambda name: 1), "a probe is under way"
        waits.append(now[0] - begun)
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(waits) == 300.0
    pauses.answered("a", Accepted(), "")
    assert pauses.lanes(lanes, lambda name: 0) == lanes


def test_a_refused_configuration_burns_no_attempt_however_often() -> None:
    contract = Contract(name="p", channels=("sms",))
    delivery_state = DeliveryState(provider="p")
    for _ in range(2 * states.ATTEMPTS_MAX):
        crossed = states.crossed(delivery_state, 1)
        delivery_state = states.answered(crossed, WRONG, contract, 2, lambda: 0.5)
        assert (delivery_state.state, delivery_state.attempts) == ("pending", 1)


@pytest.mark.parametrize(
    ("answer", "state"),
    [(Refused("no such number +4917012345678", final=True), "failed"), (Unknown("reset"), "uncertain")],
)
def test_every_failed_or_uncertain_notification_is_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Answer, state: str
) -> None:
    async def story() -> None:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        try:
            await ledger.outbox.add([note("a", tenant="acme"), note("b", tenant="acme")])
            await Relay(ledger.outbox, {"p": Scripted("p", answer)}, {"sms": ["p"]}).run_once()
        finally:
            await ledger.close()

    with caplog.at_level(logging.INFO, "semel"):
        asyncio.run(story())
    lines = [line for record in caplog.records if (line := record.getMessage()).startswith(f"notification_{state} ")]
    assert sorted(line.split("notification_id=")[1][:32] for line in lines) == sorted(
        note(key, tenant="acme").id.hex() for key in ("a", "b")
    )
    assert all("provider=p" in line and "tenant=acme" in line for line in lines)
    assert "+4917012345678" not in "".join(lines)
