"""Consumers as processes of their own, forked from one that has imported everything: most of a start is imports."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.forking import START, Forked, preload
from tests.sources.kafka.consumer_process import Plan, work

from semel.testing.source_laws import LANDED, SAID

preload("tests.sources.kafka.forking", "confluent_kafka")


def starting(plan: Plan, patience_s: float) -> Callable[[str, Path], Forked]:
    """`patience_s`: so that the group has forgotten the one before, which was killed. It is only quicker so: whoever
    joins earlier waits for seconds, until the mock cluster is done with the dead member."""

    def start(step: str, folder: Path) -> Forked:
        time.sleep(patience_s)
        given = msgspec.structs.replace(plan, step=step, marker=str(folder / LANDED))
        process = START.Process(target=_work, args=(given, folder / SAID), daemon=True)
        process.start()
        return Forked(process)

    return start


def _work(plan: Plan, said: Path) -> None:
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(plan))
