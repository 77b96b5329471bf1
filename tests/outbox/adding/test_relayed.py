"""Whoever added it: a relay takes it and sends it like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.outbox.adding.places import EVERYTHING, Place, notification

from semel.core.relay import Relay
from semel.values.delivery_state import Accepted, Answer, Contract
from semel.values.outbox import Absent, DeliveryReport, Dispatch, LookedUp, NotificationView

SOON_S = 60.0


class Phone:
    """A provider that keeps what it was given."""

    contract = Contract(name="one", channels=("sms",))

    def __init__(self) -> None:
        self.sent: dict[str, list[tuple[bytes, Any]]] = {}

    def prepare(self, dispatch: Dispatch) -> bytes:
        return dispatch.content

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        said = dispatch.notification
        self.sent.setdefault(said.key, []).append((request, (said.tenant, said.recipient, said.kind, said.guard)))
        return Accepted(reference=said.key)

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Absent()

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...


@pytest.mark.parametrize("is_postgres", [True, False], ids=["postgres", "sqlite"])
def test_by_every_road_it_is_sent_once_and_says_the_same(request: pytest.FixtureRequest, is_postgres: bool) -> None:
    place = Place(request.getfixturevalue("url" if is_postgres else "file"), is_postgres)
    place.empty()
    ones = {name: notification(name, **{**EVERYTHING, "guard": None}) for name in ("the ledger", *place.roads)}

    async def add() -> None:
        for name, road in place.roads.items():
            async with road(place.url) as customer:
                await customer.add(ones[name])
                await customer.end(commit=True)
            async with road(place.url) as customer:
                await customer.add(notification(f"undone by {name}", provider="one"))
                await customer.end(commit=False)

    async def relay() -> tuple[Phone, list[NotificationView]]:
        phone = Phone()
        async with place.ledger() as ledger:
            await ledger.outbox.add([ones["the ledger"]])
            relay = Relay(ledger.outbox, {"one": phone}, {"sms": ["one"]})
            running = asyncio.create_task(relay.run())
            try:
                async with asyncio.timeout(SOON_S):
                    while len(phone.sent) < len(ones):  # noqa: ASYNC110  the relay polls
                        await asyncio.sleep(0.02)
            finally:
                await relay.stop(10.0)
                await running
            return phone, [await ledger.outbox.show(one.id) for one in ones.values()]

    asyncio.run(add())
    phone, shown = asyncio.run(relay())
    assert set(phone.sent) == set(ones)
    assert {repr(sent) for sent in phone.sent.values()} == {repr(phone.sent["the ledger"])}, "once each, and the same"
    assert [(one.state, len(one.attempts)) for one in shown] == [("accepted", 1)] * len(ones)
