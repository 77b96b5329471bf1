"""What the processes do that the laws kill: work on one queue until they die."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.sources.consumer_process import Plan, app_of, happened

from semel.sources.rabbitmq_queue import RabbitSource
from semel.testing.crash import crash_at

__all__ = ["RabbitPlan", "happened", "work"]


class RabbitPlan(msgspec.Struct, frozen=True):
    """What one process is to do, and how it is to die."""

    home: str
    url: str
    queue: str
    dead_letters: str
    step: str = ""
    marker: str = ""


async def work(plan: RabbitPlan) -> None:
    observe = crash_at(plan.step, marker=Path(plan.marker)) if plan.step else None
    async with app_of(Plan(home=plan.home), observe) as app:
        await app.worker(RabbitSource(plan.url, plan.queue, dead_letters=plan.dead_letters, observe=observe)).run()
