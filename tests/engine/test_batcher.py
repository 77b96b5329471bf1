"""Calls of many tasks travel together, and nobody waits for somebody who does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from semel.core import batcher
from semel.core.batcher import Batcher

NEVER_S = 3_600.0


class Store:
    """Keeps what each round trip brought. None ends while it is not `open`."""

    def __init__(self) -> None:
        self.trips: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.expected = 0  # who are about to ask

    async def call(self, asked: Sequence[int]) -> list[int]:
        self.trips.append(list(asked))
        await self.open.wait()
        return [-one for one in asked]

    def more(self) -> bool:
        return self.expected > 0


def test_what_is_asked_in_one_tick_travels_together_and_a_lone_call_waits_for_nobody() -> None:
    async def story() -> None:
        store = Store()
        lane: Batcher[int, int] = Batcher(store.call)
        assert await lane.ask([1]) == [-1]
        second, third = lane.ask([2, 3]), lane.ask([4])
        assert (await second, await third) == ([-2, -3], [-4])
        assert store.trips == [[1], [2, 3, 4]]

    asyncio.run(story())


def test_whoever_has_asked_waits_for_those_who_are_about_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "LINGER_S", NEVER_S)

    async def story() -> None:
        store = Store()
        lane = Batcher(store.call, more=store.more)
        asked = []
        for store.expected in (2, 1, 0):
            assert store.trips == []
            asked.append(lane.ask([store.expected]))
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*asked) == [[-2], [-1], [0]]
        assert store.trips == [[2, 1, 0]]

    asyncio.run(story())


def test_those_who_come_during_a_round_trip_wait_behind_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batcher, "LINGER_S", NEVER_S)

    async def story() -> None:
        store = Store()
        store.open.clear()
        lane = Batcher(store.call, more=store.more)
        first = lane.ask([1])
        await asyncio.sleep(0.01)
        second = lane.ask([2])
        store.expected = 1
        store.open.set()
        assert await first == [-1]
        await asyncio.sleep(0.01)
        assert store.trips == [[1]]
        store.expected = 0
        third = lane.ask([3])
        assert (await second, await third) == ([-2], [-3])
        assert store.trips == [[1], [2, 3]]

    asyncio.run(story())


def test_whoever_does_not_come_is_not_waited_for_long() -> None:
    async def story() -> None:
        store = Store()
        store.expected = 1
        lane = Batcher(store.call, more=store.more)
        async with asyncio.timeout(60):
            assert await lane.ask([1]) == [-1]
            assert await lane.ask([2]) == [-2]

    asyncio.run(story())


def test_a_small_call_waits_for_one_large_call_at_most() -> None:
    async def story() -> None:
        store = Store()
        store.open.clear()
        lane: Batcher[int, int] = Batcher(store.call)
        large = range(batcher.LARGE + 1, batcher.LARGE + 1 + batcher.BATCH_MAX)
        answers = [lane.ask(large) for _ in range(3)]
        await asyncio.sleep(0.01)  # the first one is under way
        answers += [lane.ask([1]), lane.ask([2])]
        store.open.set()
        await asyncio.gather(*answers)
        assert [len(trip) for trip in store.trips] == [500, 2, 500, 500]
        assert store.trips[1] == [1, 2]

    asyncio.run(story())


def test_large_calls_are_not_held_up_by_small_ones_that_keep_coming() -> None:
    async def story() -> None:
        store = Store()
        lane: Batcher[int, int] = Batcher(store.call)
        large = range(batcher.BATCH_MAX)
        answer = lane.ask(large)
        again = lane.ask(large)
        for _ in range(10):
            lane.ask([1])
            await asyncio.sleep(0)
        await asyncio.gather(answer, again)
        assert [len(trip) for trip in store.trips[:3]].count(batcher.BATCH_MAX) == 2

    asyncio.run(story())
