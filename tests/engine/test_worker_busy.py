"""What is in somebody's hands comes again soon: whoever has it mostly ends long before the lease does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semel import Context, Event, Semel
from semel.core.worker import HELD_DOUBLINGS, HELD_S
from semel.ports import Delivery

BODY = b'{"id": "1", "type": "a", "data": {}}'


class Came(Delivery):
    """A delivery that has come so often, and remembers its answer."""

    def __init__(self, receives: int | None) -> None:
        self.body, self.tenant = BODY, ""
        self.told: list[float] = []
        if receives is not None:
            self.receives = receives

    async def ack(self) -> None:
        raise AssertionError("somebody else is at it")

    async def retry(self, after_s: float) -> None:
        self.told.append(after_s)

    async def reject(self, reason: str) -> None:
        raise AssertionError(reason)


class Once:
    def __init__(self, delivery: Came) -> None:
        self._left = [delivery]

    async def receive(self, limit: int) -> list[Came]:
        left, self._left = self._left, []
        return left


@pytest.mark.parametrize(
    ("receives", "after_s"),
    [(None, HELD_S), (1, HELD_S), (3, 4 * HELD_S), (1_000, HELD_S * 2**HELD_DOUBLINGS), (0, HELD_S)],
)
def test_what_is_held_elsewhere_comes_again_soon_and_later_each_time(
    tmp_path: Path, receives: int | None, after_s: float
) -> None:
    async def story() -> None:
        app = Semel(f"sqlite:///{tmp_path}/semel.db", lease=60)
        holding, may_end = asyncio.Event(), asyncio.Event()

        @app.on("a")
        async def handle(event: Event, ctx: Context) -> None:
            holding.set()
            await may_end.wait()

        held = asyncio.create_task(app.process(BODY))
        await holding.wait()
        copy = Came(receives)
        await app.worker(Once(copy)).run()
        may_end.set()
        await held
        await app.close()
        assert copy.told == [after_s]

    asyncio.run(story())
