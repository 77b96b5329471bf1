"""A message asked for over HTTP: it leaves at once, and a store that is stuck keeps nobody waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.service.running import Running, service

from semel import Semel
from semel.core.breaker import Breaker
from semel.core.ledger_breaker import LedgerBreaker
from semel.ports import StoredOutbox
from semel.service.served_ledger import ServedOutbox, StoreHealth
from semel.values.errors import LedgerUnavailable
from semel.values.log import IncidentLog
from semel.values.notification import Notification
from semel.values.outbox import Added, Decision

TOKEN = "semel_test"
SETTINGS = f"""
endpoints = []

[[tokens]]
name = "shop"
digest = "sha256:{sha256(TOKEN.encode()).hexdigest()}"
scopes = ["notify", "notifications", "operate"]
"""
MANY = 12
ALONE_S = 5.0  # what SQLite waits for its lock: without a gate, each of the many would


def ask(running: Running, key: str) -> int:
    said = {"key": key, "kind": "k", "recipient": "+491701234567", "channel": "sms", "body": "Hello"}
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    return running.post("/v1/notifications", said, headers, timeout=90).status


def test_a_store_that_is_stuck_keeps_no_caller_waiting(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS) as running:
        assert ask(running, "before") == 201
        other = apsw.Connection(str(tmp_path / "semel.db"))
        other.execute("begin immediate")
        begun = time.monotonic()
        assert [ask(running, f"during-{number}") for number in range(MANY)] == [503] * MANY
        assert time.monotonic() - begun < MANY * ALONE_S / 2
        other.execute("rollback")
        other.close()
        running.until(lambda: ask(running, "during-0") in (200, 201), "it does not come back")
        running.until(lambda: ask(running, "after") in (200, 201), "it does not come back")
        assert ask(running, "before") == 200


# ---------------------------------------------------------------------------------------------------------- waking


def story(tmp_path: Path, tell: Any) -> list[str]:
    """What an outbox behind its gate tells the relay."""
    woken: list[str] = []

    async def story() -> None:
        breaker = Breaker(5, 0.1, open_max_s=1.0, clock=time.monotonic, random=lambda: 0.5)
        health = StoreHealth(IncidentLog("it fails"), quiet=True)
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:
            await tell(ServedOutbox(app.outbox, health, LedgerBreaker(breaker, 30.0), lambda: woken.append("woken")))

    asyncio.run(story())
    return woken


def notification(key: str) -> Notification:
    return Notification(key=key, kind="k", recipient="+491701234567", channel="sms", body="Hello")


def test_the_relay_is_woken_by_writes_and_not_by_reads(tmp_path: Path) -> None:
    async def tell(outbox: StoredOutbox) -> None:
        (added,) = await outbox.add([notification("a")])
        await outbox.status("", key="a")
        assert await outbox.show(bytes.fromhex(added.id)) is not None
        assert await outbox.decide(Decision(bytes.fromhex(added.id), "cancelled", "no", "me")) == "cancelled"

    assert story(tmp_path, tell) == ["woken", "woken"]


def test_the_relay_is_not_woken_for_a_failed_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaker = Breaker(5, 60.0, open_max_s=60.0, clock=time.monotonic, random=lambda: 0.5)
    woken: list[str] = []
    store = Semel(f"sqlite:///{tmp_path}/semel.db").outbox

    async def fail(notifications: Sequence[Notification]) -> list[Added]:
        raise LedgerUnavailable("the store is gone")

    monkeypatch.setattr(store, "add", fail)
    outbox = ServedOutbox(
        store, StoreHealth(IncidentLog("x"), quiet=True), LedgerBreaker(breaker, 30.0), lambda: woken.append("x")
    )
    for _ in range(2):  # the second one meets an open breaker
        with pytest.raises(LedgerUnavailable):
            asyncio.run(outbox.add([notification("a")]))
    assert woken == []
