"""A relay whose outbox is slow or out of reach at a chosen step, and a provider of somebody's own that may hang.

The outbox is a real one, in SQLite: what is delayed or refused is the way to it. Clocks are moved, not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from semel.core.relay import Relay
from semel.ledgers.sqlite import SqliteLedger
from semel.values.delivery_state import Accepted, Answer, Contract
from semel.values.notification import Notification
from semel.values.outbox import Absent, DeliveryReport, Dispatch, LookedUp, NotificationView

CONTRACT = Contract(name="phone", channels=("sms", "voice", "message"))
SOON_S = 25.0  # less than a lease of this contract, so that nothing here is mended by a lapse


class Moved:
    """Both clocks of a scene, the store's and the relay's, can be moved on."""

    def __init__(self) -> None:
        self.by_s = 0.0

    def wall_ms(self) -> int:
        return int(1000 * (time.time() + self.by_s))

    def steady_s(self) -> float:
        return time.monotonic() + self.by_s


class Phone:
    """Takes what it is sent, unless it was told what to do instead. Each of the plans is for one call."""

    def __init__(self, contract: Contract = CONTRACT) -> None:
        self.contract = contract
        self.got: list[str] = []
        self.bugs = 0  # of so many calls of `prepare`
        self.sends: list[Callable[[], Awaitable[Answer]]] = []
        self.looks: list[Callable[[], Awaitable[LookedUp]]] = []

    def prepare(self, dispatch: Dispatch) -> bytes:
        if self.bugs > 0:
            self.bugs -= 1
            raise KeyError("a bug")
        return dispatch.content

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        self.got.append(dispatch.notification.key)
        return await self.sends.pop(0)() if self.sends else Accepted(f"r-{len(self.got)}")

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return await self.looks.pop(0)() if self.looks else Absent()

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        return []

    async def close(self) -> None: ...


class Way:
    """The way to an outbox. `before[step]` is awaited before the step is asked, `after[step]` before its answer is
    handed over; each is for one call, and may raise."""

    def __init__(self, outbox: Any) -> None:
        self._outbox = outbox
        self.before: dict[str, list[Callable[[], Awaitable[None]]]] = {}
        self.after: dict[str, list[Callable[[], Awaitable[None]]]] = {}
        self.landed: list[str] = []
        self.under_way = 0  # calls

    def __getattr__(self, step: str) -> Any:
        asked = getattr(self._outbox, step)

        async def ask(*args: Any, **kwargs: Any) -> Any:
            self.under_way += 1
            try:
                await self._trouble(self.before, step)
                answer = await asked(*args, **kwargs)
                if answer or step != "take":  # an empty take is no step of anybody
                    await self._trouble(self.after, step)
                return answer
            finally:
                self.under_way -= 1

        return ask

    async def _trouble(self, planned: dict[str, list[Callable[[], Awaitable[None]]]], step: str) -> None:
        if planned.get(step):
            self.landed.append(step)
            await planned[step].pop(0)()


class Scene:
    """An outbox, the way to it, a phone, and relays."""

    def __init__(self, ledger: SqliteLedger, moved: Moved, contract: Contract) -> None:
        self.outbox = ledger.outbox
        self.way = Way(ledger.outbox)
        self.moved = moved
        self.phone = Phone(contract)

    def relay(self, phone: Phone | None = None, **terms: Any) -> Relay:
        routes: dict[str, Sequence[str]] = {"sms": ["phone"], "voice": ["phone"], "message": ["phone"]}
        way: Any = self.way if phone is None else self.outbox
        return Relay(
            way, {"phone": phone or self.phone}, routes, random=lambda: 0.0, clock=self.moved.steady_s, **terms
        )

    async def shown(self, notification: Notification) -> NotificationView:
        shown = await self.outbox.show(notification.id)
        assert shown is not None
        return shown

    async def until(self, notification: Notification, *states: str) -> NotificationView:
        """It is in one of these states, and nobody has anything to do with it."""
        async with asyncio.timeout(SOON_S):
            while True:
                shown = await self.shown(notification)
                if shown.state in states and not shown.due_ms:
                    return shown
                await asyncio.sleep(0.02)

    async def wait(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not true():  # noqa: ASYNC110  whoever makes it true knows no event
                await asyncio.sleep(0.02)

    async def move(self, by_s: float) -> None:
        """Move both clocks between two calls of the outbox. A call that saw one clock before and the other one after
        would find its lease expired at once, and give back what it took."""
        await self.wait(lambda: not self.way.under_way)
        self.moved.by_s += by_s

    @asynccontextmanager
    async def running(self, relay: Relay, stops_within_s: float = 10.0) -> AsyncIterator[None]:
        task = asyncio.create_task(relay.run())
        try:
            yield
        finally:
            await relay.stop(stops_within_s)
            await task


def play(tmp_path: Path, tell: Callable[[Scene], Awaitable[None]], contract: Contract = CONTRACT) -> None:
    async def whole() -> None:
        moved = Moved()
        ledger = SqliteLedger(str(tmp_path / "semel.db"), clock=moved.wall_ms)
        try:
            await tell(Scene(ledger, moved, contract))
        finally:
            await ledger.close()

    asyncio.run(whole())


def note(key: str = "n", **said: Any) -> Notification:
    wanted = {"key": key, "kind": "k", "recipient": "+491", "channel": "sms", "body": "text", **said}
    return Notification(**wanted)
