"""What the processes do that the laws kill: work on one topic until they die."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from tests.sources import consumer_process as any_source

from semel.sources.kafka_topic import KafkaSource
from semel.testing.crash import crash_at


class Plan(msgspec.Struct, frozen=True):
    """What one process is to do, and how it is to die."""

    home: str
    servers: str
    topic: str
    dead_letters: str
    group: str
    in_order: bool = False
    options: dict[str, Any] = {}
    workers: int = 2
    step: str = ""
    marker: str = ""


async def work(plan: Plan) -> None:
    observe = crash_at(plan.step, marker=Path(plan.marker)) if plan.step else None
    async with any_source.app_of(any_source.Plan(home=plan.home), observe) as app:
        source = KafkaSource(
            plan.servers,
            [plan.topic],
            group=plan.group,
            dead_letters=plan.dead_letters,
            in_order=plan.in_order,
            options=plan.options,
            observe=observe,
        )
        await asyncio.gather(*[app.worker(source).run() for _ in range(plan.workers)])
