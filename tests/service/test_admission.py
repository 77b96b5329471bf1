"""Waiters get a slot in order or are refused in time, and no slot is lost."""

from __future__ import annotations

import asyncio
import random

from semel.service.admission import WAITING, Admission


def test_slots_are_granted_in_order_and_never_more_than_configured() -> None:
    async def scenario() -> None:
        admission = Admission(2, wait_s=30)
        served: list[int] = []
        running = most = 0

        async def request(number: int) -> None:
            nonlocal running, most
            assert await admission.acquire()
            running += 1
            most = max(most, running)
            served.append(number)
            await asyncio.sleep(0.001)
            running -= 1
            admission.release()

        await asyncio.gather(*(request(number) for number in range(2 + WAITING * 2)))
        assert served == list(range(2 + WAITING * 2))
        assert (most, admission.taken) == (2, 0)

    asyncio.run(scenario())


def test_a_waiter_is_refused_after_its_time_or_if_the_queue_is_full() -> None:
    async def scenario() -> None:
        admission = Admission(1, wait_s=0.05)
        assert await admission.acquire()
        waiting = [asyncio.create_task(admission.acquire()) for _ in range(WAITING)]
        await asyncio.sleep(0)
        assert await admission.acquire() is False  # immediately
        assert await asyncio.gather(*waiting) == [False] * WAITING
        admission.release()
        assert admission.taken == 0
        assert await admission.acquire()

    asyncio.run(scenario())


def test_cancelled_waiters_lose_no_slot() -> None:
    async def scenario() -> None:
        admission = Admission(3, wait_s=0.01)
        chance = random.Random(1)

        async def request() -> None:
            if await admission.acquire():
                try:
                    await asyncio.sleep(chance.random() * 0.004)
                finally:
                    admission.release()

        for _ in range(100):
            tasks = [asyncio.create_task(request()) for _ in range(12)]
            await asyncio.sleep(chance.random() * 0.004)
            for task in chance.sample(tasks, 6):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert admission.taken == 0

    asyncio.run(scenario())
