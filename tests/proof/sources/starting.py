"""Consumers as processes of their own, forked from one that has imported everything: most of a start is imports."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from tests.forking import START, preload
from tests.proof.sources.consumer_process import Plan, work
from tests.proof.sources.tally import Tally

END_S = 60.0
preload(
    "tests.proof.sources.starting",
    "semel.ledgers.postgres",
    "semel.ledgers.redis",
    "semel.sources.kafka_topic",
    "semel.sources.rabbitmq_queue",
    "semel.sources.sqs_queue",
    "aiobotocore.session",
    "aiobotocore.config",
)


class Consumer:
    """One process, and what it has done, which can be read when it is dead."""

    def __init__(self, plan: Plan, said: Path, environment: dict[str, str]) -> None:
        self.tally = Tally(Path(plan.tally))
        self._process = START.Process(target=_work, args=(plan, said, environment), daemon=True)
        self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> int | None:
        """SIGKILL: nothing is closed, nothing is flushed. Returns what it died of."""
        self._process.kill()
        self._process.join(END_S)
        return self._process.exitcode


def _work(plan: Plan, said: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # the server that forks may be older than the emulator's credentials
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(plan))
