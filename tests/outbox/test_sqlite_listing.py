"""Listings of an outbox in SQLite: by an index, and whatever somebody has written into it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from semel.ledgers.sqlite import SqliteLedger, outbox_queries
from semel.values.notification import Notification
from semel.values.outbox import NotificationQuery, NotificationView

SAID = Notification(key="k", kind="k", recipient="+491", channel="sms", body="Hello", tenant="t")


async def shown(path: Path) -> list[NotificationView]:
    ledger = SqliteLedger(str(path))
    try:
        await ledger.outbox.add([SAID])
        return await ledger.outbox.find(NotificationQuery(tenant="t"))
    finally:
        await ledger.close()


@pytest.mark.parametrize(
    ("sought", "index"),
    [
        (NotificationQuery(), "semel_notification_added"),
        (NotificationQuery(tenant="t"), "semel_notification_added"),
        (NotificationQuery(tenant="t", since_ms=5), "semel_notification_added"),
        (NotificationQuery(tenant="t", key="k"), "semel_notification_key"),
        (NotificationQuery(tenant="t", recipient="+491"), "semel_notification_recipient"),
        (NotificationQuery(tenant="t", state="uncertain"), "semel_dispatch_state"),
        (NotificationQuery(state="failed"), "semel_notification_ended"),
        (NotificationQuery(tenant="t", state="expired", kind="k", provider="p"), "semel_notification_ended"),
        (NotificationQuery(state="accepted"), "semel_notification_added"),
        (NotificationQuery(kind="k"), "semel_notification_added"),
        (NotificationQuery(provider="p"), "semel_notification_added"),
        (NotificationQuery(possible_duplicates=True), "semel_notification_duplicates"),
    ],
    ids=str,
)
def test_every_listing_uses_an_index(tmp_path: Path, sought: NotificationQuery, index: str) -> None:
    path = tmp_path / "semel.db"
    asyncio.run(shown(path))
    plans: list[str] = []
    with apsw.Connection(str(path)) as connection:

        def explain(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
            connection.exec_trace = None
            plans.extend(row[3] for row in connection.execute(f"explain query plan {sql}", bindings))
            return True

        connection.exec_trace = explain
        outbox_queries.find(connection, sought)
    assert any(index in step for step in plans), plans


def test_a_row_that_was_changed_by_hand_is_still_listed(tmp_path: Path) -> None:
    path = tmp_path / "semel.db"
    asyncio.run(shown(path))
    with apsw.Connection(str(path)) as connection:
        assert connection.execute("update semel_notification set content = x'7b' returning 1").fetchall()
    (one,) = asyncio.run(shown(path))
    assert "read" in one.notification.body, "a note in place of the text"
