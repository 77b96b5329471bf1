"""An outbox in SQLite over two boots of its machine: what was in somebody's hands is due, and the clock may go back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import apsw
import pytest
from msgspec.structs import replace
from tests.facts import rendered

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.values.delivery_state import Accepted, Contract
from semel.values.delivery_state import Answer as Response
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport, Dispatch, Lane, LookedUp, Record, Unclear

Answer = TypeVar("Answer")
SAID = Notification(key="k", kind="k", recipient="+491", channel="sms", body="Hello")
LANES = {"@sms": Lane(10)}


def asked(path: Path, ask: Callable[[SqliteLedger], Awaitable[Answer]]) -> Answer:
    async def story() -> Answer:
        ledger = SqliteLedger(str(path))
        try:
            return await ask(ledger)
        finally:
            await ledger.close()

    return asyncio.run(story())


def boot_anew(path: Path) -> None:
    with apsw.Connection(str(path)) as connection:
        assert connection.execute("update semel_meta set value = 'another' where name = 'boot' returning 1").fetchall()


async def taken(ledger: SqliteLedger) -> list[Dispatch]:
    return await ledger.outbox.take(LANES, 600_000)


def test_dispatches_taken_before_a_reboot_are_due(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([SAID]))
    assert [one.vanished for one in asked(path, taken)] == [False]
    assert asked(path, taken) == []
    boot_anew(path)
    assert [one.vanished for one in asked(path, taken)] == [True]


def test_a_clock_that_went_back_between_two_boots_delays_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([SAID]))
    boot_anew(path)
    a_year_ago_ns = time.time_ns() - 365 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: a_year_ago_ns)
    (one,) = asked(path, taken)
    assert one.added_ms > one.taken_ms + 300 * 86_400_000, "the clock did go back"


# ---------------------------------------------------------------------------------------- a wall clock that was wrong

DAY_S = 86_400
YEAR_S = 365 * DAY_S
CONTRACT = Contract(name="phone", channels=("sms",), timeout_s=2.0)


@contextmanager
def wall_clock_wrong_by(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real_ns = time.time_ns
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: real_ns() + int(seconds * 10**9))
        yield


def relayed(path: Path) -> tuple[int, str]:
    """How many were sent, and the state of the notification."""

    async def story(ledger: SqliteLedger) -> tuple[int, str]:
        phone = Phone(CONTRACT)
        await Relay(ledger.outbox, {"phone": phone}, {"sms": ["phone"]}).run_once()
        shown = await ledger.outbox.show(SAID.id)
        assert shown is not None
        return len(phone.sent), shown.state

    return asked(path, story)


def first_opened_after_a_boot(path: Path, wrong_by_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is wrong then, and is corrected afterwards."""
    boot_anew(path)
    with wall_clock_wrong_by(wrong_by_s, monkeypatch):
        asked(path, lambda ledger: ledger.claim([]))


@pytest.mark.parametrize("wrong_by_s", [YEAR_S, -YEAR_S])
@pytest.mark.parametrize("not_after_in_s", [DAY_S, None])
def test_a_message_before_its_not_after_by_the_wall_clock_is_sent(
    wrong_by_s: float, not_after_in_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([with_time(not_after_in_s)]))
    first_opened_after_a_boot(path, wrong_by_s, monkeypatch)
    assert relayed(path) == (1, "accepted")


@pytest.mark.parametrize("wrong_by_s", [YEAR_S, -YEAR_S])
def test_a_message_past_its_not_after_by_the_wall_clock_expires(
    wrong_by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([with_time(-60)]))
    first_opened_after_a_boot(path, wrong_by_s, monkeypatch)
    assert relayed(path) == (0, "expired")


@pytest.mark.parametrize("wrong_by_s", [YEAR_S, -YEAR_S])
def test_a_not_after_written_by_a_wrong_clock_is_corrected(
    wrong_by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was taken and given back while the clock was wrong, and is taken again after the next boot."""
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([with_time(DAY_S)]))
    first_opened_after_a_boot(path, wrong_by_s, monkeypatch)

    async def give_back(ledger: SqliteLedger) -> None:
        (one,) = await ledger.outbox.take({"@sms": Lane(10)}, 600_000)
        assert await ledger.outbox.record([Record(one, one.delivery_state, "released")]) == [True]

    asked(path, give_back)
    boot_anew(path)
    assert relayed(path) == (1, "accepted")


@pytest.mark.parametrize(("wrong_by_s", "word"), [(YEAR_S, "ahead of"), (-YEAR_S, "behind"), (0, "agrees with")])
def test_doctor_compares_the_clock_of_the_boot_with_the_wall_clock(
    wrong_by_s: float, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.claim([]))
    first_opened_after_a_boot(path, wrong_by_s, monkeypatch)
    clock = rendered(asked(path, lambda ledger: ledger.diagnose()))["clock"]
    assert word in clock
    assert clock.startswith("warning: ") == bool(wrong_by_s)


def with_time(not_after_in_s: float | None) -> Notification:
    if not_after_in_s is None:
        return SAID
    return replace(SAID, not_after=datetime.now(UTC) + timedelta(seconds=not_after_in_s))


class Phone:
    """A provider that accepts everything and keeps the ids."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.sent: list[bytes] = []

    def prepare(self, dispatch: Dispatch) -> bytes:
        return b"{}"

    async def send(self, dispatch: Dispatch, request: bytes) -> Response:
        self.sent.append(dispatch.id)
        return Accepted("r")

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("no look-up")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...
