"""Who waits for a turn gets one in order, or is told in time; and no turn is lost."""

from __future__ import annotations

import asyncio
import random

from semel.service.turns import WAITING, Turns


def test_turns_are_given_in_order_and_never_more_than_there_are() -> None:
    async def story() -> None:
        turns = Turns(2, wait_s=30)
        served: list[int] = []
        at_once = most = 0

        async def one(number: int) -> None:
            nonlocal at_once, most
            assert await turns.take()
            at_once += 1
            most = max(most, at_once)
            served.append(number)
            await asyncio.sleep(0.001)
            at_once -= 1
            turns.give_back()

        await asyncio.gather(*(one(number) for number in range(2 + WAITING * 2)))
        assert served == list(range(2 + WAITING * 2))
        assert (most, turns.taken) == (2, 0)

    asyncio.run(story())


def test_who_waits_too_long_or_finds_too_many_waiting_is_refused() -> None:
    async def story() -> None:
        turns = Turns(1, wait_s=0.05)
        assert await turns.take()
        waiting = [asyncio.create_task(turns.take()) for _ in range(WAITING)]
        await asyncio.sleep(0)
        assert await turns.take() is False  # at once
        assert await asyncio.gather(*waiting) == [False] * WAITING
        turns.give_back()
        assert turns.taken == 0
        assert await turns.take()

    asyncio.run(story())


def test_whatever_is_cancelled_no_turn_is_lost() -> None:
    async def story() -> None:
        turns = Turns(3, wait_s=0.01)
        chance = random.Random(1)

        async def one() -> None:
            if await turns.take():
                try:
                    await asyncio.sleep(chance.random() * 0.004)
                finally:
                    turns.give_back()

        for _ in range(100):
            tasks = [asyncio.create_task(one()) for _ in range(12)]
            await asyncio.sleep(chance.random() * 0.004)
            for task in chance.sample(tasks, 6):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert turns.taken == 0

    asyncio.run(story())
