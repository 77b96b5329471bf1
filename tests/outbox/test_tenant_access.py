"""A provider account belongs to the tenants that its settings name: no other tenant sends through it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from semel import providers
from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.values.delivery_state import Accepted, Answer, Contract, ProviderAccess
from semel.values.errors import ConfigError
from semel.values.notification import Notification
from semel.values.outbox import DeliveryReport, Dispatch, LookedUp, NotificationView, Unclear

ACME = Contract(name="acme-sms", channels=("sms",), tenants=frozenset({"acme"}), timeout_s=2.0)
GLOBEX = Contract(name="globex-sms", channels=("sms",), tenants=frozenset({"globex"}), timeout_s=2.0)
ROUTES = {"sms": ["acme-sms", "globex-sms"]}


class Recording:
    """A provider that accepts everything and keeps the ids."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.sent: list[bytes] = []

    def prepare(self, dispatch: Dispatch) -> bytes:
        return b"{}"

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        self.sent.append(dispatch.id)
        return Accepted("r")

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear("no look-up")

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...


def notification(tenant: str, key: str = "k", **more: Any) -> Notification:
    wanted = {"key": key, "kind": "shipping", "recipient": "+4917012345678", "channel": "sms", "body": "text", **more}
    return Notification(tenant=tenant, **wanted)


def relay_once(
    tmp_path: Path, notifications: list[Notification], *contracts: Contract
) -> tuple[dict[str, list[bytes]], list[NotificationView]]:
    """What each provider sent, and the notifications afterwards."""

    async def story() -> tuple[dict[str, list[bytes]], list[NotificationView]]:
        ledger = SqliteLedger(str(tmp_path / "semel.db"))
        known = {one.name: Recording(one) for one in contracts or (ACME, GLOBEX)}
        routes = {"sms": [name for name in ROUTES["sms"] if name in known]}
        try:
            await ledger.outbox.add(notifications)
            await Relay(ledger.outbox, known, routes).run_once()
            shown = [await ledger.outbox.show(one.id) for one in notifications]
            return {name: one.sent for name, one in known.items()}, [one for one in shown if one is not None]
        finally:
            await ledger.close()

    return asyncio.run(story())


def test_each_tenant_is_sent_through_its_own_provider(tmp_path: Path) -> None:
    acme, globex = notification("acme"), notification("globex")
    sent, shown = relay_once(tmp_path, [acme, globex])
    assert sent == {"acme-sms": [acme.id], "globex-sms": [globex.id]}
    assert [one.state for one in shown] == ["accepted", "accepted"]


def test_a_notification_that_names_the_provider_of_another_tenant_is_not_sent(tmp_path: Path) -> None:
    forbidden = notification("globex", provider="acme-sms")
    sent, (shown,) = relay_once(tmp_path, [forbidden])
    assert sent == {"acme-sms": [], "globex-sms": []}
    assert (shown.state, shown.attempts) == ("pending", ())
    assert "acme-sms" in shown.reason


def test_a_tenant_without_a_provider_of_its_channel_is_not_sent_through_another(tmp_path: Path) -> None:
    sent, (shown,) = relay_once(tmp_path, [notification("initech")])
    assert sent == {"acme-sms": [], "globex-sms": []}
    assert (shown.state, shown.provider) == ("pending", "")
    assert "'initech'" in shown.reason


def test_what_waits_for_its_tenant_is_sent_after_the_settings_change(tmp_path: Path) -> None:
    waiting = notification("initech")
    relay_once(tmp_path, [waiting])

    async def story() -> Any:
        ledger = SqliteLedger(str(tmp_path / "semel.db"), clock=lambda: int(1000 * time.time()) + 120_000)
        shared = Recording(Contract(name="acme-sms", channels=("sms",), timeout_s=2.0))
        try:
            await Relay(ledger.outbox, {"acme-sms": shared}, {"sms": ["acme-sms"]}).run_once()
            return shared.sent
        finally:
            await ledger.close()

    assert asyncio.run(story()) == [waiting.id]


def test_the_lane_of_the_other_provider_is_used_so_that_its_rate_holds(tmp_path: Path) -> None:
    slow = Contract(name="globex-sms", channels=("sms",), tenants=frozenset({"globex"}), timeout_s=2.0, per_second=0.5)
    many = [notification("globex", f"k{n}") for n in range(5)]
    sent, shown = relay_once(tmp_path, many, ACME, slow)
    assert sent["acme-sms"] == []
    assert len(sent["globex-sms"]) == 1, "at 0.5 a second"
    assert sorted(one.state for one in shown) == ["accepted"] + ["pending"] * 4


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        (notification("acme"), False),
        (notification("globex"), False),
        (notification("initech"), True),
        (notification(""), True),
        (notification("acme", provider="acme-sms"), False),
        (notification("globex", provider="acme-sms"), True),
        (notification("globex", provider="of another process"), False),
    ],
)
def test_access_is_decided_by_the_tenant_and_the_provider(asked: Notification, refused: bool) -> None:
    access = ProviderAccess({"acme-sms": ACME, "globex-sms": GLOBEX}, ROUTES)
    assert bool(access.refusal(asked)) is refused


def test_a_sender_that_is_not_listed_is_refused() -> None:
    options = {"account": "AC1", "token": "x", "sender": "+491", "tenants": ["acme"], "senders": ["+492"]}
    contract = providers.provider("twilio", "sms", **options).contract
    access = ProviderAccess({"sms": contract}, {"sms": ["sms"]})
    assert [bool(access.refusal(notification("acme", sender=one))) for one in ("", "+491", "+492", "+493")] == [
        False,
        False,
        False,
        True,
    ]


def test_an_empty_list_of_tenants_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="tenants"):
        providers.provider("twilio", "sms", account="AC1", token="x", sender="+491", tenants=[])
