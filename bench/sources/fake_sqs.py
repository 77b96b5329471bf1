"""A queue in memory with the interface of an SQS client and the latency of a round trip.

It serves to measure the client side of the network and does not model SQS. The laws run on an emulator."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

ROUND_TRIP_S = 0.001


class FakeSqs:
    """One queue. Each entry of a batch gets its own answer, as with SQS."""

    def __init__(self, bodies: Iterable[bytes], round_trip_s: float = ROUND_TRIP_S) -> None:
        self._round_trip_s = round_trip_s
        self._receipts = count()
        self._visible = deque(self._message(f"m{at}", body.decode()) for at, body in enumerate(bodies))
        self._in_flight: dict[str, Mapping[str, Any]] = {}
        self.requests = 0
        self.empty = asyncio.Event()

    def _message(self, name: str, body: str, receives: int = 1) -> Mapping[str, Any]:
        """As it is received: all of it is made before any clock runs."""
        return {
            "MessageId": name,
            "Body": body,
            "ReceiptHandle": f"r{next(self._receipts)}",
            "Attributes": {"ApproximateReceiveCount": str(receives)},
        }

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
        if not self._visible:  # no new messages arrive: a poll waits for its timeout or for the end of the queue
            with suppress(TimeoutError):
                await asyncio.wait_for(self.empty.wait(), max(0.0, ends - time.monotonic()))
        wanted = min(request.get("MaxNumberOfMessages", 1), len(self._visible))
        messages = [self._visible.popleft() for _ in range(wanted)]
        for message in messages:
            self._in_flight[message["ReceiptHandle"]] = message
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
                self._visible.append(self._message(message["MessageId"], message["Body"], 2))

        asyncio.get_running_loop().call_later(seconds, show)

    def _look(self) -> None:
        if not self.left:
            self.empty.set()

    async def _travel(self) -> None:
        self.requests += 1
        await asyncio.sleep(self._round_trip_s)

    @staticmethod
    def _answer(entries: Sequence[Mapping[str, Any]], found: Sequence[object]) -> Mapping[str, Any]:
        good, bad = [], []
        for entry, one in zip(entries, found, strict=True):
            if one is not None:
                good.append({"Id": entry["Id"]})
            else:
                bad.append({"Id": entry["Id"], "Code": "ReceiptHandleIsInvalid", "SenderFault": True})
        return {"Successful": good, "Failed": bad}
