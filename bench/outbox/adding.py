"""The cost of a message in the caller's transaction, compared with a bare INSERT of a row."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from bench.outbox.plan import BATCH, Caller, Figures
from bench.outbox.sending import notifications

from semel.values.notification import Notification

WARM = 20  # transactions before the measurement, which prepare the statements


async def added(caller: Caller, number: int, first: int) -> Figures:
    """Alternate transactions with one message and with a hundred. The commit belongs to the caller and is not timed."""
    singly = max(number, WARM * 2)
    batches = max(number // 10, 5)
    ones = [[one] for one in notifications(singly, first)]
    many = notifications(batches * BATCH, first + singly)
    hundreds = [many[at : at + BATCH] for at in range(0, len(many), BATCH)]
    return {
        **await _by_turns(caller, "1", ones),
        **await _by_turns(caller, "100", hundreds),
    }


async def _by_turns(caller: Caller, name: str, batches: Sequence[Sequence[Notification]]) -> dict[str, float]:
    adds: list[float] = []
    inserts: list[float] = []
    statements = 0
    for batch in batches:
        async with caller.transaction():
            inserts.append(await _timed(caller.insert, batch))
        async with caller.transaction():
            before = caller.statements
            adds.append(await _timed(caller.add, batch))
            statements = caller.statements - before
    size = len(batches[0])
    warm = min(WARM, len(batches) // 2)
    return {
        f"add_{name}.us": median(adds[warm:]) / size,
        f"insert_{name}.us": median(inserts[warm:]) / size,
        f"add_{name}.statements": float(statements),
    }


async def _timed(write: Callable[[Sequence[Notification]], Awaitable[None]], batch: Sequence[Notification]) -> float:
    begun = time.perf_counter()
    await write(batch)
    return (time.perf_counter() - begun) * 1e6
