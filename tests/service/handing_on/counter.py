"""A door that hands on, asked as a server asks it, and a publisher that does as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from semel import Semel
from semel.ports import Fact
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest
from semel.values.forwarded import ForwardedEvent

SOON_S = 60.0


class Broker:
    """Implements `semel.ports.Publisher`. Everything it was asked to take is written down."""

    def __init__(self, answer: Callable[[Sequence[ForwardedEvent]], Awaitable[list[str]]] | None = None) -> None:
        self.answer = answer
        self.batches: list[Sequence[ForwardedEvent]] = []
        self.opened = 0  # nothing was handed on, before there was anything

    @property
    def parcels(self) -> list[ForwardedEvent]:
        return [parcel for batch in self.batches for parcel in batch]

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        if not parcels:
            self.opened += 1
            return []
        self.batches.append(parcels)
        return [""] * len(parcels) if self.answer is None else await self.answer(parcels)

    async def diagnose(self) -> list[Fact]:
        return []

    async def close(self) -> None: ...


def saying(why: str) -> Callable[[Sequence[ForwardedEvent]], Awaitable[list[str]]]:
    async def answer(parcels: Sequence[ForwardedEvent]) -> list[str]:
        return [why] * len(parcels)

    return answer


class SentStatus(msgspec.Struct):
    """What a sender was told."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Counter:
    """Takes deliveries at one door, on the running loop."""

    def __init__(self, broker: Broker, app: Semel | None = None, trace: str = "", **door: Any) -> None:
        self.app = app or Semel("memory://")
        self.door = ServedEndpoint("/events", publisher=broker, **door)
        self._ingest = Ingest(DeliveryHandler(self.app), [self.door], planner=self.app.planner, trace=lambda: trace)

    async def post(self, body: Any, headers: Mapping[str, str] | None = None) -> SentStatus:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": raw}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        pairs = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {"type": "http", "method": "POST", "path": "/events", "headers": pairs}
        await self._ingest.deliver(self.door, scope, receive, send)
        start, end = sent
        return SentStatus(start["status"], dict(start["headers"]), end["body"])

    async def until_taken(self, body: Any) -> None:
        """As a sender does that is asked to come again."""
        ends = asyncio.get_running_loop().time() + SOON_S
        while (told := await self.post(body)).status != 200:
            assert told.status == 503
            assert asyncio.get_running_loop().time() < ends, "the door stays closed"
            await asyncio.sleep(0.01)


async def until(true: Callable[[], bool], what: str, within_s: float = SOON_S) -> None:
    ends = asyncio.get_running_loop().time() + within_s
    while not true():
        assert asyncio.get_running_loop().time() < ends, f"waited {within_s:g} s for {what}"
        await asyncio.sleep(0.005)
