"""A queue in memory that speaks the interface of an SQS client, with every request a round trip away.

It exists to measure what is on our side of the network, and is no model of SQS: the laws are tried on an emulator."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

ROUND_TRIP_S = 0.001


class FakeSqs:
    """One queue. Entries of a batch are answered one by one, as SQS does it."""

    def __init__(self, bodies: Iterable[bytes], round_trip_s: float = ROUND_TRIP_S) -> None:
        self._round_trip_s = round_trip_s
        self._visible = deque({"MessageId": f"m{at}", "Body": body.decode()} for at, body in enumerate(bodies))
        self._in_flight: dict[str, Mapping[str, Any]] = {}
        self._receipts = 0
        self.requests = 0
        self.empty = asyncio.Event()

    @property
    def waiting(self) -> int:
        return len(self._visible)

    @property
    def left(self) -> int:
        return len(self._visible) + len(self._in_flight)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[FakeSqs]:
        yield self

    async def get_queue_attributes(self, **request: Any) -> Mapping[str, Any]:
        await self._travel()
        return {"Attributes": {}}

    async def receive_message(self, **request: Any) -> Mapping[str, Any]:
        await self._travel()
        ends = time.monotonic() + request.get("WaitTimeSeconds", 0)
        if not self._visible:
            await asyncio.sleep(ends - time.monotonic())  # nobody sends anything meanwhile
        messages = []
        for _ in range(min(request.get("MaxNumberOfMessages", 1), len(self._visible))):
            self._receipts += 1
            message = {**self._visible.popleft(), "ReceiptHandle": f"r{self._receipts}"}
            self._in_flight[message["ReceiptHandle"]] = message
            messages.append({**message, "Attributes": {"ApproximateReceiveCount": "1"}})
        return {"Messages": messages}

    async def delete_message(self, **request: Any) -> Mapping[str, Any]:
        await self._travel()
        del self._in_flight[request["ReceiptHandle"]]
        self._look()
        return {}

    async def delete_message_batch(self, **request: Any) -> Mapping[str, Any]:
        await self._travel()
        gone = [self._in_flight.pop(entry["ReceiptHandle"], None) for entry in request["Entries"]]
        self._look()
        return self._answer(request["Entries"], gone)

    async def change_message_visibility_batch(self, **request: Any) -> Mapping[str, Any]:
        await self._travel()
        found = []
        for entry in request["Entries"]:
            message = self._in_flight.get(entry["ReceiptHandle"])
            found.append(message)
            if message is not None:
                self._show_later(entry["ReceiptHandle"], entry["VisibilityTimeout"])
        return self._answer(request["Entries"], found)

    def _show_later(self, receipt: str, seconds: int) -> None:
        def show() -> None:
            message = self._in_flight.pop(receipt, None)
            if message is not None:
                self._visible.append({"MessageId": message["MessageId"], "Body": message["Body"]})

        asyncio.get_running_loop().call_later(seconds, show)

    def _look(self) -> None:
        if not self.left:
            self.empty.set()

    async def _travel(self) -> None:
        self.requests += 1
        await asyncio.sleep(self._round_trip_s)

    @staticmethod
    def _answer(entries: Sequence[Mapping[str, Any]], found: Sequence[object]) -> Mapping[str, Any]:
        good = [{"Id": entry["Id"]} for entry, one in zip(entries, found, strict=True) if one is not None]
        bad = [
            {"Id": entry["Id"], "Code": "ReceiptHandleIsInvalid", "SenderFault": True}
            for entry, one in zip(entries, found, strict=True)
            if one is None
        ]
        return {"Successful": good, "Failed": bad}
