"""An outbox in SQLite over two boots of its machine: what was in somebody's hands is due, and the clock may go back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

from semel.adapters.ledgers.sqlite import SqliteLedger
from semel.values.notification import Notification
from semel.values.outbox import Dispatch, Lane

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


def test_what_a_relay_of_an_earlier_boot_had_is_due(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([SAID]))
    assert [one.vanished for one in asked(path, taken)] == [False]
    assert asked(path, taken) == []
    boot_anew(path)
    assert [one.vanished for one in asked(path, taken)] == [True]


def test_a_clock_that_went_back_between_two_boots_holds_up_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "semel.db"
    asked(path, lambda ledger: ledger.outbox.add([SAID]))
    boot_anew(path)
    a_year_ago_ns = time.time_ns() - 365 * 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: a_year_ago_ns)
    (one,) = asked(path, taken)
    assert one.added_ms > one.taken_ms + 300 * 86_400_000, "the clock did go back"
