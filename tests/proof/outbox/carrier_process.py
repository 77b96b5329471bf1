"""The process that the storm kills: a relay with all providers of the simulator, and a diary of what it does.

A bug can be planted in it. It is written around the outbox and the providers, as the diary is: what is killed is the
relay as it ships.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.proof.outbox import bugs
from tests.proof.outbox.diary import Diary
from tests.proof.outbox.parts import BY_NAME, MARGIN, ROUTES, TIMEOUT_S, opened
from tests.proof.outbox.stores import open_store

from semel.core.relay import Relay
from semel.ports import Outbox, Provider
from semel.values.delivery_state import Answer, State
from semel.values.outbox import Crossing, CrossingVerdict, DeliveryReport, Dispatch, Lane, LookedUp, Record

SPREAD = 0.4  # of the backoff's full jitter: everything comes to its end soon


class Plan(Struct, frozen=True):
    store: str
    simulator: str  # its URL
    mail_port: int
    diary: str
    parts: tuple[str, ...]
    timeout_s: float = TIMEOUT_S
    changed: Mapping[str, Any] = {}  # options of all providers
    spread: float = SPREAD
    bug: str = ""


async def work(plan: Plan) -> None:
    diary = Diary(Path(plan.diary))
    providers: dict[str, Provider] = {}
    for name in plan.parts:
        options = {"timeout": plan.timeout_s, **plan.changed, **bugs.options(plan.bug, name)}
        provider = opened(BY_NAME[name], plan.simulator, plan.mail_port, **options)
        providers[name] = _Witnessed(bugs.provider(plan.bug, provider), diary)
    outbox: Outbox = open_store(plan.store).outbox
    relay = Relay(
        _Recorded(bugs.outbox(plan.bug, outbox), diary),
        providers,
        {channel: names for channel, names in ROUTES.items() if set(names) <= set(plan.parts)},
        margin_s=plan.timeout_s * MARGIN,
        random=lambda: plan.spread * random.random(),
    )
    await relay.run()


class _Recorded:
    """An outbox, and what was asked of it."""

    def __init__(self, outbox: Outbox, diary: Diary) -> None:
        self._outbox = outbox
        self._diary = diary

    async def add(self, notifications: Any) -> Any:
        return await self._outbox.add(notifications)

    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        taken = await self._outbox.take(lanes, lease_ms)
        for one in taken:
            self._diary.write("take", one.id, one.token, "vanished" if one.vanished else "")
        return taken

    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        for one in crossings:
            self._diary.write("ask", one.dispatch.id, one.dispatch.token)
        gates = await self._outbox.cross(crossings)
        for one, gate in zip(crossings, gates, strict=True):
            self._diary.write("gate", one.dispatch.id, one.dispatch.token, type(gate).__name__)
        return gates

    async def record(self, records: Sequence[Record]) -> list[bool]:
        for one in records:
            self._diary.write("record", one.dispatch.id, one.dispatch.token, one.outcome)
        held = await self._outbox.record(records)
        for one, was in zip(records, held, strict=True):
            self._diary.write("held", one.dispatch.id, one.dispatch.token, str(was))
        return held

    async def apply_reports(self, witnesses: Sequence[DeliveryReport]) -> list[State | None]:
        return await self._outbox.apply_reports(witnesses)


class _Witnessed:
    """A provider, and what was sent to it."""

    def __init__(self, provider: Provider, diary: Diary) -> None:
        self.contract = provider.contract
        self._provider = provider
        self._diary = diary
        self._busy = Counter[str]()

    def prepare(self, dispatch: Dispatch) -> bytes:
        return self._provider.prepare(dispatch)

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        name, began = self.contract.name, time.monotonic()
        self._busy[name] += 1
        self._diary.write("busy", b"", 0, name, self._busy[name])
        self._diary.write("send", dispatch.id, dispatch.token, str(dispatch.slot_ms))
        try:
            answer = await self._provider.send(dispatch, request)
        finally:
            self._busy[name] -= 1
        self._diary.write("hear", dispatch.id, dispatch.token, type(answer).__name__, time.monotonic() - began)
        return answer

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return await self._provider.look_up(dispatch)

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return self._provider.reports(headers, body, query)

    async def close(self) -> None:
        await self._provider.close()
