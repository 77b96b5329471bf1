"""Consumers as processes of their own, forked from one that has imported everything: most of a start is imports."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
from tests.forking import START, Forked, preload
from tests.sources.consumer_process import Plan, work

from semel.testing.source_laws import LANDED, SAID

preload("tests.sources.forking", "aiobotocore.session", "aiobotocore.config")


def starting(plan: Plan) -> Callable[[str, Path], Forked]:
    def start(step: str, folder: Path) -> Forked:
        given = msgspec.structs.replace(plan, step=step, marker=str(folder / LANDED))
        process = START.Process(target=_work, args=(given, folder / SAID, dict(os.environ)), daemon=True)
        process.start()
        return Forked(process)

    return start


def _work(plan: Plan, said: Path, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # the server that forks may be older than the emulator's credentials
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(plan))
