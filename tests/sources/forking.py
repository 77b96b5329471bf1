"""Consumers as processes of their own, forked from one that has imported everything: most of a start is imports."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import subprocess
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
from tests.sources.consumer_process import Plan, work

from semel.testing.source_laws import LANDED, SAID

START = multiprocessing.get_context("forkserver")
START.set_forkserver_preload(["tests.sources.consumer_process", "aiobotocore.session", "aiobotocore.config"])


class Forked:
    """A process, as `subprocess.Popen` shows one."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process.name), timeout or 0.0)
        return code

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        self._process.kill()


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
